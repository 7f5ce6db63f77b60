"""Taylor linear attention on TPU, backward: two Pallas Mosaic kernels.

Notation of `mosaic_tpu.py`. With v~ = [v | 1 | 0], S~ = [S | z | 0] and

    dnum_i = dy_i / (den_i + eps)    dden_i = -dnum_i . y_i    dy~_i = [dnum_i | dden_i | 0]
    (dnum = dy and dden = 0 if not normalize)
    ds_ij = decay^(i-j) (1 + s_ij) (dy~_i . v~_j)  for j <= i

the gradients of a chunk of c tokens, with S~ before it and the cotangent dS~ of the state after it, are

    dq_i = scale sum_j ds_ij k_j + J'(q_i)^T S~ dy~_i decay^(i+1)
    dk_j = scale sum_i ds_ij q_i + J(k_j)^T dS~ v~_j decay^(c-1-j)
    dv_j = sum_i decay^(i-j) p_ij dnum_i + decay^(c-1-j) dS^T phi(k_j)
    dS~ <- decay^c dS~ + sum_i decay^(i+1) phi'(q_i) dy~_i^T

for the Jacobians J of phi and J' of phi'. With a = 1 / scale and e_i = dy~_i scale^2 / 2 scores need no factor, because
scale (1 + s) = scale^2 (q.k + a), p = ((q.k + a)^2 + a^2) scale^2 / 2 and phi' = W phi scale^2 / 2
(`mosaic_tpu_layout.py`):

    g_ij = decay^(i-j) (q_i.k_j + a) (e_i . v~_j)
    dq_i = 2 (sum_j g_ij k_j + decay^(i+1) J(W phi / 2)^T S~ e_i)
    dk_j = 2 sum_i g_ij q_i + decay^(c-1-j) J(phi)^T dS~ v~_j

The first kernel scans forward, recomputes S~ and writes dq; the second scans backward, carries dS~ and writes dk, dv
and the cotangent of the initial state.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels.taylor_attention import mosaic_tpu_layout as layout
from pallas_kernels.taylor_attention.mosaic_tpu import (
    Chunk,
    Decay,
    head_rows,
    in_turn,
    own_lanes,
    tile,
    transposed,
    write_heads,
)
from pallas_kernels.taylor_attention.state import TaylorState
from pallas_kernels.tpu.lanes import matmul, matmul_nt

BLOCK = 512
"""Tokens of a grid step."""


class Gradients(NamedTuple):
    """Gradients of packed q, k, v and of the initial state (or None)."""

    q: jax.Array
    k: jax.Array
    v: jax.Array
    initial_state: TaylorState | None


def backward(q, k, v, y, den, dy, *, h, scale, eps=1e-6, normalize=True, initial_state=None, decay=None,
             dstate=None, chunk_size=layout.CHUNK, block_size=BLOCK, interpret=False):  # fmt: skip
    """Packed backward pass on one device.

    y, den: from `forward`, not read if not normalize; dstate: cotangent of the final state, or None for zeros; others
    as for `forward`.
    """
    q, scale, q_factor = layout.within_range(q, scale)
    g = layout.make_geometry(
        q, v, h=h, scale=scale, eps=eps, normalize=normalize, chunk_size=chunk_size, block_size=block_size
    )
    tokens = {"q": q, "k": k, "v": v, "dy": dy} | ({"y": y} if normalize else {})
    tokens = {name: layout.pad_tokens(x, g) for name, x in tokens.items()}
    run = functools.partial(_run, tokens, layout.pack_den(den, g) if normalize else None, decay, g, interpret)

    ahead, back = layout.Blocks(g), layout.Blocks(g, backwards=True)
    keys, values = (layout.tokens_struct(g, head_dim) for head_dim in (g.k, g.v))
    outputs = {"dq": (keys, ahead.tokens(g.k))}
    found = run(_query_kernel, ahead, initial_state, outputs, name="taylor_attention_backward_q")
    outputs = {"dk": (keys, back.tokens(g.k)), "dv": (values, back.tokens(g.v))}
    if initial_state is not None:
        outputs["dinitial"] = (layout.state_struct(g), back.state())
    found |= run(_key_value_kernel, back, dstate, outputs, name="taylor_attention_backward_kv")
    dq, dk, dv = (layout.unpad_tokens(found[name], g) for name in ("dq", "dk", "dv"))
    dinitial = layout.unpack_state(found["dinitial"], g) if initial_state is not None else None
    return Gradients(dq if q_factor == 1.0 else (dq.astype(jnp.float32) * q_factor).astype(dq.dtype), dk, dv, dinitial)


def _run(tokens, den, decay, g, interpret, kernel, blocks, state, outputs, *, name):
    """Calls one of the kernels; `state` before its scan, or None for zeros."""
    inputs = {key: (x, blocks.tokens(x.shape[-1] // (g.h + g.extra_heads))) for key, x in tokens.items()}
    if den is not None:
        inputs["den"] = (den, blocks.den())
    inputs |= layout.decay_input(decay, g)
    if state is not None:
        inputs["initial"] = (layout.pack_state(state, g), blocks.state())
    return layout.call(functools.partial(kernel, geometry=g), g, inputs, outputs, interpret=interpret, name=name)


class _Cotangents:
    """e of a chunk: `rows` (heads*v, c), and per head `dden` (1, c) float32 and `operands` [e | dden | 0]^T."""

    def __init__(self, chunk: Chunk):
        g = self.geometry = chunk.geometry
        dyt, half = transposed(chunk.load("dy"), g.v), 0.5 * g.scale * g.scale
        own = [head_rows(dyt, head, g.v).astype(jnp.float32) for head in range(g.group)]
        if g.normalize:
            factor = half / (chunk.refs["den"][0, 0, :, chunk.lanes] + g.eps)
            yt = transposed(chunk.load("y"), g.v)
            own = [x * factor[head : head + 1] for head, x in enumerate(own)]
            y = [head_rows(yt, head, g.v).astype(jnp.float32) for head in range(g.group)]
            self.dden = [-jnp.sum(x * y_h, axis=0, keepdims=True) for x, y_h in zip(own, y, strict=True)]
        else:
            own, self.dden = [x * half for x in own], [jnp.zeros((1, g.chunk), jnp.float32)] * g.group
        self.rows = jnp.concatenate(own).astype(g.dtype)
        row = jax.lax.broadcasted_iota(jnp.int32, (g.value_rows - g.v, g.chunk), 0)
        rest = [jnp.where(row == 0, dden, 0.0) for dden in self.dden]
        self.operands = [jnp.concatenate(parts).astype(g.dtype) for parts in zip(own, rest, strict=True)]

    def with_values(self, v, head: int):
        """e_i . v~_j with keys j on the sublanes: (c, c) float32."""
        v_dim = self.geometry.v
        return matmul(own_lanes(v, head, v_dim), self.rows[tile(head, v_dim, len(self.rows))]) + self.dden[head]


def _query_kernel(refs, *, geometry):
    """dq, blocks in order. refs: q k v dy [y den] [log_decay] [initial], dq, scratch; carry = S~ before a chunk."""
    g, step, decay = geometry, pl.program_id(2), Decay(refs, geometry)
    pl.when(step == 0)(lambda: _start(refs, decay))
    for n in range(g.block // g.chunk):
        chunk = Chunk(refs, g, step, n)
        _query_gradient(chunk, _weigh(chunk, decay=decay, with_p=False), decay=decay)


def _key_value_kernel(refs, *, geometry):
    """dk, dv, last block first. refs: as `_query_kernel`, dk dv [dinitial]; carry = dS~ after a chunk."""
    g, step, decay = geometry, pl.program_id(2), Decay(refs, geometry)
    pl.when(step == 0)(lambda: _start(refs, decay))
    chunks = [Chunk(refs, g, g.n_blocks - 1 - step, n) for n in reversed(range(g.block // g.chunk))]
    start = functools.partial(_weigh, decay=decay, with_p=True)
    in_turn(chunks, start, functools.partial(_key_value_gradients, decay=decay))
    if "dinitial" in refs:

        @pl.when(step == g.n_blocks - 1)
        def _():
            refs["dinitial"][0] = refs["carry"][...]


def _start(refs, decay):
    carry = refs["carry"]
    carry[...] = refs["initial"][0] if "initial" in refs else jnp.zeros_like(carry)
    decay.prepare()


class _Weighed(NamedTuple):
    """Terms that do not need the state; g and 2 a^2 p by head, (c, c), keys on the sublanes."""

    g: dict
    p: dict
    e: _Cotangents
    vt: jax.Array


def _weigh(chunk: Chunk, *, decay: Decay, with_p: bool) -> _Weighed:
    g = chunk.geometry
    q, k, v = (chunk.load(name) for name in ("q", "k", "v"))
    qt, e, ds, p = q.T, _Cotangents(chunk), {}, {}
    chunk.spread(qt, k)
    for heads in g.stages:
        scores = {h: chunk.shifted_scores(k, qt, h) for h in heads}
        ds |= {h: decay.between(h, scores[h] * e.with_values(v, h)).astype(g.dtype) for h in heads}
        if with_p:
            p |= {h: decay.between(h, x * x + g.a * g.a).astype(g.dtype) for h, x in scores.items()}
    return _Weighed(ds, p, e, transposed(v, g.v))


def _query_gradient(chunk: Chunk, weighed: _Weighed, *, decay: Decay):
    """dq, and S~ after the chunk."""
    g, refs, dq = chunk.geometry, chunk.refs, []
    for heads in g.stages:
        within = {h: matmul(chunk.k_rows[h, : g.k].astype(g.dtype), weighed.g[h]) for h in heads}
        u = {h: matmul(refs["carry"][h].astype(g.dtype).T, weighed.e.operands[h]) for h in heads}
        for h in heads:
            chunk.add_to_state(decay, h, chunk.value_operand(weighed.vt, h))
        for h in heads:
            before = layout.pull_back(u[h], chunk.q_rows, h, g.k, g.a)
            dq.append(2.0 * (within[h] + decay.since_start(h, before)))
    write_heads(refs["dq"], chunk.lanes, dq, g)


def _key_value_gradients(chunk: Chunk, weighed: _Weighed, *, decay: Decay):
    """dk, dv, and dS~ before the chunk."""
    g, refs, dk, dv = chunk.geometry, chunk.refs, [], []
    carry = refs["carry"]
    for heads in g.stages:
        within_k = {h: matmul_nt(chunk.q_rows[h, : g.k].astype(g.dtype), weighed.g[h]) for h in heads}
        within_v = {h: matmul_nt(weighed.e.operands[h][: g.v], weighed.p[h]) for h in heads}
        state = {h: carry[h].astype(g.dtype) for h in heads}
        after_v = {h: matmul(state[h][: g.v], chunk.key_features(h)) for h in heads}
        u = {h: matmul(state[h].T, chunk.value_operand(weighed.vt, h)) for h in heads}
        for h in heads:
            added = matmul_nt(decay.since_start(h, weighed.e.operands[h]), chunk.query_features(h))
            carry[h] = decay.whole_chunk(h, carry[h], chunk.length) + added
        for h in heads:
            after_k = layout.pull_back(u[h], chunk.k_rows, h, g.k)
            dk.append(2.0 * within_k[h] + decay.to_end(h, after_k, chunk.length))
            dv.append(within_v[h] + decay.to_end(h, after_v[h], chunk.length))
    write_heads(refs["dk"], chunk.lanes, dk, g)
    write_heads(refs["dv"], chunk.lanes, dv, g)
