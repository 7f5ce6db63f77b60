"""Gated linear attention on TPU with decays per token and head: one Pallas Mosaic kernel each for forward and backward.

With a_i the sum of log decays from the start of a chunk of c tokens, D_ij = exp(a_i - a_j) for j <= i, else 0, e_i =
exp(a_i), w_j = exp(a_c - a_j), and the state S before the chunk:

    P = (Q K^T) * D        Y = P V + e * (Q S)        S <- exp(a_c) S + K^T (w * V)

Backward, with G = (dY V^T) * D, the cotangent dS of the state after the chunk, and R = P * (dY V^T):

    dQ = G K + (e * dY) S^T      dK = G^T Q + (w * V) dS^T      dV = P^T dY + w * (K dS)
    dS <- exp(a_c) dS + Q^T (e * dY)

The gradient of the log decay of token m sums over all pairs around it:

    dg_m = sum_{i>=m} (sum_j R_ij - sum_j R_ji) + sum_{i>=m} e_i dY_i.(Q S)_i + sum_{j<m} w_j V_j.(K dS)_j
           + exp(a_c) <S, dS>

No sum exceeds a chunk: the sum of q.dq - k.dk over all later tokens would accumulate rounding. The backward kernel
processes blocks from the last to the first, recomputes the states of a block from the saved state before it, and then
processes its chunks in reverse. Scores have keys on the sublanes.

Matmuls are issued in program order, so work that does not need the state comes first, for all heads of a chunk.
bfloat16: P, G and the state are rounded as operands, sums are float32.
"""

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.gated_linear_attention.decays import log2_from_start, sums_to_end
from pallas_kernels.gated_linear_attention.mosaic_tpu_layout import (
    CHUNK,
    Arrays,
    Geometry,
    call,
    make_geometry,
    unpacked,
)
from pallas_kernels.tpu.lanes import matmul, matmul_nt, only_lanes


def forward(q, k, v, log_decay, state, options, *, chunk=CHUNK, interpret=False):
    """y, the last state or None, the states before each block or None (contract in `api.py`)."""
    g = make_geometry(q, v, chunk=chunk)
    arrays = Arrays(g)
    inputs = {"q": arrays.keys(q), "k": arrays.keys(k), "v": arrays.values(v)}
    inputs["log2"] = arrays.decays(log2_from_start(log_decay, g.chunk, g.n_blocks * g.block))
    if state is not None:
        inputs["initial"] = arrays.state(state)
    outputs = {"y": arrays.values()}
    if options.return_state:
        outputs["final"] = arrays.state()
    if options.save_states:
        outputs["borders"] = arrays.borders()
    found = call(_forward_kernel, g, inputs, outputs, interpret=interpret, name="gated_linear_forward", states=0)
    last = unpacked(found["final"], g) if options.return_state else None
    return found["y"][:, : g.t].reshape(v.shape), last, found.get("borders")


def backward(q, k, v, log_decay, state, borders, dy, dstate, options, *, chunk=CHUNK, interpret=False):
    """Gradients of q, k, v, log_decay and state (or None)."""
    g = make_geometry(q, v, chunk=chunk)
    arrays = Arrays(g, backwards=True)
    inputs = {"q": arrays.keys(q), "k": arrays.keys(k), "v": arrays.values(v), "dy": arrays.values(dy)}
    inputs |= {
        "log2": arrays.decays(log2_from_start(log_decay, g.chunk, g.n_blocks * g.block)),
        "borders": arrays.borders(borders),
    }
    if dstate is not None:
        inputs["initial"] = arrays.state(dstate)
    outputs = {"dq": arrays.key_gradients(), "dk": arrays.key_gradients(), "dv": arrays.values()}
    outputs["da"] = arrays.decays()
    if state is not None:
        outputs["final"] = arrays.state()
    found = call(
        _backward_kernel, g, inputs, outputs, interpret=interpret, name="gated_linear_backward", states=g.chunks
    )

    def keys(x):
        """Sums over the grid steps that share a head."""
        x = x[:, : g.t].reshape(g.b, g.t, g.g, -1, g.k)
        return (x[:, :, :, 0] if x.shape[3] == 1 else x.sum(3)).astype(q.dtype)

    da = found["da"].reshape(g.b, g.h, -1).swapaxes(1, 2)
    dinitial = unpacked(found["final"], g) if state is not None else None
    dv = found["dv"][:, : g.t].reshape(v.shape)
    return keys(found["dq"]), keys(found["dk"]), dv, sums_to_end(da, g.chunk)[:, : g.t], dinitial


