"""Gated linear attention on TPU with decays per channel of the keys: a Pallas Mosaic kernel each for both passes.

With a_i the sum of log decays from the start of a chunk of c tokens, per channel, e_i = exp(a_i), w_j = exp(a_c - a_j)
(below: never a difference), and the state S before the chunk,

    P_ij = sum_k Q_ik K_jk exp(a_ik - a_jk)      Y = P V + (e * Q) S      S <- exp(a_c) * S + (w * K)^T V

P is one product M M^T per level, M the queries and keys of its halves times their exponentials, and the products of a
token with itself. Backward, with H_ij = dY_i.V_j below the diagonal, V_i.dY_j above it, and the cotangent dS of the
state after the chunk,

    dQ, dK = sum over levels E * (H_level M) + e * (dY S^T), w * (V dS^T)      dV = P^T dY + (w * K) dS
    dS <- exp(a_c) * dS + (e * Q)^T dY

A row of H_level M is dQ of a query or dK of a key; times that query or key, it is the cotangent of the exponent.

Heads of 64 channels are processed in pairs: both fill the lanes of one operand; the other operand has the keys of each
head in its own rows, with zeros in the other lanes, so P is (c, 2 c). The state of a pack is transposed, (values,
keys), so decays are a row. Scans, borders, grid and rounding: see `mosaic_tpu.py`.

Two tokens j < i of a chunk of c = 2^n are in the two halves of a block of 2 size tokens, where `size` = 2^m is the
highest binary digit in which i and j differ. The border between the halves splits their decay:

    exp2(sum g over j+1 .. i) = exp2(sum from j+1 to the border) exp2(sum from the border to i)

Both exponents are nonpositive. A token's digit makes it a key or a query of its block, so a level has one exponent and
one operand per token. The sums of a level follow from the previous level:

    prefix: from the beginning of the half to the token      suffix: from the next token to the end of the half

`pull_back` is the transpose of these additions. Arrays are (c, lanes) float32.
"""

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.gated_linear_attention.mosaic_tpu import finish, start
from pallas_kernels.gated_linear_attention.mosaic_tpu_layout import Arrays, Geometry, call, make_geometry, unpacked
from pallas_kernels.tpu.lanes import matmul, matmul_nt, only_lanes

SUBLANES = 8


def halves(first, second, size: int):
    """Rows of `first` in the first half of each block of 2 size rows, else of `second`."""
    if size >= SUBLANES:
        return jnp.concatenate([(second if r & size else first)[r : r + size] for r in range(0, len(first), size)])
    tiles = -1, SUBLANES, first.shape[1]
    row = lax.broadcasted_iota(jnp.int32, (1, *tiles[1:]), 1)
    return jnp.where((row & size) == 0, first.reshape(tiles), second.reshape(tiles)).reshape(first.shape)


def sums(x):
    """Exponents of the levels of size 1, 2, .., c / 2, and prefix and suffix of the whole chunk, from log decays x."""
    prefix, suffix, levels = x, jnp.zeros_like(x), []
    for size in sizes(len(x)):
        levels.append(halves(suffix, prefix, size))
        other = _sibling(prefix + suffix, size)
        prefix, suffix = halves(prefix, prefix + other, size), halves(suffix + other, suffix, size)
    return levels, prefix, suffix


def pull_back(level: int, dlevel, dprefix, dsuffix):
    """Cotangents of prefix and suffix before a level of `sums`, from those of its exponents and of both after it."""
    size = 2**level
    other = _sibling(halves(dsuffix, dprefix, size), size)
    dprefix, dsuffix = dprefix + other, dsuffix + other
    return halves(dprefix, dprefix + dlevel, size), halves(dsuffix + dlevel, dsuffix, size)


def sizes(c: int) -> list[int]:
    """Sizes of the halves, by level."""
    return [2**level for level in range((c - 1).bit_length())]


def levels_of_pairs(c: int, heads: int):
    """1 + the level of row i and column j, 0 for the same token, and i - j: (c, heads c)."""
    row, column = (lax.broadcasted_iota(jnp.int32, (c, heads * c), axis) for axis in (0, 1))
    column = column & (c - 1)
    differ = row ^ column
    return sum((differ >= size).astype(jnp.int32) for size in sizes(c)), row - column


def _sibling(x, size: int):
    """Permutes rows: row i is row i xor size of x."""
    if size >= SUBLANES:
        return jnp.concatenate([x[r ^ size : (r ^ size) + size] for r in range(0, len(x), size)])
    tiles = x.reshape(-1, SUBLANES, x.shape[1])
    earlier = pltpu.roll(tiles, size, 1).reshape(x.shape)
    if 2 * size == SUBLANES:
        return earlier
    return halves(pltpu.roll(tiles, SUBLANES - size, 1).reshape(x.shape), earlier, size)


LOG2_E = np.float32(1 / np.log(2))


