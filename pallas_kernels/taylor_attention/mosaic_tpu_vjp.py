"""Taylor linear attention on TPU, backward: two Pallas Mosaic kernels, and the differentiable function.

Notation of `mosaic_tpu.py`; layouts of `mosaic_tpu_common.py`. With v~ = [v | 1 | 0], S~ = [S | z | 0] and

    dnum_i = dy_i / (den_i + eps)    dden_i = -dnum_i . y_i    dy~_i = [dnum_i | dden_i | 0]
    (dnum = dy and dden = 0 if not normalize)
    ds_ij = decay^(i-j) (1 + s_ij) (dy~_i . v~_j)  for j <= i

the gradients of a chunk of c tokens, with S~ before it and the cotangent dS~ of the state after it, are

    dq_i = scale sum_j ds_ij k_j + J'(q_i)^T S~ dy~_i decay^(i+1)
    dk_j = scale sum_i ds_ij q_i + J(k_j)^T dS~ v~_j decay^(c-1-j)
    dv_j = sum_i decay^(i-j) p_ij dnum_i + decay^(c-1-j) dS^T phi(k_j)
    dS~ <- decay^c dS~ + sum_i decay^(i+1) phi'(q_i) dy~_i^T

phi = first * second with first = x @ left + .., second = x @ right + .., so that its Jacobian J needs no
gather either: J^T u = (u * second) @ left^T + (u * first) @ right^T.

The first kernel scans forwards, recomputes S~ and writes dq; the second scans backwards, carries dS~ and
writes dk, dv and the cotangent of the initial state. Nothing per chunk is stored: the residuals are the
inputs, y and den. Both kernels derive dden from y rather than share it, because an array for it would outlast
the first kernel.

Cost a chunk and head in multiply-adds, with d = group*k: 6 c d f + c^2 (2 d + w) + 2 c f w for dq, and
6 c d f + c^2 (2 d + 2 w) + 3 c f w for dk and dv.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels.taylor_attention import mosaic_tpu_common as common
from pallas_kernels.taylor_attention.mosaic_tpu import forward
from pallas_kernels.taylor_attention.mosaic_tpu_common import State

# Not measured: no TPU was at hand.
_CHUNK = {"bfloat16": 256, "float32": 128}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The static arguments of `taylor_attention`; None: the kernel's default chunk."""

    scale: float
    eps: float = 1e-6
    normalize: bool = True
    return_state: bool = False
    forward_chunk_size: int | None = None
    backward_chunk_size: int | None = None
    interpret: Any = False


class Gradients(NamedTuple):
    """Cotangents of packed q, k, v, and of the initial state, None if there was none."""

    q: jax.Array
    k: jax.Array
    v: jax.Array
    initial_state: State | None


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def taylor_attention(q, k, v, initial_state, decay, options):
    """q, k: (b, t, h, k), v: (b, t, h, v), t >= 1 -> y (b, t, h, v), final `State` or None as `options` say.

    Packing the heads is free where q, k, v come from projections. Where there are fewer key and value heads
    than query heads, the caller repeats them (`jnp.repeat`, differentiable). decay is a constant: gradient 0.
    """
    return _forward_rule(q, k, v, initial_state, decay, options)[0]


def _forward_rule(q, k, v, initial_state, decay, options):
    y, state, den = forward(
        *(_pack(x) for x in (q, k, v)), h=q.shape[2], scale=options.scale, eps=options.eps,
        normalize=options.normalize, initial_state=initial_state, decay=decay,
        return_state=options.return_state, return_den=options.normalize,
        chunk_size=options.forward_chunk_size, interpret=options.interpret,
    )  # fmt: skip
    saved = (q, k, v, initial_state, decay, y if options.normalize else None, den)
    return (y.reshape(v.shape), state), saved


def _backward_rule(options, saved, cotangents):
    q, k, v, initial_state, decay, y, den = saved
    dy, dstate = cotangents
    gradients = backward(
        *(_pack(x) for x in (q, k, v)), y, den, _pack(dy), h=q.shape[2], scale=options.scale, eps=options.eps,
        normalize=options.normalize, initial_state=initial_state, decay=decay, dstate=dstate,
        chunk_size=options.backward_chunk_size, interpret=options.interpret,
    )  # fmt: skip
    dq, dk, dv = (dx.reshape(x.shape) for dx, x in zip(gradients[:3], (q, k, v), strict=True))
    ddecay = None if decay is None else jnp.zeros_like(decay)
    return dq, dk, dv, gradients.initial_state, ddecay


taylor_attention.defvjp(_forward_rule, _backward_rule)


def _pack(x):
    return x.reshape(*x.shape[:2], -1)


