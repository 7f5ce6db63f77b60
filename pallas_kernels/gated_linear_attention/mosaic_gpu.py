"""Gated linear attention on Hopper, decays per token and head: one Mosaic GPU kernel, run four times.

    out_i = sum_{j<=i} exp(a_i - a_j) (x_i.y_j) u_j + exp(a_i) S^T x_i
    S <- exp(a_c) S + sum_j exp(a_c - a_j) y_j u_j^T

for a chunk of c = 64 tokens, its sums a of log decays, and S before it; in reverse with i and j exchanged, S after it:

    y  = scan(q, k, v)              dv = reverse scan(k, q, dy)         S is dS
    dq = scan(dy, v, k)             dk = reverse scan(v, dy, q)         S are the transposes of S and of dS

because a cotangent weighs tokens as an output does. One thread block scans a batch row and head, a warpgroup for every
64 columns of u; both compute the scores. All tiles are (64, 64). The state is a float32 accumulator, of which wgmma
reads a rounded copy.

Pallas' own barriers are off. What a chunk stores to shared memory, wgmma read in the chunk before: its products are
awaited before `commit_smem` of the output, which is a barrier, as is the wait for the copy of an output before the
next is staged. A slot of the ring is loaded again after the first `commit_smem` of the next chunk.

A log decay weighs the pairs of a token before it and one from it on, so that its gradient is the sum of q.dq - k.dk
over the later tokens, which a scan computes as `dots` before it rounds dq and dk. Terms within a chunk cancel but for
their last bits, because both kernels round the same weights; those between chunks do not: so the sums restart every
`BORDER` chunks from <S, dS>, which the scans of dq and dk write there.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.gated_linear_attention.decays import log2_from_start
from pallas_kernels.mosaic_gpu_ring import Ring
from pallas_kernels.mosaic_gpu_tiles import PER_COLUMN, PER_ROW, WGMMA, WIDE, Mma, columns_to, launch, rows_to

CHUNK = 64
BORDER = 4
"""Chunks between the states that are written for the gradient of decays; with 16 its error grows from 0.6 % to 2 %."""
SHARED_BYTES = 225 * 2**10
TILE_BYTES = 2 * CHUNK * CHUNK


def forward(q, k, v, log_decay, state, *, return_state, interpret=None):
    """y, and the last state or None; arrays as `backends.py` says."""
    found = _scan("forward", q, k, v, _log2(log_decay), state, last=return_state, interpret=interpret)
    return found["out"], found.get("last")


def backward(q, k, v, log_decay, state, dy, dstate, *, interpret=None):
    """Gradients of q, k, v, log_decay and state, None where that is."""
    (b, t, h, _), log2 = v.shape, _log2(log_decay)
    turned = lambda x: None if x is None else x.swapaxes(2, 3)  # noqa: E731
    options: dict[str, Any] = {"interpret": interpret}
    dq = _scan("dq", dy, v, k, log2, turned(state), dots=q, borders=True, **options)
    dk = _scan("dk", v, dy, q, log2, turned(dstate), dots=k, borders=True, reverse=True, **options)
    dv = _scan("dv", k, q, dy, log2, dstate, last=state is not None, reverse=True, **options)

    def shared(x, like):
        """Sums over the heads that share one."""
        x = x.reshape(b, t, like.shape[2], -1, like.shape[3])
        return x[:, :, :, 0] if x.shape[3] == 1 else x.astype(jnp.float32).sum(3).astype(like.dtype)

    by_token = (dq["dots"] - dk["dots"]).sum(2)
    by_token = jnp.pad(by_token, ((0, 0), (0, 0), (0, -by_token.shape[2] % (BORDER * CHUNK))))
    later = (dq["borders"] * dk["borders"]).sum((3, 4, 5, 6))  # (b, h, borders): <S, dS>
    sums = lax.cumsum(by_token.reshape(*later.shape, -1), axis=3, reverse=True) + later[..., None]
    dlog_decay = sums.reshape(b, h, -1)[:, :, :t].swapaxes(1, 2)
    return shared(dq["out"], q), shared(dk["out"], k), dv["out"], dlog_decay, dv.get("last")


def _log2(log_decay):
    """(b, t, h) -> `log2_from_start`, (b, h, t')."""
    return log2_from_start(log_decay, CHUNK, -(-log_decay.shape[1] // CHUNK) * CHUNK).swapaxes(1, 2)


def _scan(
    name, x, y, u, log2, start, *, dots=None, borders=False, last=False, reverse=False, interpret=None
) -> dict[str, jax.Array]:
    """The equation of the module docstring, for each of the h heads of log2 (b, h, t').

    Args:
      x, y: (b, t, heads, k), heads dividing h; u: (b, t, heads, v).
      start: S before the scan (b, h, k, v), or None for zeros.
      dots: (b, t, heads, v), of whose rows the scalar products with those of out are returned.
      borders, last: whether S is returned at the later end of every `BORDER` chunks, and after the scan.
      reverse: from the last chunk to the first, j >= i.
      interpret: `plgpu.InterpretGPUParams` to run on a CPU.

    Returns:
      out (b, t, h, v) of the dtype of u, dots (b, h, v / 64, t'), borders (b, h, t' / 256, k / 64, v / 64, 64, 64),
      last (b, h, k, v), what was asked for.
    """
    (b, t), (h, padded) = u.shape[:2], log2.shape[1:]
    rows, columns = x.shape[3] // CHUNK, u.shape[3] // CHUNK
    given = {"x": x, "y": y, "u": u} | ({} if dots is None else {"z": dots})
    arrays = {key: _tiles(array, padded) for key, array in given.items()}
    width = {key: array.shape[3] // CHUNK for key, array in given.items()}
    sharing = {key: h // array.shape[2] for key, array in given.items()}
    each = sum(width.values())
    stages = min(4, (SHARED_BYTES // TILE_BYTES - columns * (rows + 2)) // each)
    count = padded // CHUNK

    def body(r):
        batch, head = lax.axis_index("b"), lax.axis_index("h")
        warpgroup = lax.axis_index("warpgroup") if columns > 1 else jnp.int32(0)
        row = lambda position: (count - 1 - position if reverse else position) * CHUNK  # noqa: E731
        loads = [(r.log2, lambda row: (batch, head, pl.ds(row, CHUNK)), lambda slot: r.log2_s.at[slot])]
        for key in arrays:
            for i in range(width[key]):
                at = lax.div(head, jnp.int32(sharing[key])) * width[key] + i
                index = lambda row, at=at: (batch, pl.ds(row, CHUNK), at)  # noqa: E731
                loads.append((getattr(r, key), index, lambda slot, key=key, i=i: getattr(r, f"{key}_s").at[slot, i]))
        ring = Ring(tuple(loads), row, jnp.int32(count), stages, r.full, r.empty if columns > 1 else None, lag=1)
        pl.when(warpgroup == 0)(ring.start)
        index = plgpu.broadcasted_iota(jnp.int32, (CHUNK,), 0, layout=PER_ROW)
        r.index_s[warpgroup] = index.astype(jnp.float32)
        state = tuple(
            plgpu.layout_cast(jnp.zeros((CHUNK, CHUNK), jnp.float32), WGMMA)
            if start is None
            else plgpu.load(r.start.at[batch, head, i, warpgroup], layout=WGMMA, optimized=False)
            for i in range(rows)
        )
        staging = None if interpret is None else (r.staging,)
        step = functools.partial(_chunk, r, Mma(staging, warpgroup), ring, warpgroup, reverse=reverse)

        def write_border(position, state):
            index = lax.div(row(position), jnp.int32(CHUNK))

            @pl.when((lax.rem(index + 1, jnp.int32(BORDER)) == 0) | (index == count - 1))
            def _():
                for i, part in enumerate(state):
                    r.borders[batch, head, lax.div(index, jnp.int32(BORDER)), i, warpgroup] = part

        def chunk(position, state):
            if borders and reverse:
                write_border(position, state)
            out, products, state = step(position, state)
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            r.out_s[warpgroup] = out.astype(u.dtype)
            if products is not None:
                r.dots_s[warpgroup] = products
            plgpu.commit_smem()
            at = pl.ds(row(position), CHUNK)
            plgpu.copy_smem_to_gmem(r.out_s.at[warpgroup], r.out.at[batch, at, head * columns + warpgroup])
            if products is not None:
                plgpu.copy_smem_to_gmem(r.dots_s.at[warpgroup], r.dots.at[batch, head, warpgroup, at])
            if borders and not reverse:
                write_border(position, state)
            return state

        state = lax.fori_loop(0, count, chunk, state)
        pl.when(warpgroup == 0)(ring.drain)
        plgpu.wait_smem_to_gmem(0)
        if last:
            for i, part in enumerate(state):
                r.last[batch, head, i, warpgroup] = part

    outputs = {"out": jax.ShapeDtypeStruct((b, padded, h * columns, CHUNK), u.dtype)}
    state_shape = (rows, columns, CHUNK, CHUNK)
    if dots is not None:
        outputs["dots"] = jax.ShapeDtypeStruct((b, h, columns, padded), jnp.float32)
    if borders:
        outputs["borders"] = jax.ShapeDtypeStruct((b, h, -(-count // BORDER), *state_shape), jnp.float32)
    if last:
        outputs["last"] = jax.ShapeDtypeStruct((b, h, *state_shape), jnp.float32)
    tile = lambda *slots: plgpu.SMEM((*slots, CHUNK, CHUNK), jnp.bfloat16, transforms=WIDE)  # noqa: E731
    scratch: dict[str, Any] = {f"{key}_s": tile(stages, width[key]) for key in arrays}
    scratch |= {"log2_s": plgpu.SMEM((stages, CHUNK), jnp.float32), "state_s": tile(columns, rows)}
    scratch |= {"weighted_s": tile(columns), "out_s": tile(columns)}
    scratch["index_s"] = plgpu.SMEM((columns, CHUNK), jnp.float32)
    scratch |= {"full": plgpu.Barrier(num_arrivals=each + 1, num_barriers=stages)}
    if columns > 1:
        scratch["empty"] = plgpu.Barrier(num_arrivals=1, num_barriers=stages)
    if dots is not None:
        scratch["dots_s"] = plgpu.SMEM((columns, CHUNK), jnp.float32)
    if interpret is not None:
        scratch["staging"] = tile(columns)
    if start is not None:
        start = start.astype(jnp.float32).reshape(b, h, rows, CHUNK, columns, CHUNK).swapaxes(3, 4)
    found = launch(
        f"gated_linear_{name}", body, {**arrays, "log2": log2, "start": start}, outputs, scratch,
        grid={"b": b, "h": h}, warpgroups=columns, auto_barriers=False, interpret=interpret,
    )  # fmt: skip
    found["out"] = found["out"].reshape(b, padded, h, u.shape[3])[:, :t]
    if last:
        found["last"] = found["last"].swapaxes(3, 4).reshape(b, h, rows * CHUNK, columns * CHUNK)
    return found


def _chunk(r, mma: Mma, ring: Ring, warpgroup, position, state, *, reverse: bool):
    """out (64, 64) of the warpgroup's columns, their products with the rows of z or None, and the next state."""
    slot = lax.rem(position, jnp.int32(ring.stages))
    plgpu.barrier_wait(r.full.at[slot])
    sums, total = plgpu.load(r.log2_s.at[slot], layout=PER_ROW), r.log2_s[slot, CHUNK - 1]
    since, until = jnp.exp2(sums), jnp.exp2(total - sums)
    reads, writes = (until, since) if reverse else (since, until)
    for i, part in enumerate(state):
        r.state_s[warpgroup, i] = part.astype(jnp.bfloat16)
    u = r.u_s.at[slot, warpgroup]
    weighted = plgpu.load(u, layout=WGMMA).astype(jnp.float32) * rows_to(writes)
    r.weighted_s[warpgroup] = weighted.astype(jnp.bfloat16)
    plgpu.commit_smem()

    @pl.when(warpgroup == 0)
    def _():
        ring.await_free(position)
        ring.refill(position)

    rows = len(state)

    def run(scores, past, out):
        for i in range(rows):
            plgpu.wgmma(scores, r.x_s.at[slot, i], r.y_s.at[slot, i].transpose((1, 0)))
        for i in range(rows):
            plgpu.wgmma(past, r.x_s.at[slot, i], r.state_s.at[warpgroup, i])
        weights = scores[...] * _between(r.log2_s.at[slot], r.index_s.at[warpgroup], reverse=reverse)
        mma.registers(out, weights.astype(jnp.bfloat16), u)
        return out[...] + past[...] * rows_to(reads)

    out = pl.run_scoped(run, *[plgpu.ACC((CHUNK, CHUNK), jnp.float32)] * 3)

    def add(*parts):
        for i, part in enumerate(parts):
            plgpu.wgmma(part, r.y_s.at[slot, i].transpose((1, 0)), r.weighted_s.at[warpgroup])

    kept = jnp.exp2(total)
    state = mma.update(tuple(part * kept for part in state), add)
    products = None
    if hasattr(r, "z_s"):
        z = plgpu.load(r.z_s.at[slot, warpgroup], layout=WGMMA)
        products = (out * z.astype(jnp.float32)).sum(axis=1)
    if ring.empty is not None:

        @pl.when(warpgroup == 1)
        def _():
            plgpu.barrier_arrive(ring.empty.at[slot])

    return out, products, state


def _between(log2, index, *, reverse: bool):
    """exp(a_i - a_j) for rows i and columns j <= i; in reverse exp(a_j - a_i) for j >= i; else 0.

    The indices come from shared memory: computed ones would hold registers through the loop.
    """
    row = rows_to(plgpu.load(log2, layout=PER_ROW))
    column = columns_to(plgpu.load(log2, layout=PER_COLUMN))
    i, j = rows_to(plgpu.load(index, layout=PER_ROW)), columns_to(plgpu.load(index, layout=PER_COLUMN))
    exponent, met = (column - row, j >= i) if reverse else (row - column, i >= j)
    return jnp.exp2(jnp.where(met, exponent, -jnp.inf))


def _tiles(x, padded: int):
    """(b, t, heads, width) -> (b, padded, heads * width / 64, 64), zeros after the last token."""
    b, t, heads, width = x.shape
    x = jnp.pad(x, ((0, 0), (0, padded - t), (0, 0), (0, 0))) if padded > t else x
    return x.reshape(b, padded, heads * width // CHUNK, CHUNK)
