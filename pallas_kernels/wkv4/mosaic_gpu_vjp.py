"""wkv4 on Hopper, backward: cotangents of the sums before every piece of time, then all gradients.

With o_t = e^{u + k_t}, Q_t = den_{t-1} + o_t, and G_t, H_t the cotangents of num_t, den_t, all unscaled:

    g_t = dy_t / Q_t        h_t = -y_t g_t        G_{t-1} = e^{-w} G_t + g_t        H_{t-1} = e^{-w} H_t + h_t
    dv_t = o_t g_t + e^{k_t} G_t                  dk_t = o_t g_t (v_t - y_t) + e^{k_t} (G_t v_t + H_t)
    du = sum_t o_t g_t (v_t - y_t)                dw = -sum_t e^{-w} (G_t num_{t-1} + H_t den_{t-1})

In `Sums` the terms of G and H have the exponent -m_t, with m_t the scale of Q_t, so their scale r is the largest of
-m_s - (s - t - 1) w. As m_s is at least k_t - (s - t - 1) w for every earlier t, the exponents k_t + r_t and top_{t-1}
- w + r_t are at most 0: nothing overflows.

The first kernel scans each piece forward from the saved sums, and adds up the contributions of its tokens to the
cotangents before it. The second processes chunks in reverse: it recomputes the sums before each token from the saved
ones, and goes back through the chunk.
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.hopper.ring import pad_tokens
from pallas_kernels.hopper.tiles import launch
from pallas_kernels.wkv4.mosaic_gpu import first_sums, names_of, save_sums, start_operands, step, write
from pallas_kernels.wkv4.mosaic_gpu_layout import CHUNK, RESET, Block, Inputs, Tokens, full, inputs, nothing, scratch
from pallas_kernels.wkv4.state import Wkv4State
from pallas_kernels.wkv4.sums import LOG2_E, Sums, before_token

STAGES, GRADIENT_STAGES = 2, 3
"""Slots of the rings, limited by shared memory for 4 and 2 blocks per multiprocessor."""

PARTS = [range(last, last - 4, -1) for last in range(CHUNK - 1, 0, -4)]
"""Tokens whose inputs are in registers at once; barriers separate them."""


def backward(k, v, w, u, keep, state, last_max, saved, dy, dstate, options, *, interpret=None):
    """Gradients of k, v, w, u and state (or None); saved: sums of `forward`; last_max: of the last state."""
    given = inputs(k, v, w, u, keep)
    given.arrays.update(dy=pad_tokens(dy, CHUNK), borders=saved)
    end = None if dstate is None else Wkv4State(*dstate[:2], -last_max)
    own = _cotangents_of_pieces(given, interpret=interpret) if given.pieces > 1 else None
    found = _gradients(given, own, end, interpret=interpret)
    dw, du = found["dw_du"].sum((1, 2))
    dk, dv = (found[name][:, : k.shape[1]] for name in ("dk", "dv"))
    if state is None:
        return dk, dv, dw, du, None
    num, den, top = found["start"]
    scale = jnp.exp2(top + LOG2_E * state.max)  # at most 1
    return dk, dv, dw, du, Wkv4State(num * scale, den * scale, jnp.zeros_like(scale))


def _cotangents_of_pieces(given: Inputs, *, interpret) -> jax.Array:
    """Contributions of each piece but the first to the cotangents before it, (3, b, pieces - 1, d)."""
    names = names_of(given, "k", "v", "dy")

    def body(r):
        block = Block(r, given, names, STAGES, first_piece=1)
        mean, top = (Block._load(r.borders.at[i, block.batch, block.chunk(0), block.channels]) for i in range(2))

        def chunk(_, tokens, carry):
            sums, found, passed = carry
            arrays = tokens.keys(), tokens.load("v"), tokens.load("dy")
            for i, (key, value, dy) in enumerate(zip(*arrays, strict=True)):
                sums, read, _ = step(tokens, i, sums, key, value)
                if given.documents:
                    passed = jnp.maximum(tokens.reset(passed, i), RESET)
                g = dy / read.den
                found = found.with_term(passed - read.top, g, -g * read.num / read.den)
                passed = passed - tokens.decay(i)
            return sums, found, passed

        first = Sums(mean, full(1.0), top), nothing(), full(0.0)
        save_sums(r.own, block, block.piece - 1, block.scan(chunk, first)[1])

    like = given.sums_like(given.pieces - 1)
    return launch(
        "wkv4_cotangents", body, given.arrays, {"own": like}, scratch(given, names, STAGES),
        grid=given.grid(given.pieces - 1), approx_math=True, interpret=interpret,
    )["own"]  # fmt: skip


def _gradients(given: Inputs, own, end: Wkv4State | None, *, interpret) -> dict[str, jax.Array]:
    """dk, dv (b, t', d); partial dw_du (2, b, pieces, d); start (3, b, d): cotangents before all tokens."""
    names = names_of(given, "k", "v", "dy", "borders")

    def body(r):
        block = Block(r, given, names, GRADIENT_STAGES, reverse=True)
        later = nothing() if end is None else first_sums(block)
        if own is not None:
            last = given.pieces - 1
            later = block.joined(later, r.own, last - block.piece, lambda i: last - i, first_own=1)

        def chunk(number, tokens, carry):
            sums = _sums_before(tokens)
            for some in PARTS:
                plgpu.commit_smem()
                outputs, carry = _back_through(tokens, some, sums, *carry)
                for i, (dk, dv) in zip(some, outputs, strict=True):
                    for ref, x in ((r.dk, dk), (r.dv, dv)):
                        ref[block.batch, number * CHUNK + i, block.channels] = x.astype(ref.dtype)
            return carry

        later, dw, du = block.scan(chunk, (later, full(0.0), full(0.0)))
        for i, x in enumerate((dw, du)):
            r.dw_du[i, block.batch, block.piece, block.channels] = x

        @pl.when(block.piece == 0)
        def _():
            for i, x in enumerate(later):
                r.start[i, block.batch, block.channels] = x

    b, _, d = given.shape
    like = jax.ShapeDtypeStruct(given.shape, given.arrays["k"].dtype)
    outputs = {"dk": like, "dv": like, "start": jax.ShapeDtypeStruct((3, b, d), jnp.float32)}
    outputs["dw_du"] = jax.ShapeDtypeStruct((2, b, given.pieces, d), jnp.float32)
    return launch(
        "wkv4_gradients", body, given.arrays | {"own": own} | start_operands(end), outputs,
        scratch(given, names, GRADIENT_STAGES), grid=given.grid(given.pieces),
        approx_math=True, interpret=interpret,
    )  # fmt: skip


def _sums_before(tokens: Tokens) -> list[Sums]:
    """Sums before every token of a chunk."""
    sums, written = [tokens.border()], range(CHUNK - 1)
    for i, key, value in zip(written, tokens.keys(written), tokens.load("v", written), strict=True):
        before = sums[i]._replace(top=tokens.reset(sums[i].top, i))
        sums.append(write(tokens, i, before, key, value))
    return sums


def _back_through(tokens: Tokens, some: range, sums: list[Sums], later: Sums, dw, du) -> tuple[list, tuple]:
    """dk and dv of tokens, last one first; cotangents before them, and dw and du including them."""
    outputs, arrays = [], (tokens.keys(some), tokens.load("v", some), tokens.load("dy", some))
    for i, key, value, dy in zip(some, *arrays, strict=True):
        before = sums[i]._replace(top=tokens.reset(sums[i].top, i))
        dk, dv, later, terms = before_token(before, later, key, value, dy, u=tokens.block.u, w=tokens.decay(i))
        later = later._replace(top=tokens.reset(later.top, i))
        dw, du = dw - tokens.but_padding(terms[0], i), du + terms[1]
        outputs.append((dk, dv))
    return outputs, (later, dw, du)