def backward(q, k, v, y, den, dy, *, h, scale, eps=1e-6, normalize=True, initial_state=None, decay=None,
             dstate=None, chunk_size=None, interpret=False):  # fmt: skip
    """Packed backward pass on one device.

    Args:
      q, k, v, h, scale, eps, normalize, initial_state, decay, chunk_size, interpret: as for `forward`.
      y, den: as `forward` returned them; unread, and possibly None, if not normalize.
      dy: (b, t, h*v), dtype of v.
      dstate: `State`, the cotangent of the final state, or None for zeros.

    Returns:
      `Gradients`, with the shapes and dtypes of q, k, v and initial_state.

    Raises:
      ValueError, NotImplementedError: as for `forward`.
    """
    geometry = common.make_geometry(
        q, k, v, h=h, scale=scale, eps=eps, normalize=normalize, chunk_size=chunk_size, default_chunk=_CHUNK
    )
    if dy.shape != v.shape or dy.dtype != v.dtype:
        raise ValueError(f"dy {dy.dtype}{dy.shape} must be like v {v.dtype}{v.shape}")
    if normalize and (y.shape != v.shape or den.shape != (geometry.b, h, geometry.t)):
        raise ValueError(f"y {y.shape}, den {den.shape} must be {v.shape}, {(geometry.b, h, geometry.t)}")
    arrays = _Arrays(geometry, (q, k, v, dy), (y, den) if normalize else None, decay, interpret)
    keys, values = (common.tokens_struct(geometry, head_dim) for head_dim in (geometry.k, geometry.v))

    ahead = common.Blocks(geometry)
    outputs = [(keys, ahead.tokens(geometry.k))]
    (dq,) = arrays.call(_query_kernel, ahead, initial_state, outputs, name="taylor_attention_backward_q")
    back = common.Blocks(geometry, backwards=True)
    outputs = [(keys, back.tokens(geometry.k)), (values, back.tokens(geometry.v))]
    if initial_state is not None:
        outputs.append((common.state_struct(geometry), back.state()))
    kernel = functools.partial(_key_value_kernel, writes_initial=initial_state is not None)
    dk, dv, *dinitial = arrays.call(kernel, back, dstate, outputs, name="taylor_attention_backward_kv")
    return Gradients(
        *(common.unpad_tokens(x, geometry) for x in (dq, dk, dv)),
        initial_state=common.unpack_state(dinitial[0], geometry) if dinitial else None,
    )


