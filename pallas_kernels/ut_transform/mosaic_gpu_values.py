"""Gradients of `delta_values` on Hopper, from the states of both passes: every chunk by itself.

With the names of `mosaic_gpu_vjp.py` and of `delta_chunks.mosaic_gpu_vjp`, S before and U after the chunk, z the
gradient of the values, read and write made of the keys in registers:

    dmix = (dy + write U) (v + read S)^T        dread = z S^T       dwrite = y U^T      dkeep = sum_v S * U

and from these the gradients of keys, beta and decays. What the two kernels of gradients would hand on, 6 arrays of the
size of the keys, and read and write, stay in the multiprocessor.

Barriers as in `mosaic_gpu_vjp.py`. v + read S is stored in place of the values and dmix in place of dy: each warp has
loaded what it writes over. `commit_smem` is between each store and the wgmma that reads it.
"""

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.delta_chunks import mosaic_gpu as recurrence, mosaic_gpu_vjp as recurrence_vjp
from pallas_kernels.gated_linear_attention.mosaic_gpu_levels import CHUNK, load, tile
from pallas_kernels.mosaic_gpu_tiles import rows_to
from pallas_kernels.ut_transform import mosaic_gpu_channel_values, mosaic_gpu_channel_vjp, mosaic_gpu_vjp
from pallas_kernels.ut_transform.mosaic_gpu import Array, InChunk, arrays_of, by_chunk, tokens


def backward(k, v, beta, log_decay, keep, state, y, dy, dkeys, kept, *, interpret=None):
    """As `values_api.py` says; kept: mix, read, write and the states before chunks."""
    mix, read, write, states = kept
    write = k if write is None else write
    dv, dstate, after = recurrence.recur(
        dy, write, read, mix, keep, None, reverse=True, save_states=True, interpret=interpret
    )
    dstate = None if state is None else dstate
    channel = log_decay is not None and log_decay.ndim == 4
    if k.shape[3] == v.shape[3] == CHUNK:
        gradients = mosaic_gpu_channel_values.gradients if channel else _gradients
        dk, dbeta, ddecay = gradients(k, v, beta, log_decay, y, dy, dv, dkeys, states, after, interpret=interpret)
    else:
        found = recurrence_vjp.gradients(v, read, write, y, dy, dv, states, after, interpret=interpret)
        dread, dwrite, dmix, dkeep = found
        dk, dbeta, ddecay = (mosaic_gpu_channel_vjp if channel else mosaic_gpu_vjp).backward(
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
        read = lambda _: c.mma.product(c.tile("dvalues"), before.transpose((1, 0)))  # noqa: E731
        write = lambda _: c.mma.product(c.tile("y"), after.transpose((1, 0)))  # noqa: E731
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
