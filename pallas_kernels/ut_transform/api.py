"""The UT transform of the delta rules: public functions.

A delta rule with keys k, rates beta and log decays, whose sums from the start of a chunk of C tokens are G, writes

    v'_i = beta_i (v_i - exp(G_i) k_i S - sum_{j<i} exp(G_i - G_j) (k_i . k_j) v'_j)

to the state S before the chunk (arXiv 2406.06484, 2412.06464, section 3.3; 2510.26692). So V' = mix (V + read S) with

    A_ij = beta_i exp(G_i - G_j) k_i . k_j, j < i       mix = (I + A)^-1 Diag(beta)         read = -exp(G) K

and the state after the chunk is exp(G_C) S + write^T V' with write = exp(G_C - G) K: what `delta_chunks` takes.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh

from pallas_kernels import op as base
from pallas_kernels.dispatch import hopper_objection
from pallas_kernels.layout import make_layout, on_shares
from pallas_kernels.op import Op
from pallas_kernels.ut_transform import reference, triton, xla
from pallas_kernels.ut_transform.problem import Problem

CHUNK = 64
"""Tokens of a chunk of the kernels."""


def problem_of(x: jax.Array, beta: jax.Array | None, log_decay: jax.Array | None, chunk: int) -> Problem:
    """Problem of a call with these arrays; x are keys or scores."""
    decay = "none" if log_decay is None else "token" if log_decay.ndim == 3 else "channel"
    b, t, h = x.shape[:3]
    t, k = (t, x.shape[3]) if x.ndim == 4 else (t * chunk, 0)
    return Problem(b=b, t=t, h=h, k=k, decay=decay, beta=beta is not None, chunk=chunk, dtype=x.dtype.name)


def _passes(transform: Callable, gradients: Callable) -> tuple[Callable, Callable]:
    """Forward and backward passes from functions like `xla.forward` and `xla.backward`."""

    def forward(x, beta, log_decay, *, chunk, **how):
        mix, read, write, keep = transform(x, beta, log_decay, chunk=chunk, **how)
        if x.ndim == 5:
            return mix, None, None, None, None, None
        if log_decay is None:
            write, keep = x, all_kept(x, chunk)
        return mix, read, write, keep, x, None

    def backward(x, beta, log_decay, saved, dmix, dread, dwrite, dkeep, dkeys, *, chunk, **how):
        if log_decay is None:
            dkeep = None
        return gradients(x, beta, log_decay, dmix, dread, dwrite, dkeep, dkeys, chunk=chunk, **how)

    return forward, backward


def all_kept(k: jax.Array, chunk: int) -> jax.Array:
    """`keep` of a transform without decays: ones."""
    b, t, h, width = k.shape
    return jnp.ones((b, t // chunk, h, width), jnp.float32)


def hopper_transform(x, beta, log_decay, *, chunk: int, interpret=None):
    """`xla.forward` by the Hopper kernels; chunks have 64 tokens."""
    from pallas_kernels.ut_transform import mosaic_gpu, mosaic_gpu_channel

    kernels = mosaic_gpu_channel if log_decay is not None and log_decay.ndim == 4 else mosaic_gpu
    return kernels.forward(x, beta, log_decay, interpret=interpret)


def _hopper_gradients(x, beta, log_decay, *cotangents, chunk: int, interpret=None):
    from pallas_kernels.ut_transform import mosaic_gpu_channel_vjp, mosaic_gpu_vjp

    kernels = mosaic_gpu_channel_vjp if log_decay is not None and log_decay.ndim == 4 else mosaic_gpu_vjp
    return kernels.backward(x, beta, log_decay, *cotangents, interpret=interpret)


def _hopper():
    return _passes(hopper_transform, _hopper_gradients)


def _hopper_objection(p: Problem) -> str | None:
    if p.chunk != CHUNK:
        return f"chunks are of {p.chunk} tokens, not {CHUNK}"
    if p.k not in (0, 64, 128):
        return f"key width {p.k} is not 64 or 128"
    if p.decay == "channel" and p.k != 64:
        return f"with decays per channel key width {p.k} is not 64"
    return hopper_objection((p.dtype_name,))


_XLA = base.xla(*_passes(xla.forward, xla.backward))
OP = Op(
    "ut_transform",
    {
        "xla": _XLA,
        "mosaic_gpu": base.hopper(_hopper, _hopper_objection),
        "triton": base.triton(lambda: _passes(triton.forward, triton.backward), triton.objection),
        "mosaic_tpu": base.no_tpu_kernel(_XLA),
    },
    operands=("x", "beta", "log_decay"),
    outputs=5,
)
"""Contract (`op.py`):

    forward(x, beta, log_decay, *, chunk) -> mix, read, write, keep, keys, None
    backward(x, beta, log_decay, None, dmix, dread, dwrite, dkeep, dkeys, *, chunk) -> dx, dbeta, dlog_decay

