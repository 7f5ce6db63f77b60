"""Taylor linear attention on TPU, forward: a Pallas Mosaic kernel on packed heads.

For each head, with p_ij = 1 + s_ij + s_ij^2/2, s_ij = scale * q_i.k_j, and an optional decay in [0, 1]:

    num_i = sum_{j<=i} decay^(i-j) p_ij v_j + decay^(i+1) S^T phi'(q_i)       y_i = num_i / (den_i + eps)
    den_i = sum_{j<=i} decay^(i-j) p_ij     + decay^(i+1) z.phi'(q_i)         (y_i = num_i if not normalize)
    S <- decay^t S + sum_j decay^(t-1-j) phi(k_j) v_j^T                       z <- the same with 1 for v_j

(Based, sec. 3.1 and Alg. 1; decay: App. C.) phi, and phi' = coefficients * phi, are in `features.py`. The equations
hold for a chunk of c tokens and the state before it just as well, so the kernel scans chunks and carries (S, z) in
VMEM; the state reaches HBM once, at the end, and only if it is asked for.

The MXU sees few rows and dense tiles. Features are rotations (`mosaic_tpu_rotations.py`, which also says how weights
become 2 a^2 p = (q.k + a)^2 + a^2 with a = 1 / scale), and everything is transposed, tokens on the lanes. With w =
v + 1 padded to whole tiles, the matmuls of a chunk and head stream

    p^T = (K Q^T + a)^2 + a^2           c rows    Q^T stays in the MXU: in K the lanes of other heads are zeroed
    [V|1 ; S|z]^T [p | W phi(Q)]^T      w rows    2 a^2 num and 2 a^2 den
    [S|z]^T += [V|1]^T phi(K)           w rows    phi(K)^T is taken transposed

Matmuls go to the MXUs in the order of the program, so each of these is written for eight heads before the next, and the
scores of a chunk before what the chunk before it does with its state.

Precision. bfloat16: one MXU pass, float32 accumulation; p, phi and the state are rounded to bfloat16 as operands, the
carried state itself is float32. float32: precision HIGHEST, products exact to float32.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels.mosaic_tpu_lanes import matmul
from pallas_kernels.taylor_attention import mosaic_tpu_arrays as arrays, mosaic_tpu_layout as layout
from pallas_kernels.taylor_attention.mosaic_tpu_chunk import Chunk, Decay, in_turn, transposed, write_heads
from pallas_kernels.taylor_attention.problem import Problem

BLOCK = 1024
"""Tokens of a grid step: 512 take 4 % longer by libtpu's schedule for v5e."""


def objection(p: Problem) -> str | None:
    """Why these kernels cannot serve a call, or None."""
    if len(set(p.dtypes)) > 1 or p.dtypes[0] not in ("bfloat16", "float32"):
        return f"dtypes of q, k, v are {p.dtypes}, not all bfloat16 or all float32"
    if p.k not in (8, 16, 24, 32):
        return f"feature_dim={p.k} is not one of 8, 16, 24, 32"
    return None if p.v in range(8, 129, 8) else f"head_dim={p.v} is not a multiple of 8 up to 128"


