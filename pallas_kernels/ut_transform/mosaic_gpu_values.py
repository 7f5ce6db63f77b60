"""Gradients of `delta_values` on Hopper, chunk by chunk, from the states of both passes.

With the notation of `mosaic_gpu_vjp.py` and `delta_chunks.mosaic_gpu_vjp`, S before and U after the chunk, z the
gradient of the values, and read and write computed from the keys in registers:

    dmix = (dy + write U) (v + read S)^T        dread = z S^T       dwrite = y U^T      dkeep = sum_v S * U

and from these the gradients of keys, beta and decays.

Barriers: see `mosaic_gpu_vjp.py`. v + read S overwrites the values and dmix overwrites dy; each warp has loaded what it
overwrites. `commit_smem` separates each store from the wgmma that reads it.

With decays per channel, half of the channels of read and write are computed after the levels of decays, and multiplied
with these rows of the states:

    mixed = v + read S          dmix = (dy + write U) mixed^T           dread = z S^T           dwrite = y U^T

with the barriers of `mosaic_gpu_channel.py`. Tiles share memory: the values with mixed, then an operand of the inverse,
then T; dy with dmix, then H; levels with another operand of the inverse. `commit_smem` separates the last wgmma that
reads a tile from its next stores.
"""

import functools

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.delta_chunks import mosaic_gpu as recurrence, mosaic_gpu_vjp as recurrence_vjp
from pallas_kernels.hopper.levels import CHUNK, half_tile, load, tile
from pallas_kernels.hopper.tiles import PER_COLUMN, WGMMA, products, rows_to
from pallas_kernels.ut_transform import mosaic_gpu_channel_vjp as channel_vjp, mosaic_gpu_vjp
from pallas_kernels.ut_transform.mosaic_gpu import HALF, Array, InChunk, arrays_of, by_chunk, halves, numbers, tokens
from pallas_kernels.ut_transform.mosaic_gpu_channel import levels, scores