class _Chunk:
    """One chunk of a block.

    rows (heads, c) and columns (c, heads): a; last (1, heads): a_c; `since`, `until` and `whole`: e, w and exp(a_c)
    broadcast over the values of a pack.
    """

    def __init__(self, refs, g: Geometry, n: int):
        self.refs, self.g, self.n = refs, g, n
        self.at = slice(n * g.chunk, (n + 1) * g.chunk)
        self.rows = refs["log2"][0, 0, :, self.at]
        self.columns = self.rows.T
        self.last = self.columns[-1:]

    def keys(self, name: str, pack: int):
        return self.refs[name][0, self.at, self.g.key_lanes(pack)]

    def values(self, name: str, pack: int):
        return self.refs[name][0, self.at, self.g.value_lanes(pack)]

    def heads(self, pack: int):
        """(head of the grid step, head of the pack)."""
        return [(pack * self.g.pack + i, i) for i in range(self.g.pack)]

    def key_head(self, x, i: int):
        """x (c, keys) with zeros outside the lanes of head i of a pack."""
        return x if self.g.shared else only_lanes(x, i * self.g.k, self.g.k)

    def value_head(self, x, i: int):
        return only_lanes(x, i * self.g.v, self.g.v)

    def between(self, head: int, *, queries: int):
        """D (c, c), with queries on axis `queries`."""
        row, column = self.rows[head : head + 1], self.columns[:, head : head + 1]
        first, second = (lax.broadcasted_iota(jnp.int32, (self.g.chunk,) * 2, axis) for axis in (0, 1))
        exponent, met = (column - row, first >= second) if queries == 0 else (row - column, first <= second)
        return jnp.exp2(jnp.where(met, exponent, -jnp.inf))

    def over_values(self, factors, pack: int):
        """factors (rows, heads) -> (rows, values of the pack)."""
        parts = [factors[:, head : head + 1] for head, _ in self.heads(pack)]
        if len(parts) == 1:
            return jnp.broadcast_to(parts[0], (len(factors), self.g.state[1]))
        lane = lax.broadcasted_iota(jnp.int32, (len(factors), self.g.state[1]), 1)
        return jnp.where(lane < self.g.v, *parts)

    def since(self, pack: int):
        # Exponentials after the broadcast, which is slow and shared.
        return jnp.exp2(self.over_values(self.columns, pack))

    def until(self, pack: int):
        return jnp.exp2(self.over_values(self.last, pack) - self.over_values(self.columns, pack))

    def whole(self, pack: int):
        return jnp.exp2(self.over_values(self.last, pack))

    def added(self, keys, values):
        """keys^T values, block diagonal over heads."""
        g = self.g
        found = matmul(keys, values.astype(g.dtype), ((0,), (0,)))
        if g.shared or g.pack == 1:
            return found
        row, lane = (lax.broadcasted_iota(jnp.int32, g.state, axis) for axis in (0, 1))
        return jnp.where((row < g.k) == (lane < g.v), found, 0.0)

    def after(self, state, pack: int):
        """The state after the chunk."""
        new = self.added(self.keys("k", pack), self.values("v", pack).astype(jnp.float32) * self.until(pack))
        return self.whole(pack) * state + new

    def per_head(self, x, pack: int):
        """Sums of x (c, values) over the values of each head, [(c, 1)]."""
        return [self.value_head(x, i).sum(1, keepdims=True) for _, i in self.heads(pack)]


def start(refs):
    """Sets the carry at the first block of a scan."""

    @pl.when(pl.program_id(2) == 0)
    def _():
        refs["carry"][...] = refs["initial"][0] if "initial" in refs else jnp.zeros_like(refs["carry"])


def finish(refs, g: Geometry):
    if "final" in refs:

        @pl.when(pl.program_id(2) == g.n_blocks - 1)
        def _():
            refs["final"][0] = refs["carry"][...]


def _forward_kernel(refs, g: Geometry):
    """refs: q k v log2 [initial], y [final] [borders], carry."""
    start(refs)
    if "borders" in refs:
        refs["borders"][0, :, 0] = refs["carry"][...].astype(g.dtype)
    pending = None
    for n in range(g.chunks):
        chunk = _Chunk(refs, g, n)
        weights = _weights(chunk)
        if pending is not None:
            _attend(*pending)
        pending = chunk, weights
    _attend(*pending)
    finish(refs, g)


def _weights(chunk: _Chunk):
    """P of every head."""
    found = {}
    for pack in range(chunk.g.packs):
        q, k = chunk.keys("q", pack), chunk.keys("k", pack)
        scores = [matmul_nt(chunk.key_head(q, i), k) for i in range(1 if chunk.g.shared else chunk.g.pack)]
        for head, i in chunk.heads(pack):
            weights = scores[i % len(scores)] * chunk.between(head, queries=0)
            found[head] = weights.astype(chunk.g.dtype)
    return found


def _attend(chunk: _Chunk, weights):
    """y, and the state after the chunk."""
    g, refs = chunk.g, chunk.refs
    for pack in range(g.packs):
        v = chunk.values("v", pack)
        within = sum(matmul(weights[head], chunk.value_head(v, i)) for head, i in chunk.heads(pack))
        state = refs["carry"][pack]
        past = matmul(chunk.keys("q", pack), state.astype(g.dtype)) * chunk.since(pack)
        refs["carry"][pack] = chunk.after(state, pack)
        refs["y"][0, chunk.at, g.value_lanes(pack)] = (within + past).astype(g.dtype)