def forward(q, k, v, log_decay, state, options, *, chunk=None, interpret=False):
    """`mosaic_tpu.forward` for log_decay (b, t, h, k)."""
    g = make_geometry(q, v, chunk=chunk, channel=True)
    arrays = Arrays(g)
    inputs = {"q": arrays.keys(q), "k": arrays.keys(k), "v": arrays.values(v), "decay": arrays.keys(log_decay)}
    if state is not None:
        inputs["initial"] = arrays.state(state)
    outputs = {"y": arrays.values()}
    if options.return_state:
        outputs["final"] = arrays.state()
    if options.save_states:
        outputs["borders"] = arrays.borders()
    name = "gated_linear_channel_forward"
    found = call(_forward_kernel, g, inputs, outputs, interpret=interpret, name=name, states=0)
    last = unpacked(found["final"], g) if options.return_state else None
    return found["y"][:, : g.t].reshape(v.shape), last, found.get("borders")


def backward(q, k, v, log_decay, state, borders, dy, dstate, options, *, chunk=None, interpret=False):
    """`mosaic_tpu.backward` for log_decay (b, t, h, k)."""
    g = make_geometry(q, v, chunk=chunk, channel=True)
    arrays = Arrays(g, backwards=True)
    inputs = {"q": arrays.keys(q), "k": arrays.keys(k), "v": arrays.values(v), "dy": arrays.values(dy)}
    inputs |= {"decay": arrays.keys(log_decay), "borders": arrays.borders(borders)}
    if dstate is not None:
        inputs["initial"] = arrays.state(dstate)
    outputs = {"dq": arrays.key_gradients(), "dk": arrays.key_gradients(), "dv": arrays.values()}
    outputs["ddecay"] = arrays.key_gradients(jnp.float32)
    if state is not None:
        outputs["final"] = arrays.state()
    name = "gated_linear_channel_backward"
    found = call(_backward_kernel, g, inputs, outputs, interpret=interpret, name=name, states=0)
    dinitial = unpacked(found["final"], g) if state is not None else None
    like = {"dq": q, "dk": k, "dv": v, "ddecay": log_decay}
    return *(found[name][:, : g.t].reshape(x.shape) for name, x in like.items()), dinitial