t a multiple of the chunk c, n = t / c >= 1. x: keys (b, t, h, k) or scores (b, n, h, c, c); mix (b, n, h, c, c), read
and write (b, t, h, k) in the dtype of x; beta (b, t, h) and log_decay (b, t, h) or (b, t, h, k) float32, or None; keep
(b, n, h, k) float32. For scores all outputs but mix are None.
"""
BACKENDS = OP.backends
IMPLEMENTATIONS = OP.implementations


class Transformed(NamedTuple):
    """Operands of `delta_chunks`, and the keys."""

    mix: jax.Array
    """(b, n, h, c, c), dtype of the keys, lower triangular."""
    read: jax.Array
    """(b, t, h, k), dtype of the keys."""
    write: jax.Array
    """(b, t, h, k), dtype of the keys; without decays the keys themselves."""
    keep: jax.Array
    """(b, n, h, k) float32."""
    keys: jax.Array
    """The input keys. Use these in later ops: the gradient kernel then adds their cotangent without another pass over
    memory."""


def ut_transform(
    k: jax.Array,
    beta: jax.Array,
    log_decay: jax.Array | None = None,
    *,
    chunk_size: int = CHUNK,
    implementation: str | None = None,
) -> Transformed:
    """The equations of the module docstring for all chunks at once.

    Scores and the inverse are float32. Differentiable in all arrays; the backward pass keeps the inputs.

    Args:
      k: (b, t, h, k), t a multiple of chunk_size. Pad the last chunk with keys and beta of 0.
      beta: (b, t, h), for keys of length 1 stable in [0, 2]; computed in float32.
      log_decay: (b, t, h), or (b, t, h, k) per channel of the keys; at most 0, finite. None: no decay.
      chunk_size: c. Kernels need c = 64.
      implementation: one of `IMPLEMENTATIONS`; None: chosen for the device (`pallas_kernels.op`).
    """
    check(k, beta, log_decay, chunk_size)
    OP.check(implementation)
    beta = beta.astype(_floats(k))
    log_decay = None if log_decay is None else log_decay.astype(_floats(k))
    if implementation == "reference":
        return Transformed(*reference.transform(k, beta, log_decay, chunk_size), k)
    if k.shape[1] == 0:
        mix = jnp.zeros((len(k), 0, k.shape[2], chunk_size, chunk_size), k.dtype)
        return Transformed(mix, k, k, k.astype(beta.dtype), k)
    problem = problem_of(k, beta, log_decay, chunk_size)
    names = OP.choose(problem, implementation)
    return Transformed(*OP.run(names, problem, k, beta, log_decay, chunk=chunk_size))


def ut_inverse(scores: jax.Array, beta: jax.Array | None = None, *, implementation: str | None = None) -> jax.Array:
    """The inverse (I + A)^-1 Diag(beta) with A_ij = beta_i scores_ij for j < i, of every chunk.

    scores: (b, n, h, c, c), ignored on the diagonal and above; beta: (b, n c, h); None: 1. The result is lower
    triangular, (b, n, h, c, c) in the dtype of scores. Precision and derivatives: as for `ut_transform`.
    """
    _check_scores(scores, beta)
    OP.check(implementation, function="ut_inverse")
    beta = None if beta is None else beta.astype(_floats(scores))
    if implementation == "reference":
        return reference.inverse(scores, beta)
    chunk = scores.shape[4]
    problem = problem_of(scores, beta, None, chunk)
    names = OP.choose(problem, implementation)
    return scores if scores.size == 0 else OP.run(names, problem, scores, beta, None, chunk=chunk)[0]


def sharded_ut_transform(
    k: jax.Array,
    beta: jax.Array,
    log_decay: jax.Array | None = None,
    *,
    mesh: Mesh | AbstractMesh | None = None,
    batch_axes: tuple[str, ...] = (),
    head_axes: tuple[str, ...] = (),
    chunk_size: int = CHUNK,
    implementation: str | None = None,
) -> Transformed:
    """`ut_transform` on a mesh; `pallas_kernels.layout` describes mesh and axes."""
    check(k, beta, log_decay, chunk_size)
    layout = make_layout("sharded_ut_transform", mesh, k, k, batch_axes=batch_axes, head_axes=head_axes)
    run = functools.partial(ut_transform, chunk_size=chunk_size, implementation=implementation)
    spec = layout.queries
    return on_shares(run, layout.mesh, (k, beta, log_decay), (spec, spec, spec), spec)


def sharded_ut_inverse(
    scores: jax.Array,
    beta: jax.Array | None = None,
    *,
    mesh: Mesh | AbstractMesh | None = None,
    batch_axes: tuple[str, ...] = (),
    head_axes: tuple[str, ...] = (),
    implementation: str | None = None,
) -> jax.Array:
    """`ut_inverse` on a mesh; `pallas_kernels.layout` describes mesh and axes."""
    _check_scores(scores, beta)
    layout = make_layout("sharded_ut_inverse", mesh, scores, scores, batch_axes=batch_axes, head_axes=head_axes)
    run = functools.partial(ut_inverse, implementation=implementation)
    spec = layout.queries
    return on_shares(run, layout.mesh, (scores, beta), (spec, spec), spec)


def check(k, beta, log_decay, chunk_size: int) -> None:
    """Raises ValueError unless the arguments of `ut_transform` fit together."""
    op = "ut_transform"
    if k.ndim != 4:
        raise ValueError(f"{op}: k of shape {k.shape} must be (b, t, h, k)")
    if chunk_size < 1 or k.shape[1] % chunk_size:
        raise ValueError(f"{op}: t={k.shape[1]} of k must be a multiple of chunk_size={chunk_size}; pad the last chunk")
    if beta.shape != k.shape[:3]:
        raise ValueError(f"{op}: beta of shape {beta.shape} must be (b, t, h)={k.shape[:3]}")
    if log_decay is not None and log_decay.shape not in (k.shape[:3], k.shape):
        raise ValueError(f"{op}: log_decay of shape {log_decay.shape} must be {k.shape[:3]} or {k.shape}")


def _check_scores(scores, beta) -> None:
    if scores.ndim != 5 or scores.shape[3] != scores.shape[4] or scores.shape[4] == 0:
        raise ValueError(f"ut_inverse: scores of shape {scores.shape} must be (b, n, h, c, c)")
    b, n, h, c, _ = scores.shape
    if beta is not None and beta.shape != (b, n * c, h):
        raise ValueError(f"ut_inverse: beta of shape {beta.shape} must be (b, n c, h)={(b, n * c, h)}")


def _floats(x: jax.Array) -> Any:
    """Dtype of beta and decays: float32; float64 for a reference in float64."""
    return jnp.float64 if x.dtype == jnp.float64 else jnp.float32