def _backward_kernel(refs, g: Geometry):
    """refs: q k v dy log2 borders [initial], dq dk dv da [final], carry states."""
    start(refs)
    states, chunks = refs["states"], [_Chunk(refs, g, n) for n in range(g.chunks)]
    states[0] = refs["borders"][0, :, 0].astype(jnp.float32)
    for chunk in chunks[:-1]:
        for pack in range(g.packs):
            states[chunk.n + 1, pack] = chunk.after(states[chunk.n, pack], pack)
    pending = None
    for chunk in reversed(chunks):
        slopes = _slopes(chunk)
        if pending is not None:
            _pull_back(*pending)
        pending = chunk, slopes
    _pull_back(*pending)
    finish(refs, g)


def _slopes(chunk: _Chunk):
    """For each head: P^T, G^T, and the sums of R by query (1, c) and by key (c, 1)."""
    found = {}
    for pack in range(chunk.g.packs):
        q, k, v, dy = (
            chunk.keys(name, pack) if name in "qk" else chunk.values(name, pack) for name in ("q", "k", "v", "dy")
        )
        scores = [matmul_nt(k, chunk.key_head(q, i)) for i in range(1 if chunk.g.shared else chunk.g.pack)]
        for head, i in chunk.heads(pack):
            between = chunk.between(head, queries=1)
            slope = matmul_nt(v, chunk.value_head(dy, i)) * between
            pairs, weights = (scores[i % len(scores)] * x for x in (slope, between))
            sums = pairs.sum(0, keepdims=True), pairs.sum(1, keepdims=True)
            found[head] = weights.astype(chunk.g.dtype), slope.astype(chunk.g.dtype), *sums
    return found


def _around(chunk: _Chunk, pack: int):
    """Contributions of the states around the chunk: dq, dk, dv; per head, terms of dg summed to the end of the chunk,
    (c, 1), and at its end, (1, 1). Carries dS to the start of the chunk."""
    g, refs = chunk.g, chunk.refs
    q, k = chunk.keys("q", pack), chunk.keys("k", pack)
    v, dy = (chunk.values(name, pack).astype(jnp.float32) for name in ("v", "dy"))
    since_dy, until_v = chunk.since(pack) * dy, chunk.until(pack) * v
    state, dstate = refs["states"][chunk.n, pack], refs["carry"][pack]
    low, dlow = state.astype(g.dtype), dstate.astype(g.dtype)
    dq = matmul_nt(since_dy.astype(g.dtype), low)
    dk = matmul_nt(until_v.astype(g.dtype), dlow)
    later = matmul(k, dlow)
    written = until_v * later
    pairs = since_dy * matmul(q, low) - written
    kept = chunk.whole(pack) * dstate
    refs["carry"][pack] = kept + chunk.added(q, since_dy)
    ends = written.sum(0, keepdims=True) + (kept * state).sum(0, keepdims=True)
    return dq, dk, later * chunk.until(pack), pairs, ends


def _pull_back(chunk: _Chunk, slopes):
    """dq, dk, dv, the terms of dg (summed later to the end of the chunk), and dS before the chunk."""
    g, refs = chunk.g, chunk.refs
    columns, ends, totals = [], [], {}
    for pack, around in enumerate([_around(chunk, pack) for pack in range(g.packs)]):
        q, k, dy = chunk.keys("q", pack), chunk.keys("k", pack), chunk.values("dy", pack)
        dq, dk, dv, pairs, last = around
        sums = chunk.per_head(pairs, pack)
        for head, i in chunk.heads(pack):
            weights, slope, _, by_key = slopes[head]
            dq += matmul(slope, chunk.key_head(k, i), ((0,), (0,)))
            dk += matmul(slope, chunk.key_head(q, i))
            dv += matmul(weights, chunk.value_head(dy, i))
            columns.append(sums[i] - by_key)
        ends += chunk.per_head(last, pack)
        refs["dv"][0, chunk.at, g.value_lanes(pack)] = dv.astype(g.dtype)
        lanes = g.key_lanes(pack)
        before = totals.get(lanes.start)
        totals[lanes.start] = lanes, *((dq, dk) if before is None else (before[1] + dq, before[2] + dk))
    for lanes, dq, dk in totals.values():
        refs["dq"][0, chunk.at, lanes] = dq.astype(refs["dq"].dtype)
        refs["dk"][0, chunk.at, lanes] = dk.astype(refs["dk"].dtype)
    by_query = jnp.concatenate([slopes[head][2] for head in range(g.heads)])
    lane = lax.broadcasted_iota(jnp.int32, by_query.shape, 1)
    ends = jnp.where(lane == g.chunk - 1, jnp.concatenate(ends), 0.0)
    refs["da"][0, 0, :, chunk.at] = by_query + jnp.concatenate(columns, axis=1).T + ends
