"""What the tokens of a delta rule write: `ut_transform` and `delta_chunks`, with one kernel for all gradients."""

import functools

import jax
import jax.numpy as jnp

from pallas_kernels.dispatch import choose, may_run_by_default, run
from pallas_kernels.ut_transform.api import CHUNK, check
from pallas_kernels.ut_transform.problem import ValuesProblem
from pallas_kernels.ut_transform.values_backends import BACKENDS, Options


def delta_values(
    k: jax.Array,
    v: jax.Array,
    beta: jax.Array,
    log_decay: jax.Array | None = None,
    *,
    initial_state: jax.Array | None = None,
    implementation: str | None = None,
) -> tuple[jax.Array, jax.Array]:
    """v' of the equation of `api.py`, in every chunk after the state that the chunks before it leave.

    The outputs of a delta rule are decayed linear attention over them, which takes the keys that are returned: their
    gradients are added where those of this op are computed. The backward pass keeps mix, read, write and the states
    before every chunk of 64 tokens.

    Args:
      k, beta, log_decay: as for `ut_transform`, t a multiple of 64.
      v: (b, t, h, v), dtype of the keys.
      initial_state: (b, h, k, v) float32; None: zeros.
      implementation: "xla" or "mosaic_gpu", or None, as for `ut_transform`; kernels of `delta_chunks` must be verified
        too.

    Returns:
      v' (b, t, h, v) in the dtype of v, and the keys.

    Raises:
      ValueError: arguments that contradict each other.
      NotImplementedError: the implementation asked for does not serve this call.
    """
    check_values(k, v, beta, log_decay)
    if implementation is not None and implementation not in BACKENDS:
        raise ValueError(f"delta_values: implementation={implementation!r} must be one of {tuple(BACKENDS)}")
    if v.size == 0:
        return v, k
    beta = beta.astype(jnp.float32)
    log_decay = None if log_decay is None else log_decay.astype(jnp.float32)
    decay = "none" if log_decay is None else "token" if log_decay.ndim == 3 else "channel"
    (b, t, h, v_dim), k_dim = v.shape, k.shape[3]
    problem = ValuesProblem(b=b, t=t, h=h, k=k_dim, v=v_dim, decay=decay, chunk=CHUNK, dtype=k.dtype.name)
    kernels = ("mosaic_gpu",) if may_run_by_default("cuda", "delta_chunks") else ()
    names = choose(BACKENDS, problem, implementation, kernels=kernels)
    return _values(k, v, beta, log_decay, initial_state, names, problem)


def check_values(k, v, beta, log_decay) -> None:
    """Whether the arguments of `delta_values` fit together.

    Raises:
      ValueError: they do not.
    """
    check(k, beta, log_decay, CHUNK)
    if v.ndim != 4 or v.shape[:3] != k.shape[:3] or v.dtype != k.dtype:
        given = f"{v.shape} {v.dtype.name}"
        raise ValueError(f"delta_values: v of {given} must be (b, t, h, v) of k of {k.shape} {k.dtype.name}; cast it")


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6))
def _values(k, v, beta, log_decay, state, names, problem):
    options = Options(problem.chunk, save=False)
    return run(BACKENDS, "forward", names, problem, k, v, beta, log_decay, state, options=options)[0], k


def _values_forward(k, v, beta, log_decay, state, names, problem):
    inputs, options = (k, v, beta, log_decay, state), Options(problem.chunk, save=True)
    y, kept = run(BACKENDS, "forward", names, problem, *inputs, options=options)
    return (y, k), (*inputs, y, kept)


def _values_backward(names, problem, residuals, cotangents):
    options = Options(problem.chunk, save=True)
    return tuple(run(BACKENDS, "backward", names, problem, *residuals, *cotangents, options=options))


_values.defvjp(_values_forward, _values_backward)