class _Pack:
    """Heads of a pack in chunk n of a block: q and k (c, keys) float32, v (c, values), and sums of decays."""

    def __init__(self, refs, g: Geometry, n, index: int):
        self.refs, self.g, self.n, self.index = refs, g, n, index
        self.at, lanes = pl.ds(n * g.chunk, g.chunk), g.key_lanes(index)
        self.q, self.k = (refs[name][0, self.at, lanes].astype(jnp.float32) for name in "qk")
        self.v = self.values("v")
        exponents, prefix, suffix = sums(refs["decay"][0, self.at, lanes] * LOG2_E)
        self.factors = [jnp.exp2(x) for x in exponents]
        self.since, self.until, self.whole = jnp.exp2(prefix), jnp.exp2(suffix), jnp.exp2(prefix[-1:])
        self.operands = [halves(self.k, self.q, 2**i) * x for i, x in enumerate(self.factors)]

    def values(self, name: str):
        return self.refs[name][0, self.at, self.g.value_lanes(self.index)]

    def stacked(self, x):
        """x (c, pack * width) -> (pack * c, pack * width), with each head in its own rows."""
        heads, width = self.g.pack, x.shape[1] // self.g.pack
        return x if heads == 1 else jnp.concatenate([only_lanes(x, i * width, width) for i in range(heads)])

    def pairs(self, levels, *, second: bool):
        """Rounded products of the pairs of all levels; rows are in the first or second halves."""
        found = jnp.zeros(levels.shape, jnp.float32)
        for level, operand in enumerate(self.operands):
            size, low = 2**level, operand.astype(self.g.dtype)
            others = self.stacked(low)
            if size < SUBLANES:
                found = jnp.where(levels > level, matmul_nt(low, others), found)
                continue
            rows = [slice(r, r + size) for r in range(0, self.g.chunk, size)]
            taken = rows[second::2]
            scores = matmul_nt(jnp.concatenate([operand[at] for at in taken]).astype(self.g.dtype), others)
            new = [jnp.where(levels[at] > level, scores[i * size :][:size], found[at]) for i, at in enumerate(taken)]
            kept = [found[at] for at in rows[not second :: 2]]
            order = zip(kept, new, strict=True) if second else zip(new, kept, strict=True)
            found = jnp.concatenate([x for both in order for x in both])
        return found.astype(self.g.dtype)

    def own(self, x, y, width: int):
        """x . y per head and token, broadcast to (c, pack * width)."""
        product, heads = x * y, self.g.pack
        if heads == 1:
            return product.sum(1, keepdims=True)
        parts = [only_lanes(product, i * (x.shape[1] // heads), x.shape[1] // heads) for i in range(heads)]
        lane = lax.broadcasted_iota(jnp.int32, (len(x), heads * width), 1)
        return jnp.where(lane < width, *(part.sum(1, keepdims=True) for part in parts))

    def added(self, values, keys):
        """values^T keys, block diagonal over heads."""
        g = self.g
        found = matmul(values, keys.astype(g.dtype), ((0,), (0,)))
        if g.pack == 1:
            return found
        row, lane = (lax.broadcasted_iota(jnp.int32, g.state, axis) for axis in (0, 1))
        return jnp.where((row < g.v) == (lane < g.k), found, 0.0)


def _each_chunk(refs, g: Geometry, prepare, conclude, *, backwards: bool = False) -> None:
    """conclude(pack, *prepare(pack)) for all chunks and packs; `prepare` of the next pack runs before."""

    def step(i, carry):
        n, pending = g.chunks - 1 - i if backwards else i, None
        for index in range(g.packs):
            pack = _Pack(refs, g, n, index)
            prepared = pack, *prepare(pack)
            if pending is not None:
                conclude(*pending)
            pending = prepared
        conclude(*pending)
        return carry

    lax.fori_loop(0, g.chunks, step, None)


def _forward_kernel(refs, g: Geometry):
    """refs: q k v decay [initial], y [final] [borders], carry."""
    start(refs)
    levels, distance = levels_of_pairs(g.chunk, g.pack)
    levels = jnp.where(distance > 0, levels, 0)
    _each_chunk(refs, g, lambda pack: [pack.pairs(levels, second=True)], _attend)
    finish(refs, g)


def _attend(pack: _Pack, weights) -> None:
    """y, and the state after the chunk."""
    g, refs, v = pack.g, pack.refs, pack.v
    state = refs["carry"][pack.index]
    if "borders" in refs:
        kept = sum(state[i * g.v :][: g.v] for i in range(g.pack))
        refs["borders"][0, pack.index, pack.n] = kept.astype(g.dtype)
    y = matmul(weights, pack.stacked(v)) + pack.own(pack.q, pack.k, g.v) * v.astype(jnp.float32)
    y += matmul_nt((pack.q * pack.since).astype(g.dtype), state.astype(g.dtype))
    refs["carry"][pack.index] = pack.whole * state + pack.added(v, pack.k * pack.until)
    refs["y"][0, pack.at, g.value_lanes(pack.index)] = y.astype(g.dtype)


def _backward_kernel(refs, g: Geometry):
    """refs: q k v dy decay borders [initial], dq dk dv ddecay [final], carry."""
    start(refs)
    levels, distance = levels_of_pairs(g.chunk, g.pack)

    def prepare(pack: _Pack):
        v, dy = pack.v, pack.values("dy")
        weights = pack.pairs(jnp.where(distance < 0, levels, 0), second=False)
        slopes = jnp.where(distance > 0, matmul_nt(dy, pack.stacked(v)), matmul_nt(v, pack.stacked(dy)))
        return weights, [jnp.where(levels == i + 1, slopes, 0.0).astype(g.dtype) for i in range(len(pack.factors))]

    _each_chunk(refs, g, prepare, _pull_back, backwards=True)
    finish(refs, g)


def _pull_back(pack: _Pack, weights, slopes) -> None:
    """dq, dk, dv, ddecay, and dS before the chunk; slopes: H of every level."""
    g, refs, q, k, v, dy = pack.g, pack.refs, pack.q, pack.k, pack.v, pack.values("dy")
    low, dstate = pack.stacked(refs["borders"][0, pack.index, pack.n]), refs["carry"][pack.index]
    dlow = dstate.astype(g.dtype)
    read, written = ((x * factor).astype(g.dtype) for x, factor in ((q, pack.since), (k, pack.until)))
    dq, dk = matmul(dy, low) * pack.since, matmul(v, dlow) * pack.until
    dy_float = dy.astype(jnp.float32)
    dv = matmul(weights, pack.stacked(dy)) + matmul_nt(written, dlow) + pack.own(q, k, g.v) * dy_float
    refs["dv"][0, pack.at, g.value_lanes(pack.index)] = dv.astype(g.dtype)
    kept = pack.whole * (low.astype(jnp.float32) * dstate).sum(0, keepdims=True)
    refs["carry"][pack.index] = pack.whole * dstate + pack.added(dy, read)
    row = lax.broadcasted_iota(jnp.int32, q.shape, 0)
    dprefix, dsuffix = q * dq + jnp.where(row == g.chunk - 1, kept, 0.0), k * dk
    same = pack.own(v.astype(jnp.float32), dy_float, g.k)
    dq, dk = dq + same * k, dk + same * q
    for level in reversed(range(len(slopes))):
        size, operand = 2**level, pack.operands[level].astype(g.dtype)
        both = matmul(slopes[level], pack.stacked(operand)) * pack.factors[level]
        dprefix, dsuffix = pull_back(level, both * halves(k, q, size), dprefix, dsuffix)
        dq, dk = halves(dq, dq + both, size), halves(dk + both, dk, size)
    lanes = g.key_lanes(pack.index)
    for name, x in (("dq", dq), ("dk", dk), ("ddecay", dprefix)):
        refs[name][0, pack.at, lanes] = x.astype(refs[name].dtype)