def _channel_gradients(k, v, beta, log_decay, y, dy, dv, dkeys, states, after, *, interpret=None):
    """dk, dbeta and the gradient of log decays (b, t, h, 64), of keys and values of 64 channels."""
    sizes = k.shape[0], k.shape[2], k.shape[1] // CHUNK
    in_halves = {"x": k, "decay": log_decay, "dkeys": dkeys, "y": y, "dvalues": dv, "before": states, "after": after}
    inputs = {name: halves(x) for name, x in in_halves.items()}
    inputs |= {"values": tokens(v), "dy": tokens(dy), "beta": numbers(beta)}

    def chunk(c: InChunk):
        c.r.kept_s[...] = sum((load(x) * load(y)).sum(1) for x, y in zip(*_states(c), strict=True))
        none = plgpu.layout_cast(jnp.zeros((CHUNK, HALF), jnp.float32), WGMMA)
        part, sums = levels(c, functools.partial(_border, c), (none,) * 4)
        _stage_products(c, *(c.rows.concatenate(*both) for both in (sums[:2], sums[2:])))
        channel_vjp.stage(c, "dy", scores(c, part), _cotangents(c))

    places = {"below_s": lambda r: r.levels_s.at[pl.ds(0, 2)], "square_s": lambda r: r.in_turns_s[0].at[0]}
    places |= {"values_s": lambda r: r.in_turns_s[0], "top_s": lambda r: r.in_turns_s[1]}
    scratch = channel_vjp.scratch_of_levels() | {"kept_s": plgpu.SMEM((CHUNK,), jnp.float32)}
    scratch["in_turns_s"] = plgpu.RefUnion(tile(1, 1), half_tile(2))
    found = by_chunk(
        "values_gradients_channel", chunk, inputs, channel_vjp.outputs_of(inputs), scratch, sizes=sizes, stages=1,
        in_place=channel_vjp.IN_PLACE, places=places, interpret=interpret,
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


def _stage_products(c: InChunk, mixed, total):
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


def _cotangents(c: InChunk) -> channel_vjp.Cotangents:
    """dread, dwrite and dkeep."""

    def product(tokens: str, states: str, half):
        def run(acc):
            for i in range(2):
                rows = c.tile(states, i).at[pl.ds(half * HALF, HALF)]
                plgpu.wgmma(acc, c.tile(tokens, i), rows.transpose((1, 0)))
            return acc[...]

        return pl.run_scoped(run, plgpu.ACC((CHUNK, HALF), jnp.float32))

    return channel_vjp.Cotangents(
        read=functools.partial(product, "dvalues", "before"),
        write=functools.partial(product, "y", "after"),
        keep=lambda half: plgpu.load(c.r.kept_s.at[pl.ds(half * HALF, HALF)], layout=PER_COLUMN),
    )


def backward(k, v, beta, log_decay, keep, state, y, dy, dkeys, kept, *, interpret=None):
    """Gradients, as in `values_api.py`; kept: mix, read, write and the states before chunks."""
    mix, read, write, states = kept
    write = k if write is None else write
    dv, dstate, after = recurrence.recur(
        dy, write, read, mix, keep, None, reverse=True, save_states=True, interpret=interpret
    )
    dstate = None if state is None else dstate
    channel = log_decay is not None and log_decay.ndim == 4
    if k.shape[3] == v.shape[3] == CHUNK:
        gradients = _channel_gradients if channel else _gradients
        dk, dbeta, ddecay = gradients(k, v, beta, log_decay, y, dy, dv, dkeys, states, after, interpret=interpret)
    else:
        found = recurrence_vjp.gradients(v, read, write, y, dy, dv, states, after, interpret=interpret)
        dread, dwrite, dmix, dkeep = found
        dk, dbeta, ddecay = (channel_vjp if channel else mosaic_gpu_vjp).backward(
            k, beta, log_decay, dmix, dread, dwrite, dkeep, dkeys, interpret=interpret
        )
    return dk, dv, dbeta, ddecay, dstate


def _gradients(k, v, beta, log_decay, y, dy, dv, dkeys, states, after, *, interpret):
    """dk, dbeta and the gradient of log decays, of keys and values of 64 channels."""
    sizes, inputs = arrays_of(k, beta, log_decay)
    arrays = {"values": v, "y": y, "dy": dy, "dvalues": dv, "dkeys": dkeys}
    inputs |= {name: tokens(x) for name, x in arrays.items()}
    inputs |= {"before": Array(states, 1), "after": Array(after, 1)}

    def chunk(c: InChunk):
        before, after = c.tile("before"), c.tile("after")
        _stage_dmix(c)

        def read(_):
            return products((c.tile("dvalues"), before.transpose((1, 0))))

        def write(_):
            return products((c.tile("y"), after.transpose((1, 0))))

        mosaic_gpu_vjp.stage(c, c.tile("dy"), read, write)
        if log_decay is not None:
            plgpu.commit_smem()
            c.r.around_s[...] = (load(before) * load(after)).sum(1)

    outputs = mosaic_gpu_vjp.outputs_of(inputs, sizes)
    if log_decay is not None:
        outputs["around"] = outputs["slopes"]
    found = by_chunk(
        "values_gradients", chunk, inputs, outputs, {"square_s": tile(1)}, sizes=sizes, stages=1, interpret=interpret
    )
    dk, dbeta = found["dx"].reshape(k.shape), found["dbeta"].swapaxes(1, 2)
    if log_decay is None:
        return dk, dbeta, None
    dkeep = found["around"].reshape(*sizes, CHUNK).sum(3).swapaxes(1, 2)
    return dk, dbeta, mosaic_gpu_vjp.of_decays(found, inputs["log2"], dkeep)


def _stage_dmix(c: InChunk):
    """Writes dmix in place of dy."""
    keys = load(c.tile("x"))
    read, write = -keys, keys
    if "log2" in c.given:
        since, until = c.borders()
        read, write = keys * rows_to(-since), keys * rows_to(until)

    def run(acc, weights, start, values):
        c.mma.registers(acc, weights.astype(jnp.bfloat16), start)
        return (acc[...] + load(values)).astype(jnp.bfloat16)

    def plus(weights, start, values):
        acc = plgpu.ACC((CHUNK, CHUNK), jnp.float32)
        return pl.run_scoped(lambda acc: run(acc, weights, start, values), acc)

    mixed = plus(read, c.tile("before"), c.tile("values"))
    c.tile("values")[...] = mixed
    total = plus(write, c.tile("after"), c.tile("dy"))
    plgpu.commit_smem()

    def multiply(acc):
        c.mma.registers(acc, total, c.tile("values").transpose((1, 0)))
        return acc[...]

    c.tile("dy")[...] = pl.run_scoped(multiply, plgpu.ACC((CHUNK, CHUNK), jnp.float32)).astype(jnp.bfloat16)
    plgpu.commit_smem()