class _Arrays:
    """What both kernels read; `call` adds the constants, the state to start from, and the block specs."""

    def __init__(self, geometry, tokens, normalizer, decay, interpret):
        self.geometry, self.decay, self.interpret = geometry, decay, interpret
        tokens = tokens if normalizer is None else (*tokens, normalizer[0])
        self.tokens = [(common.pad_tokens(x, geometry), x.shape[-1] // geometry.h) for x in tokens]
        self.den = None if normalizer is None else common.pack_den(normalizer[1], geometry)

    def call(self, kernel, blocks, state, outputs, *, name):
        inputs = [(x, blocks.tokens(head_dim)) for x, head_dim in self.tokens]
        if self.den is not None:
            inputs.append((self.den, blocks.den()))
        inputs += common.constants(self.geometry, self.decay, blocks)
        if state is not None:
            inputs.append((common.pack_state(state, self.geometry), blocks.state()))
        kernel = functools.partial(
            kernel, geometry=self.geometry, has_decay=self.decay is not None, has_state=state is not None
        )
        return common.call(kernel, self.geometry, inputs, outputs, interpret=self.interpret, name=name)


class _Chunk:
    """A chunk as values. `queue` yields the refs q k v dy [y den] left right rows [log_decay] [state]."""

    def __init__(self, queue, geometry, chunk_id, has_decay, has_state):
        self.geometry, self.chunk_id = geometry, chunk_id
        self.real = common.real_rows(geometry, chunk_id)
        read = lambda: common.keep_rows(next(queue)[0], self.real)  # noqa: E731
        self.q, self.k, self.v, self.dy = read(), read(), read(), read()
        if geometry.normalize:
            self.y = read()
            self.inverse_den = (1.0 / (next(queue)[0, 0] + geometry.eps)).T  # (c, rows): one column a head
        self.phi = common.Features(next(queue), next(queue), next(queue))
        self.log_decay_ref = next(queue) if has_decay else None
        self.state_ref = next(queue) if has_state else None

    def start(self, carry):
        carry[...] = jnp.zeros_like(carry) if self.state_ref is None else self.state_ref[0]

    def head(self, head):
        """q, k with the other heads' lanes zeroed, v~, dy~, and the decay."""
        g = self.geometry
        return (
            common.keep_head(self.q, head, g), common.keep_head(self.k, head, g),
            common.value_operand(self.v, head, g, self.real), self.output_cotangent(head),
            common.Decay(self.log_decay_ref, head, self.chunk_id, g),
        )  # fmt: skip

    def output_cotangent(self, head):
        """dy~ = [dnum | dden | 0]: (c, w)."""
        g, lanes = self.geometry, common.value_lanes(head, self.geometry)
        rest = (g.chunk, g.operand_lanes - g.v)
        if not g.normalize:
            return jnp.concatenate([self.dy[:, lanes], jnp.zeros(rest, g.dtype)], axis=1)
        dnum = self.dy[:, lanes].astype(jnp.float32) * self.inverse_den[:, head : head + 1]
        dden = -jnp.sum(dnum * self.y[:, lanes].astype(jnp.float32), axis=1, keepdims=True)
        dden = jnp.where(common.lane_index(rest) == 0, dden, 0.0)
        return jnp.concatenate([dnum, dden], axis=1).astype(g.dtype)


def _query_kernel(*refs, geometry, has_decay, has_state):
    """dq, chunks in order. refs: those of `_Chunk`, state = initial | dq | carry = S~ before the chunk."""
    g, chunk_id, queue = geometry, pl.program_id(2), iter(refs)
    chunk = _Chunk(queue, g, chunk_id, has_decay, has_state)
    dq_ref, carry = queue
    phi = chunk.phi
    pl.when(chunk_id == 0)(lambda: chunk.start(carry))

    dq = jnp.zeros((g.chunk, g.group * g.k), jnp.float32)
    for head in range(g.group):
        q_h, k_h, v_h, dy_h, decay = chunk.head(head)
        s = g.scale * common.matmul("id,jd->ij", q_h, k_h)
        ds = decay.between(common.causal((1.0 + s) * common.matmul("iw,jw->ij", dy_h, v_h)))
        within = g.scale * common.matmul("ij,jd->id", ds.astype(g.dtype), k_h)
        u = common.matmul("iw,fw->if", decay.since_start(dy_h), carry[head].astype(g.dtype))
        before = phi.pull_back(u * phi.coefficient, *phi.factors(q_h))
        dq = common.keep_head(within + before, head, g, others=dq)
        added = common.matmul("jf,jw->fw", phi.of_key(k_h), decay.to_end(v_h))
        carry[head] = decay.whole_chunk(carry[head]) + added
    dq_ref[0] = dq.astype(dq_ref.dtype)


def _key_value_kernel(*refs, geometry, has_decay, has_state, writes_initial):
    """dk, dv, last chunk first. refs: those of `_Chunk`, state = dstate | dk dv [dinitial] | carry = dS~."""
    g, queue = geometry, iter(refs)
    chunk_id = g.n_chunks - 1 - pl.program_id(2)
    chunk = _Chunk(queue, g, chunk_id, has_decay, has_state)
    dk_ref, dv_ref = next(queue), next(queue)
    dinitial_ref = next(queue) if writes_initial else None
    carry = next(queue)
    phi = chunk.phi
    pl.when(chunk_id == g.n_chunks - 1)(lambda: chunk.start(carry))

    dk = jnp.zeros((g.chunk, g.group * g.k), jnp.float32)
    for head in range(g.group):
        q_h, k_h, v_h, dy_h, decay = chunk.head(head)
        s = g.scale * common.matmul("id,jd->ij", q_h, k_h)
        p = decay.between(common.causal(1.0 + s + 0.5 * s * s))
        ds = decay.between(common.causal((1.0 + s) * common.matmul("iw,jw->ij", dy_h, v_h)))
        dstate, (first, second) = carry[head].astype(g.dtype), phi.factors(k_h)
        within = g.scale * common.matmul("ij,id->jd", ds.astype(g.dtype), q_h)
        after = phi.pull_back(common.matmul("jw,fw->jf", decay.to_end(v_h), dstate), first, second)
        dk = common.keep_head(within + after, head, g, others=dk)
        after = common.matmul("jf,fw->jw", (first * second).astype(g.dtype), dstate)
        dv_h = common.matmul("ij,iw->jw", p.astype(g.dtype), dy_h) + decay.to_end(after)
        dv_ref[0, :, common.value_lanes(head, g)] = dv_h[:, : g.v].astype(dv_ref.dtype)
        added = common.matmul("if,iw->fw", phi.of_query(q_h), decay.since_start(dy_h))
        carry[head] = decay.whole_chunk(carry[head]) + added
    dk_ref[0] = dk.astype(dk_ref.dtype)
    if dinitial_ref is not None:

        @pl.when(chunk_id == 0)
        def _():
            dinitial_ref[0] = carry[...]