def forward(
    q, k, v, *, h, scale, eps=1e-6, normalize=True, initial_state=None, decay=None, return_state=False,
    return_den=False, chunk_size=layout.CHUNK, block_size=BLOCK, interpret=False,
) -> tuple[jax.Array, Any, Any]:  # fmt: skip
    """Packed forward pass on one device; on a mesh, call it inside `jax.shard_map` over batch and heads.

    Args:
      q, k: (b, t, h*k), bfloat16 or float32, t >= 1; k in 8, 16, 24, 32.
      v: (b, t, h*v), dtype of q; v a multiple of 8 up to 128.
      h: number of heads. Groups of 8 fill the lanes for k=16; others run on partial tiles or padded.
      scale, eps: Python floats.
      initial_state: `TaylorState` before the first token, or None for zeros.
      decay: (h,) float32 decay per token in [0, 1], or None for 1.
      return_state, return_den: whether the final state and the denominator are written.
      chunk_size: chunk length, a multiple of 128 (of 16 if interpreted).
      block_size: tokens of a grid step, at most.
      interpret: False, True or `pltpu.InterpretParams()`.

    Returns:
      y (b, t, h*v) in v.dtype; `TaylorState` or None; den (b, h, t) float32 without eps, or None.

    Raises:
      ValueError: arguments that contradict each other.
      NotImplementedError: a shape or dtype that the kernel does not cover.
    """
    q, scale, _ = layout.within_range(q, scale)
    g = layout.make_geometry(
        q, k, v, h=h, scale=scale, eps=eps, normalize=normalize, chunk_size=chunk_size,
        block_size=block_size,
    )  # fmt: skip
    blocks = layout.Blocks(g)
    inputs = {
        name: (arrays.pad_tokens(x, g), blocks.tokens(x.shape[-1] // h)) for name, x in {"q": q, "k": k, "v": v}.items()
    }
    inputs |= arrays.decay_input(decay, g)
    outputs = {"y": (arrays.tokens_struct(g, g.v), blocks.tokens(g.v))}
    if initial_state is not None:
        inputs["initial"] = (arrays.pack_state(initial_state, g), blocks.state())
    if return_den:
        outputs["den"] = (arrays.den_struct(g), blocks.den())
    if return_state:
        outputs["final"] = (arrays.state_struct(g), blocks.state())
    kernel = functools.partial(_kernel, geometry=g)
    found = arrays.call(kernel, g, inputs, outputs, interpret=interpret, name="taylor_attention_forward")
    den = arrays.unpack_den(found["den"], g) if return_den else None
    state = arrays.unpack_state(found["final"], g) if return_state else None
    return arrays.unpad_tokens(found["y"], g), state, den


def _kernel(refs, *, geometry):
    """One grid step. refs: q k v [log_decay] [initial], y [den] [final], and the scratch of `arrays.call`."""
    g, step, decay, carry = geometry, pl.program_id(2), Decay(refs, geometry), refs["carry"]

    @pl.when(step == 0)
    def _():
        carry[...] = refs["initial"][0] if "initial" in refs else jnp.zeros_like(carry)
        decay.prepare()

    chunks = [Chunk(refs, g, step, n) for n in range(g.block // g.chunk)]
    in_turn(chunks, functools.partial(_weigh, decay=decay), functools.partial(_attend, decay=decay))
    if "final" in refs:

        @pl.when(step == g.n_blocks - 1)
        def _():
            refs["final"][0] = carry[...]


def _weigh(chunk: Chunk, *, decay: Decay):
    """2 a^2 p^T of each head, and v^T of all: what does not wait for the state."""
    g = chunk.geometry
    q, k, v = (chunk.load(name) for name in ("q", "k", "v"))
    qt = q.T
    chunk.spread(qt, k)
    p = {}
    for heads in g.stages:
        scores = {h: chunk.shifted_scores(k, qt, h) for h in heads}
        p |= {h: decay.between(h, x * x + g.a * g.a).astype(g.dtype) for h, x in scores.items()}
    return p, transposed(v, g.v)


def _attend(chunk: Chunk, weighed, *, decay: Decay):
    """y, den, and the state after the chunk."""
    g, refs, (p, vt), y = chunk.geometry, chunk.refs, weighed, []
    for heads in g.stages:
        values = {h: chunk.value_operand(vt, h) for h in heads}
        total = {}
        for h in heads:
            left = [values[h], refs["carry"][h].astype(g.dtype)]
            right = [p[h], decay.since_start(h, chunk.query_features(h))]
            total[h] = matmul(jnp.concatenate(left, axis=1), jnp.concatenate(right))
        for h in heads:
            chunk.add_to_state(decay, h, values[h])
        y += [_output(total[h], g) for h in heads]
        if "den" in refs:
            for h in heads:
                refs["den"][0, 0, h : h + 1, chunk.lanes] = total[h][g.v : g.v + 1] * (0.5 / (g.a * g.a))
    write_heads(refs["y"], chunk.lanes, y, g)


def _output(total, g):
    """2 a^2 [num | den | 0]^T -> y^T, (v, c)."""
    twice = 2 * g.a * g.a
    factor = 1.0 / (total[g.v : g.v + 1] + twice * g.eps) if g.normalize else 1.0 / twice
    return total[: g.v] * factor
