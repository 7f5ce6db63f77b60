"""Gated linear attention on Hopper with decays per channel of the keys: three kernels.

With a_i the sum of log decays from the start of a chunk of c = 64 tokens, per channel, and the state S before it,

    S <- exp(a_c) * S + (exp(a_c - a) * K)^T V            `_states`, chunk by chunk
    Y = P V + (exp(a) * Q) S                              `outputs`, all chunks at once
    P_ij = sum_k Q_ik K_jk exp(a_ik - a_jk), j <= i       `hopper/levels.py`

Backward, the same two kernels run in reverse, with the cotangent dS of the state after a chunk:

    dS <- exp(a_c) * dS + (exp(a) * Q)^T dY               dV = P^T dY + (exp(a_c - a) * K) dS

and a third computes dQ, dK and the gradient of the log decays from S and dS (`mosaic_gpu_channel_vjp.py`). States go
through memory in bfloat16, one per chunk.

States are transposed, (values, keys), so decays are a row; a product with ones broadcasts it to all rows. Wide heads
are split into several heads of v that share q, k and decays; each repeats the scores.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.gated_linear_attention.mosaic_gpu_channel_layout import WARPGROUPS, Geometry, Stream, state_row
from pallas_kernels.gated_linear_attention.mosaic_gpu_channel_vjp import gradients
from pallas_kernels.hopper.levels import CHUNK, Chunk, as_operand, chunk_scratch, float_tile, load, scores, tile
from pallas_kernels.hopper.ring import Ring, scan_order, wait_last
from pallas_kernels.hopper.rows import Rows
from pallas_kernels.hopper.tiles import WGMMA, launch, start_state

ARRAYS = ("q", "k", "v", "decay", "states")


def outputs(name, q, k, v, decay, states, g: Geometry, *, reverse, interpret=None):
    """Y from the states before chunks; in reverse dV, from v = dY and the cotangents after chunks. All are tiles."""

    def body(r):
        stream = Stream(r, g, *ARRAYS)
        chunk = Chunk(r, stream.warpgroup, (), None, interpret)
        rows = Rows(r.totals_s, interpret is not None)
        stream.load(0)
        chunk.write_indices()
        read = "k" if reverse else "q"

        def each_own(function):
            """Calls `function(i)` for each tile i of value columns that this warpgroup computes."""
            for i in range(g.columns):
                if g.together:
                    pl.when(stream.warpgroup == i)(lambda i=i: function(i))
                else:
                    function(i)

        def step(position, _):
            stream.wait()
            chunk.turn = position
            stream.zero = chunk.zero()
            q, k, decay = map(stream.own, ("q", "k", "decay"))
            operands = [r.operands_s.at[stream.warpgroup + stream.zero, i] for i in range(2)]
            chunk.operand = operands[0]
            chunk.store(scores(rows, operands, q, k, decay, chunk.zero, reverse=reverse))
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            stream.share()
            owners = range(g.rows) if g.together else [stream.warpgroup]
            weights = [r.operands_s.at[owner + stream.zero, 0] for owner in owners]
            outs = [r.out_s.at[stream.place * g.columns + i + stream.zero] for i in range(g.columns)]
            values, states = stream.tiles("v"), stream.tiles("states")

            def multiply(i):
                past = [state.transpose((1, 0)) for state in states[i * g.rows :][: g.rows]]
                pairs = [(x, values[i]) for x in weights] + list(zip(stream.tiles(read), past, strict=True))
                outs[i][...] = chunk.products(*pairs).astype(jnp.bfloat16)

            def store(i):
                at = stream.batch + stream.zero, stream.rows(position), (stream.head + stream.zero) * g.columns + i
                plgpu.copy_smem_to_gmem(outs[i], r.out.at[at])

            each_own(multiply)
            plgpu.commit_smem()
            stream.share()
            stream.load(position + 1)
            each_own(store)

        lax.fori_loop(0, stream.count, step, None)
        plgpu.wait_smem_to_gmem(0)

    scratch = g.scratch(*ARRAYS) | {"operands_s": tile(WARPGROUPS, 2), "out_s": tile(g.places * g.columns)}
    scratch["totals_s"] = plgpu.SMEM((4 * WARPGROUPS, CHUNK), jnp.float32)
    scratch |= chunk_scratch(WARPGROUPS, interpret)
    return launch(
        name, body, dict(zip(ARRAYS, (q, k, v, decay, states), strict=True)),
        {"out": jax.ShapeDtypeStruct(v.shape, v.dtype)}, scratch,
        grid=g.grid, warpgroups=WARPGROUPS, approx_math=True, interpret=interpret,
    )["out"]  # fmt: skip


STAGES, BUFFERS = 3, 2


def forward(q, k, v, log_decay, state, options, *, interpret=None):
    """`mosaic_gpu.forward` for log_decay (b, t, h, k)."""
    g, tiles = _tiles(q, v)
    keys, values, decay = tiles(k), tiles(v), tiles(log_decay)
    states, last = _states("forward", keys, values, decay, state, g, last=options.return_state, interpret=interpret)
    name = "gated_linear_channel_output"
    y = outputs(name, tiles(q), keys, values, decay, states, g, reverse=False, interpret=interpret)
    return _tokens(y, v), last, states if options.save_states else None


def backward(q, k, v, log_decay, state, saved, dy, dstate, options, *, interpret=None):
    """`mosaic_gpu.backward` for log_decay (b, t, h, k)."""
    g, tiles = _tiles(q, v)
    queries, keys, values, decay, dout = map(tiles, (q, k, v, log_decay, dy))
    dstates, dinitial = _states(
        "reverse", queries, dout, decay, dstate, g, last=state is not None, reverse=True, interpret=interpret
    )
    dv = outputs("gated_linear_channel_dv", queries, keys, dout, decay, dstates, g, reverse=True, interpret=interpret)
    found = gradients(queries, keys, values, dout, decay, saved, dstates, g, interpret=interpret)

    def shared(x, like):
        """Sums over the heads or parts that share a head."""
        x = x.reshape(g.b, -1, like.shape[2], g.h // like.shape[2], like.shape[3])[:, : like.shape[1]]
        return x[:, :, :, 0] if x.shape[3] == 1 else x.astype(jnp.float32).sum(3).astype(like.dtype)

    like = {"dq": q, "dk": k, "ddecay": log_decay}
    dq, dk, dlog_decay = (shared(found[name], x) for name, x in like.items())
    return dq, dk, _tokens(dv, v), dlog_decay, dinitial


def _tiles(q, v):
    """Geometry, and function (b, t, heads, width) -> (b, n 64, heads * width / 64, 64), padded with zeros."""
    (b, t, h, v_dim), (g, k_dim) = v.shape, q.shape[2:]
    n, rows = -(-t // CHUNK), k_dim // CHUNK
    columns = 2 if rows == 2 and v_dim % (2 * CHUNK) == 0 else 1
    parts = v_dim // (columns * CHUNK)

    def tiles(x):
        x = jnp.pad(x, ((0, 0), (0, n * CHUNK - t), (0, 0), (0, 0))) if n * CHUNK > t else x
        return x.reshape(b, n * CHUNK, -1, CHUNK)

    return Geometry(b, h * parts, n, rows, columns, sharing=h * parts // g, parts=parts), tiles


def _tokens(x, like):
    return x.reshape(*x.shape[:2], *like.shape[2:])[:, : like.shape[1]]


def _states(name, keys, values, decay, start, g: Geometry, *, last, reverse=False, interpret=None):
    """States before every chunk, or in reverse their cotangents after it, and the last one (b, h, k, v) or None.

    A thread block scans 64 channels of the keys of a row and head. Warpgroup 1 issues TMA and weighs keys, up to two
    chunks ahead of warpgroup 0, which holds the state.

    keys, values, decay: tiles; start: the first state (b, h, k, v), or None for zeros. Returns transposed tiles (b h n
    v/64 k/64 64, 64) bfloat16, and a state (b, h, k, v) float32 or None.
    """

    def body(r):
        batch, head, c, warpgroup = (lax.axis_index(x) for x in ("b", "h", "keys", "warpgroup"))
        index = scan_order(g.n, reverse)
        at = {"keys": g.of_keys(head) * g.rows + c, "decay": g.of_decay(head) * g.rows + c}
        at |= {f"values {i}": head * g.columns + i for i in range(g.columns)}

        def copy(name, tile):
            array, _, i = name.partition(" ")

            def smem(slot):
                return getattr(r, f"{array}_s").at[(slot, int(i)) if i else slot]

            return getattr(r, array), lambda row: (batch, pl.ds(row, CHUNK), tile), smem

        loads = tuple(copy(*x) for x in at.items())
        ring = Ring(loads, lambda x: index(x) * CHUNK, jnp.int32(g.n), STAGES, r.full, None, lag=BUFFERS)
        chunk = Chunk(r, warpgroup, [r.parts_s.at[warpgroup, i] for i in range(2)], None, interpret)
        chunk.write_indices()

        def prepared(position):
            """Splits the decays of a chunk; returns its buffer and slot."""
            slot = lax.rem(position, jnp.int32(STAGES))
            plgpu.barrier_wait(r.full.at[slot])
            chunk.split(r.decay_s.at[slot])
            return lax.rem(position, jnp.int32(BUFFERS)), slot

        def weigh(position, _):
            @pl.when(position >= BUFFERS)
            def _():
                plgpu.barrier_wait(r.taken.at[lax.rem(position, jnp.int32(BUFFERS))])
                ring.refill(position)

            buffer, slot = prepared(position)
            factor = chunk.factor(r.sums_s)
            r.weighted_s[buffer] = (load(r.keys_s.at[slot]) * factor).astype(jnp.bfloat16)
            plgpu.commit_smem()
            plgpu.barrier_arrive(r.ready.at[buffer])

        @pl.when(warpgroup == 1)
        def _():
            ring.start()
            r.sums_s[...] = as_operand(chunk.j <= chunk.i if reverse else chunk.j > chunk.i)
            plgpu.commit_smem()
            lax.fori_loop(0, g.n, weigh, None)
            wait_last(r.taken, jnp.int32(g.n), BUFFERS)

        def scan(position, state):
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            for i, x in enumerate(state):
                r.state_s[i] = x.astype(jnp.bfloat16)
            buffer, slot = prepared(position)
            for i in range(g.columns):
                row = state_row(g, batch, head, index(position)) + (i * g.rows + c) * CHUNK
                plgpu.copy_smem_to_gmem(r.state_s.at[i], r.states.at[pl.ds(row, CHUNK)])
            kept = chunk.factor(plgpu.layout_cast(jnp.ones((CHUNK, CHUNK), jnp.bfloat16), WGMMA))
            plgpu.barrier_wait(r.ready.at[buffer])

            def add(*parts):
                for i, part in enumerate(parts):
                    plgpu.wgmma(part, r.values_s.at[slot, i].transpose((1, 0)), r.weighted_s.at[buffer])

            state = chunk.mma.update(tuple(x * kept for x in state), add)
            plgpu.barrier_arrive(r.taken.at[buffer])
            return state

        @pl.when(warpgroup == 0)
        def _():
            states = [None if start is None else r.start.at[batch, head, i, c] for i in range(g.columns)]
            state = lax.fori_loop(0, g.n, scan, tuple(map(start_state, states)))
            plgpu.wait_smem_to_gmem(0)
            if last:
                for i, x in enumerate(state):
                    r.last[batch, head, i, c] = x

    found = {"states": jax.ShapeDtypeStruct((g.b * g.h * g.n * g.columns * g.rows * CHUNK, CHUNK), jnp.bfloat16)}
    if last:
        found["last"] = jax.ShapeDtypeStruct((g.b, g.h, g.columns, g.rows, CHUNK, CHUNK), jnp.float32)
    scratch = {"keys_s": tile(STAGES), "values_s": tile(STAGES, g.columns), "decay_s": float_tile(STAGES)}
    scratch |= {"state_s": tile(g.columns), "parts_s": tile(2, 2), "sums_s": tile(), "weighted_s": tile(BUFFERS)}
    scratch |= chunk_scratch(2, interpret)
    scratch["full"] = plgpu.Barrier(num_arrivals=2 + g.columns, num_barriers=STAGES)
    scratch |= {x: plgpu.Barrier(num_arrivals=1, num_barriers=BUFFERS) for x in ("ready", "taken")}
    values_of_head = g.parts * g.columns
    if start is not None:  # (b, h, k, v) -> (b, h parts, columns, rows, 64, 64), each tile transposed
        tiled = start.astype(jnp.float32).reshape(g.b, -1, g.rows, CHUNK, values_of_head, CHUNK)
        start = tiled.transpose(0, 1, 4, 2, 5, 3).reshape(g.b, g.h, g.columns, g.rows, CHUNK, CHUNK)
    found = launch(
        f"gated_linear_channel_states_{name}", body,
        {"keys": keys, "values": values, "decay": decay, "start": start}, found, scratch,
        grid={"b": g.b, "h": g.h, "keys": g.rows}, warpgroups=2, approx_math=True,
        interpret=interpret,
    )  # fmt: skip
    if not last:
        return found["states"], None
    tiled = found["last"].reshape(g.b, -1, values_of_head, g.rows, CHUNK, CHUNK).transpose(0, 1, 3, 5, 2, 4)
    return found["states"], tiled.reshape(g.b, -1, g.rows * CHUNK, values_of_head * CHUNK)
