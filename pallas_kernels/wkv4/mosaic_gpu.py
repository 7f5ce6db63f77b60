"""wkv4 on Hopper, forward: sums of every piece of time, then outputs.

    y_t = (num_{t-1} + e^{u + k_t} v_t) / (den_{t-1} + e^{u + k_t})
    num_t = e^{-w} num_{t-1} + e^{k_t} v_t          den_t = e^{-w} den_{t-1} + e^{k_t}

The first kernel reads k and v of all pieces but the last, the second reads all. Calls with many channels have one piece
and no first kernel.

Pallas' own barriers are off. `commit_smem` after a chunk is a barrier, after which its slot of the ring is reloaded.
Outputs are stored after the last token of a chunk, because a store delays later loads.
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels.hopper.tiles import launch
from pallas_kernels.wkv4.mosaic_gpu_layout import CHUNK, Block, Inputs, Tokens, inputs, nothing, scratch
from pallas_kernels.wkv4.state import EMPTY, Wkv4State
from pallas_kernels.wkv4.sums import LOG2_E, Sums

STAGES = 3


def forward(k, v, w, u, keep, state, options, *, interpret=None):
    """y, the last state or None, and the sums for `backward` or None (contract in `api.py`).

    The saved sums precede every chunk, (2, b, t' / 16, d) float32: mean value, and base-2 logarithm of the weights.
    """
    given = inputs(k, v, w, u, keep)
    names = names_of(given, "k", "v")
    own = sums_of_pieces(given, interpret=interpret) if given.pieces > 1 else None

    def body(r):
        block = Block(r, given, names, STAGES)
        sums = nothing() if state is None else first_sums(block)
        if own is not None:
            sums = block.joined(sums, r.own, block.piece, lambda i: i)

        def chunk(number, tokens, sums):
            if options.save_states:
                _save(r, block, number, sums)
            outputs = []
            for i, (key, value) in enumerate(zip(tokens.keys(), tokens.load("v"), strict=True)):
                sums, read, _ = step(tokens, i, sums, key, value)
                outputs.append(read.num / read.den)
            for i, y in enumerate(outputs):
                r.y[block.batch, number * CHUNK + i, block.channels] = y.astype(v.dtype)
            return sums

        sums = block.scan(chunk, sums)
        if options.return_state:
            _save_last(r, block, sums)

    b, _, d = given.shape
    outputs = {"y": jax.ShapeDtypeStruct(given.shape, v.dtype)}
    if options.save_states:
        outputs["saved"] = jax.ShapeDtypeStruct((2, b, given.chunks, d), jnp.float32)
    if options.return_state:
        outputs |= {name: jax.ShapeDtypeStruct((b, d), jnp.float32) for name in ("num", "den", "max")}
    operands = given.arrays | {"own": own} | start_operands(state)
    found = launch(
        "wkv4_forward", body, operands, outputs, scratch(given, names, STAGES), grid=given.grid(given.pieces),
        approx_math=True, interpret=interpret,
    )  # fmt: skip
    last = Wkv4State(found["num"], found["den"], found["max"]) if options.return_state else None
    return found["y"][:, : k.shape[1]], last, found.get("saved")


def sums_of_pieces(given: Inputs, *, interpret) -> jax.Array:
    """num, den, top (3, b, pieces - 1, d) of each piece but the last, from empty sums."""
    names = names_of(given, "k", "v")

    def body(r):
        block = Block(r, given, names, STAGES)

        def chunk(_, tokens, sums):
            for i, (key, value) in enumerate(zip(tokens.keys(), tokens.load("v"), strict=True)):
                sums = write(tokens, i, sums._replace(top=tokens.reset(sums.top, i)), key, value)
            return sums

        save_sums(r.own, block, block.piece, block.scan(chunk, nothing()))

    like = given.sums_like(given.pieces - 1)
    return launch(
        "wkv4_pieces", body, given.arrays, {"own": like}, scratch(given, names, STAGES),
        grid=given.grid(given.pieces - 1), approx_math=True, interpret=interpret,
    )["own"]  # fmt: skip


def names_of(given: Inputs, *names: str) -> tuple[str, ...]:
    """Arrays that a ring loads."""
    return (*names, "resets") if given.documents else names


def write(tokens: Tokens, i: int, before: Sums, key, value) -> Sums:
    """The sums after a token."""
    return before._replace(top=before.top - tokens.decay(i)).with_term(key, value)


def step(tokens: Tokens, i: int, sums: Sums, key, value) -> tuple[Sums, Sums, Sums]:
    """Sums after a token, sums with its own weight for reading, and sums before it."""
    before = sums._replace(top=tokens.reset(sums.top, i))
    return write(tokens, i, before, key, value), before.with_term(key + tokens.block.u, value), before


def start_operands(state: Wkv4State | None) -> dict[str, jax.Array | None]:
    """A state as operands of a kernel, for `first_sums`."""
    parts = (None,) * 3 if state is None else state
    return {f"start_{name}": x for name, x in zip(Wkv4State._fields, parts, strict=True)}


def first_sums(block: Block) -> Sums:
    """The state before the first token."""
    refs = (getattr(block.r, f"start_{name}") for name in Wkv4State._fields)
    num, den, largest = (Block._load(ref.at[block.batch, block.channels]) for ref in refs)
    return Sums(num, den, largest * LOG2_E)


def save_sums(ref, block: Block, piece, sums: Sums):
    """Writes (3, b, pieces, d)."""
    for i, x in enumerate(sums):
        ref[i, block.batch, piece, block.channels] = x


def _save(r, block: Block, number, sums: Sums):
    """Mean value; 0 for empty sums."""
    mean = jnp.where(sums.den > 0, sums.num / sums.den, 0.0)
    r.saved[0, block.batch, number, block.channels] = mean
    r.saved[1, block.batch, number, block.channels] = jnp.maximum(sums.top + jnp.log2(sums.den), EMPTY)


def _save_last(r, block: Block, sums: Sums):
    @pl.when(block.piece == block.given.pieces - 1)
    def _():
        for ref, x in ((r.num, sums.num), (r.den, sums.den), (r.max, sums.top / LOG2_E)):
            ref[block.batch, block.channels] = x
