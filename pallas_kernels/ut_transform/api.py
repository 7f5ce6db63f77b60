"""The UT transform of the delta rules, for users.

A delta rule with keys k, rates beta and log decays, whose sums from the start of a chunk of C tokens are G, writes

    v'_i = beta_i (v_i - exp(G_i) k_i S - sum_{j<i} exp(G_i - G_j) (k_i . k_j) v'_j)

to the state S before the chunk (arXiv 2406.06484, section 3.3; arXiv 2412.06464, section 3.3; arXiv 2510.26692). So V'
= mix (V + read S) with

    A_ij = beta_i exp(G_i - G_j) k_i . k_j, j < i       mix = (I + A)^-1 Diag(beta)         read = -exp(G) K

and the state after the chunk is exp(G_C) S + write^T V' with write = exp(G_C - G) K: what `delta_chunks` takes.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels.dispatch import choose, run
from pallas_kernels.ut_transform import reference
from pallas_kernels.ut_transform.backends import BACKENDS, KERNELS, Options, problem_of

IMPLEMENTATIONS = ("reference", *BACKENDS)
CHUNK = 64
"""Tokens of a chunk of the kernels."""


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
    """The keys as they came. Whoever else needs them takes these: the kernel of the gradients adds theirs, where
    otherwise a pass over memory would."""


def ut_transform(
    k: jax.Array,
    beta: jax.Array,
    log_decay: jax.Array | None = None,
    *,
    chunk_size: int = CHUNK,
    implementation: str | None = None,
) -> Transformed:
    """The equations of the module docstring for all chunks at once.

    Scores, the inverse and sums are float32, whatever the keys. Reverse-mode differentiable in all arrays; forward mode
    only with "reference". vmap, scan, checkpoint and jit compose. The backward pass keeps the inputs.

    Args:
      k: (b, t, h, k), t a multiple of chunk_size. A caller pads the last chunk by keys and beta of 0.
      beta: (b, t, h), with keys of length 1 stable in [0, 2]; computed in float32.
      log_decay: (b, t, h), or (b, t, h, k) per channel of the keys; at most 0, finite. None: no decay.
      chunk_size: c. Kernels have c = 64.
      implementation: one of `IMPLEMENTATIONS`, which runs or raises; None: the kernel of the platform that the program
        is lowered for, where it serves this call and was verified on that kind of device
        (`pallas_kernels.certificates`), else "xla".

    Raises:
      ValueError: arguments that contradict each other.
      NotImplementedError: the implementation asked for does not serve this call.
    """
    check(k, beta, log_decay, chunk_size)
    _check_implementation("ut_transform", implementation)
    beta = beta.astype(_floats(k))
    log_decay = None if log_decay is None else log_decay.astype(_floats(k))
    if implementation == "reference":
        found = reference.transform(k, beta, log_decay, chunk_size)
    elif k.shape[1] == 0:
        found = jnp.zeros((len(k), 0, k.shape[2], chunk_size, chunk_size), k.dtype), k, k, k.astype(beta.dtype)
    else:
        problem = problem_of(k, beta, log_decay, chunk_size)
        names = choose(BACKENDS, problem, implementation, kernels=KERNELS)
        return Transformed(*_transform(k, beta, log_decay, names, problem))
    return Transformed(*found, k)


def ut_inverse(scores: jax.Array, beta: jax.Array | None = None, *, implementation: str | None = None) -> jax.Array:
    """(I + A)^-1 Diag(beta) with A_ij = beta_i scores_ij for j < i, of every chunk: the inverse alone.

    For systems of a caller's own scores; what they have on the diagonal and above it does not count. Differentiable
    and computed as `ut_transform` is.

    Args:
      scores: (b, n, h, c, c).
      beta: (b, n c, h); None: 1.
      implementation: as for `ut_transform`.

    Returns:
      (b, n, h, c, c) in the dtype of scores, lower triangular.
    """
    check_scores(scores, beta)
    _check_implementation("ut_inverse", implementation)
    beta = None if beta is None else beta.astype(_floats(scores))
    if implementation == "reference":
        return reference.inverse(scores, beta)
    problem = problem_of(scores, beta, None, scores.shape[4])
    names = choose(BACKENDS, problem, implementation, kernels=KERNELS)
    return scores if scores.size == 0 else _inverse(scores, beta, names, problem)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _transform(k, beta, log_decay, names, problem):
    found = run(BACKENDS, "forward", names, problem, k, beta, log_decay, options=Options(problem.chunk))
    mix, read, write, keep = found
    if log_decay is None:
        write, keep = k, jnp.ones((problem.b, problem.chunks, problem.h, problem.k), jnp.float32)
    return mix, read, write, keep, k


def _transform_forward(k, beta, log_decay, names, problem):
    return _transform(k, beta, log_decay, names, problem), (k, beta, log_decay)


def _transform_backward(names, problem, inputs, cotangents):
    dmix, dread, dwrite, dkeep, dkeys = cotangents
    if inputs[2] is None:
        dkeep = None
    operands = *inputs, dmix, dread, dwrite, dkeep, dkeys
    return tuple(run(BACKENDS, "backward", names, problem, *operands, options=Options(problem.chunk)))


_transform.defvjp(_transform_forward, _transform_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _inverse(scores, beta, names, problem):
    return run(BACKENDS, "forward", names, problem, scores, beta, None, options=Options(problem.chunk))[0]


def _inverse_forward(scores, beta, names, problem):
    return _inverse(scores, beta, names, problem), (scores, beta)


def _inverse_backward(names, problem, inputs, cotangent):
    operands = *inputs, None, cotangent, *[None] * 4
    return tuple(run(BACKENDS, "backward", names, problem, *operands, options=Options(problem.chunk)))[:2]


_inverse.defvjp(_inverse_forward, _inverse_backward)


def check(k, beta, log_decay, chunk_size: int) -> None:
    """Whether the arguments of `ut_transform` fit together.

    Raises:
      ValueError: they do not.
    """
    op = "ut_transform"
    if k.ndim != 4:
        raise ValueError(f"{op}: k of shape {k.shape} must be (b, t, h, k)")
    if chunk_size < 1 or k.shape[1] % chunk_size:
        raise ValueError(f"{op}: t={k.shape[1]} of k must be a multiple of chunk_size={chunk_size}; pad the last chunk")
    if beta.shape != k.shape[:3]:
        raise ValueError(f"{op}: beta of shape {beta.shape} must be (b, t, h)={k.shape[:3]}")
    if log_decay is not None and log_decay.shape not in (k.shape[:3], k.shape):
        raise ValueError(f"{op}: log_decay of shape {log_decay.shape} must be {k.shape[:3]} or {k.shape}")


def check_scores(scores, beta) -> None:
    """The same of `ut_inverse`."""
    if scores.ndim != 5 or scores.shape[3] != scores.shape[4] or scores.shape[4] == 0:
        raise ValueError(f"ut_inverse: scores of shape {scores.shape} must be (b, n, h, c, c)")
    b, n, h, c, _ = scores.shape
    if beta is not None and beta.shape != (b, n * c, h):
        raise ValueError(f"ut_inverse: beta of shape {beta.shape} must be (b, n c, h)={(b, n * c, h)}")


def _check_implementation(op: str, implementation: str | None) -> None:
    if implementation is not None and implementation not in IMPLEMENTATIONS:
        raise ValueError(f"{op}: implementation={implementation!r} must be one of {IMPLEMENTATIONS}")


def _floats(x: jax.Array):
    """Dtype of beta and decays: float64 only for the reference in float64."""
    return jnp.float64 if x.dtype == jnp.float64 else jnp.float32
