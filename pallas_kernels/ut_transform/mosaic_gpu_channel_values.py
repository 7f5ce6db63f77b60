"""Gradients of `delta_values` with decays per channel on Hopper, from the states of both passes: every chunk by itself.

As `mosaic_gpu_values.py` for other decays. Half of the channels of read and write are made of the keys where the levels
of decays end with those to the borders of the chunk, and multiplied with these rows of the states there:

    mixed = v + read S          dmix = (dy + write U) mixed^T           dread = z S^T           dwrite = y U^T

Barriers as in `mosaic_gpu_channel.py`. For two blocks on a multiprocessor tiles are used in turns: mixed takes the
place of the values, then an operand of the inverse, then T; dmix takes that of dy, and H that of dmix; another operand
of the inverse takes that of levels. `commit_smem` is between the last wgmma that reads a tile and its next stores.
"""

import functools

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.gated_linear_attention.mosaic_gpu_levels import CHUNK, half_tile, load, tile
from pallas_kernels.mosaic_gpu_tiles import PER_COLUMN, WGMMA
from pallas_kernels.ut_transform import mosaic_gpu_channel_vjp as vjp
from pallas_kernels.ut_transform.mosaic_gpu import HALF, InChunk, by_chunk, halves, numbers, tokens
from pallas_kernels.ut_transform.mosaic_gpu_channel import levels, scores


def gradients(k, v, beta, log_decay, y, dy, dv, dkeys, states, after, *, interpret=None):
    """dk, dbeta and the gradient of log decays (b, t, h, 64), of keys and values of 64 channels."""
    sizes = k.shape[0], k.shape[2], k.shape[1] // CHUNK
    in_halves = {"x": k, "decay": log_decay, "dkeys": dkeys, "y": y, "dvalues": dv, "before": states, "after": after}
    inputs = {name: halves(x) for name, x in in_halves.items()}
    inputs |= {"values": tokens(v), "dy": tokens(dy), "beta": numbers(beta)}

    def chunk(c: InChunk):
        c.r.kept_s[...] = sum((load(x) * load(y)).sum(1) for x, y in zip(*_states(c), strict=True))
        none = plgpu.layout_cast(jnp.zeros((CHUNK, HALF), jnp.float32), WGMMA)
        part, sums = levels(c, functools.partial(_border, c), (none,) * 4)
        _stage_dmix(c, *(c.rows.concatenate(*both) for both in (sums[:2], sums[2:])))
        vjp.stage(c, "dy", scores(c, part), _cotangents(c))

    places = {"below_s": lambda r: r.levels_s.at[pl.ds(0, 2)], "square_s": lambda r: r.in_turns_s[0].at[0]}
    places |= {"values_s": lambda r: r.in_turns_s[0], "top_s": lambda r: r.in_turns_s[1]}
    scratch = vjp.scratch_of_levels() | {"kept_s": plgpu.SMEM((CHUNK,), jnp.float32)}
    scratch["in_turns_s"] = plgpu.RefUnion(tile(1, 1), half_tile(2))
    found = by_chunk(
        "values_gradients_channel", chunk, inputs, vjp.outputs_of(inputs), scratch, sizes=sizes, stages=1,
        in_place=vjp.IN_PLACE, places=places, interpret=interpret,
    )  # fmt: skip
    return found["dx"], found["dbeta"].swapaxes(1, 2), found["ddecay"]


def _states(c: InChunk):
    """Halves, of values, of S and of U."""
    return ([c.tile(name, i) for i in range(2)] for name in ("before", "after"))


def _border(c: InChunk, half, until, since, sums):
    """Adds the products of this half of the channels of read and write with the states: halves, of values, of both."""
    keys, rows = load(c.shared("x").at[half]), pl.ds(half * HALF, HALF)
    operands = ((x * keys).astype(jnp.bfloat16) for x in (-since, until))
    products = [(x, state.at[rows]) for x, states in zip(operands, _states(c), strict=True) for state in states]

    def add(*accs):
        for acc, (x, state) in zip(accs, products, strict=True):
            c.mma.registers(acc, x, state)

    return c.mma.update(sums, add)


def _stage_dmix(c: InChunk, mixed, total):
    """Writes dmix in place of dy, of read S and write U."""
    values, dy = c.tile("values"), c.tile("dy")
    values[...] = (mixed + load(values)).astype(jnp.bfloat16)
    total = (total + load(dy)).astype(jnp.bfloat16)
    plgpu.commit_smem()

    def multiply(acc):
        c.mma.registers(acc, total, values.transpose((1, 0)))
        return acc[...]

    dy[...] = pl.run_scoped(multiply, plgpu.ACC((CHUNK, CHUNK), jnp.float32)).astype(jnp.bfloat16)
    plgpu.commit_smem()


def _cotangents(c: InChunk) -> vjp.Cotangents:
    """dread, dwrite and dkeep."""

    def product(tokens: str, states: str, half):
        def run(acc):
            for i in range(2):
                rows = c.tile(states, i).at[pl.ds(half * HALF, HALF)]
                plgpu.wgmma(acc, c.tile(tokens, i), rows.transpose((1, 0)))
            return acc[...]

        return pl.run_scoped(run, plgpu.ACC((CHUNK, HALF), jnp.float32))

    return vjp.Cotangents(
        read=functools.partial(product, "dvalues", "before"),
        write=functools.partial(product, "y", "after"),
        keep=lambda half: plgpu.load(c.r.kept_s.at[pl.ds(half * HALF, HALF)], layout=PER_COLUMN),
    )
