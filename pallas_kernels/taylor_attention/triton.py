"""The `triton` implementation, for GPUs without wgmma; the kernel and its passes are in `triton_kernels.py`.

A sequence is split into segments, so that there are enough programs: the sums of every segment from zeros, the states
between segments, then outputs or gradients. Least bytes per token and head, in bfloat16, for k = 16 and v = 64:

    forward     480: q, k, v, y; k, v again for the states
    backward  1,730: y, dy to dnum; k, v, q, dnum for the states of both directions, for dq, and for dk and dv;
                     dq and dk in float32, and cast; dv

Multiply-adds per token and head: 273 v for the states of a direction, 546 v forward, 1,365 v backward.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.taylor_attention.features import (
    full_to_symmetric,
    n_full_features,
    query_coefficients,
    symmetric_to_full,
)
from pallas_kernels.taylor_attention.problem import Problem
from pallas_kernels.taylor_attention.state import TaylorState
from pallas_kernels.triton_call import Launch, as_rows, like, run

PROGRAMS = 256
"""Programs that fill a GPU."""
VALUES = 64
"""Values of a program."""
SEGMENT = 512
"""Least tokens of a segment."""


def objection(p: Problem) -> str | None:
    """Why the kernels cannot serve a call, or None."""
    if set(p.dtypes) != {"bfloat16"}:
        return f"dtypes of q, k, v are {p.dtypes}, not all bfloat16 (sums of products overflow float16)"
    return f"feature_dim={p.k} is more than 16" if p.k > 16 else None


def forward(q, k, v, state, decay, segment_ids, options):
    """Forward pass (contract in `api.py`); a batch of calls is one call with more rows."""

    def call(q, k, v, state, log_decay):
        full = None if state is None else jax.tree.map(lambda x: symmetric_to_full(x, k=q.shape[3], axis=2), state)
        passes = _Passes(q, k, v, log_decay, options)
        y, den, _, last = passes.run(passes.starts(full), read=True, state_out=options.return_state)
        if last is not None:
            last = jax.tree.map(lambda x: full_to_symmetric(x, k=q.shape[3], axis=2), last)
        return y, last, den

    y, last, den = as_rows(call)(q, k, v, state, _log_decay(q, decay))
    return y, last, den if options.save_states else None


def backward(q, k, v, state, decay, segment_ids, y, den, dy, dstate, options):
    """Backward pass (contract in `api.py`)."""

    def call(q, k, v, state, log_decay, y, den, dy, dstate):
        k_dim = q.shape[3]
        dnum = dy.astype(jnp.float32)
        dden = jnp.zeros((q.shape[0], q.shape[2], q.shape[1]), jnp.float32)
        if options.normalize:
            dnum = dnum / den.swapaxes(1, 2)[..., None]
            dden = -(dnum * y.astype(jnp.float32)).sum(-1).swapaxes(1, 2)
        passes = _Passes(q, k, v, log_decay, options, dnum.astype(q.dtype), dden)
        full = None if state is None else jax.tree.map(lambda x: symmetric_to_full(x, k=k_dim, axis=2), state)
        dq = passes.run(passes.starts(full), pull=True)[2]
        slopes = None if dstate is None else _doubled(dstate, k_dim)
        starts = passes.starts(slopes, reverse=True)
        both = log_decay is None and state is None  # with these a kernel for dk and dv spills registers on sm_80
        dv, _, dk, first = passes.run(starts, reverse=True, read=True, pull=both, state_out=state is not None)
        if not both:
            dk = passes.run(starts, reverse=True, pull=True)[2]
        dk, dv = (_of_shared(x, k.shape[2]) for x in (dk, dv))
        dinitial = None if first is None else _halved(first, k_dim)
        return dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype), dinitial

    return as_rows(call)(q, k, v, state, _log_decay(q, decay), y, den, dy, dstate)


def _log_decay(q, decay):
    """Base-2 logarithm for every row, (b, h), or None."""
    if decay is None:
        return None
    log_decay = jnp.log2(jnp.maximum(decay.astype(jnp.float32), jnp.finfo(jnp.float32).tiny))
    return jnp.broadcast_to(log_decay, (q.shape[0], q.shape[2]))


def _of_shared(x, heads: int):
    """Sum over the query heads that share a key/value head."""
    shape = (*x.shape[:2], heads, -1, x.shape[3])
    return x if heads == x.shape[2] else x.reshape(shape).astype(jnp.float32).sum(3)


def _doubled(dstate: TaylorState, k: int) -> TaylorState:
    """The cotangent of a state over full features, doubled on products."""
    c = query_coefficients(k, 1.0).astype(np.float32)[None, None]
    return TaylorState(
        symmetric_to_full(dstate.s / c[..., None], k=k, axis=2), symmetric_to_full(dstate.z / c, k=k, axis=2)
    )


def _halved(full: TaylorState, k: int) -> TaylorState:
    """The inverse of `_doubled`."""
    c = query_coefficients(k, 1.0).astype(np.float32)[None, None]
    s, z = (full_to_symmetric(x, k=k, axis=2) for x in full)
    return TaylorState(s * c[..., None], z * c)


class _Passes:
    """The passes over the tokens of a call. States have full features."""

    def __init__(self, q, k, v, log_decay, options, dnum=None, dden=None):
        self.q, self.k, self.v, self.dnum, self.dden = q, k, v, dnum, dden
        self.log_decay, self.options = log_decay, options
        (self.b, self.t, self.h, self.k_dim), self.v_dim = q.shape, v.shape[3]
        self.values = VALUES
        self.blocks = -(-self.v_dim // self.values)
        wanted = -(-PROGRAMS // (self.b * self.h * self.blocks))
        segments = options.kernel_segments or max(1, min(wanted, self.t // SEGMENT))
        self.length = -(-self.t // (segments * 64)) * 64
        self.segments = -(-self.t // self.length)

    def starts(self, state: TaylorState | None, *, reverse: bool = False) -> TaylorState | None:
        """States (b, h, segments, ...) that segments begin with, for the state of the first: at the end if reverse."""
        if self.segments == 1:
            return None if state is None else jax.tree.map(lambda x: x[:, :, None], state)
        own = self.run(None, reverse=reverse, state_out=True)[3]
        order = range(self.segments)
        found = [jax.tree.map(lambda x: jnp.zeros_like(x[:, :, 0]), own) if state is None else state]
        for i in reversed(order[1:]) if reverse else order[:-1]:
            found.append(jax.tree.map(lambda x, new, i=i: x * self._kept(i, x.ndim) + new[:, :, i], found[-1], own))
        return jax.tree.map(lambda *x: jnp.stack(x[::-1] if reverse else x, axis=2), *found)

    def _kept(self, segment: int, ndim: int):
        """Decay over a segment."""
        if self.log_decay is None:
            return np.float32(1.0)
        tokens = min(self.length, self.t - segment * self.length)
        kept = jnp.exp2(self.log_decay * np.float32(tokens))
        return kept.reshape(*kept.shape, *[1] * (ndim - 2))

    def run(self, state, *, reverse=False, read=False, pull=False, state_out=False) -> tuple[Any, Any, Any, Any]:
        """y or dv (b, t, h, v), den, dq or dk (b, t, h, k) float32, and the last state; None if not requested."""
        from pallas_kernels.taylor_attention import triton_kernels as kernels

        options = self.options
        normalize = read and not reverse and options.normalize
        tokens, rows = (self.b, self.t, self.h), (self.b, self.h)
        full = (*rows, *(() if read or pull else (self.segments,)), n_full_features(self.k_dim))
        outputs = (
            like((*tokens, self.v_dim), self.v.dtype) if read else None,
            like((*rows, self.t), jnp.float32) if normalize else None,
            like((self.blocks, *tokens, self.k_dim), jnp.float32) if pull else None,
            like((*full, self.v_dim), jnp.float32) if state_out else None,
            like(full, jnp.float32) if state_out else None,
        )
        inputs = self.q, self.k, self.v, self.dnum, self.dden, self.log_decay, *(state or (None, None))
        constants = {
            "T": self.t, "L": self.length, "B": self.b, "H": self.h, "G": self.k.shape[2], "KD": self.k_dim,
            "VD": self.v_dim, "K": kernels.MAX_KEY_DIM, "V": self.values, "C": kernels.CHUNK, "A": kernels.FACTORS,
            "SCALE": options.scale, "EPS": options.eps, "REVERSE": reverse, "READ": read, "PULL": pull,
            "NORMALIZE": normalize, "DECAY": self.log_decay is not None, "STATE_IN": state is not None,
            "STATE_OUT": state_out,
        }  # fmt: skip
        grid = (self.b * self.h, self.blocks, self.segments)
        y, den, dx, *last = run(Launch(kernels.taylor_kernel, inputs, outputs, grid, constants, warps=kernels.WARPS))
        return y, den, dx.sum(0) if pull else None, TaylorState(*last) if state_out else None
