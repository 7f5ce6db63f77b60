"""The general delta rule, of RWKV-7 (Peng et al. 2025, arXiv 2503.14456), for users.

    S_t = Diag(exp(g_t)) S_{t-1} + z_t (u_t^T S_{t-1}) + k_t v_t^T          y_t = S_t^T q_t

with a log decay g per channel of the keys. u reads the state before its decay. In chunks as `general_xla.py` says.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.delta_chunks import reference
from pallas_kernels.delta_chunks.general_backends import BACKENDS, KERNELS, Options, problem_of
from pallas_kernels.delta_chunks.general_xla import CHUNK
from pallas_kernels.dispatch import choose, run

IMPLEMENTATIONS = ("reference", *BACKENDS)


def general_delta_rule(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    u: jax.Array,
    z: jax.Array,
    log_decay: jax.Array,
    *,
    initial_state: jax.Array | None = None,
    return_state: bool = False,
    implementation: str | None = None,
) -> Any:
    """The equation of the module docstring over t >= 0 tokens.

    Sums and states are float32, whatever the inputs. Reverse-mode differentiable in all arrays, through the output and
    the last state; forward mode only with "reference". vmap, scan, checkpoint and jit compose. The backward pass keeps
    the inputs and 3 b t h 64 numbers in their dtype: what tokens read, states before chunks, and inverses.

    Args:
      q: queries (b, t, h, k), scaled by the caller.
      k: keys likewise, dtype of q.
      v: values (b, t, h, v), dtype of q.
      u: reads the state, before its decay, (b, t, h, k), dtype of q. 0 where a document begins.
      z: where the result is added, likewise.
      log_decay: at most 0, (b, t, h, k); computed in float32. -8192 where a document begins.
      initial_state: (b, h, k, v) float32, S before the first token; None: zeros.
      return_state: return S after the last token too.
      implementation: one of `IMPLEMENTATIONS`, which runs or raises; None: the kernel of the platform that the program
        is lowered for, where it serves this call and was verified on that kind of device
        (`pallas_kernels.certificates`), else "xla".

    Returns:
      y (b, t, h, v) in the dtype of v, or (y, state).

    Raises:
      ValueError: arguments that contradict each other.
      NotImplementedError: the implementation asked for does not serve this call.
    """
    check(q, k, v, u, z, log_decay, initial_state)
    if implementation is not None and implementation not in IMPLEMENTATIONS:
        raise ValueError(f"general_delta_rule: implementation={implementation!r} must be one of {IMPLEMENTATIONS}")
    if implementation == "reference":
        y, state = reference.general_recurrence(q, k, v, u, z, log_decay, initial_state=initial_state)
        return (y, state) if return_state else y
    t = v.shape[1]
    tokens = [jnp.pad(x, ((0, 0), (0, -t % CHUNK), (0, 0), (0, 0))) for x in (q, k, v, u, z)]
    log_decay = jnp.pad(log_decay.astype(jnp.float32), ((0, 0), (0, -t % CHUNK), (0, 0), (0, 0)))
    problem = problem_of(k, tokens[2])
    names = choose(BACKENDS, problem, implementation, kernels=KERNELS)
    if t == 0:
        y, state = v, initial_state
        if state is None:
            state = jnp.zeros((problem.b, problem.h, problem.k, problem.v), jnp.float32)
    else:
        y, state = _recur(*tokens, log_decay, initial_state, names, problem, return_state)
    return (y[:, :t], state) if return_state else y[:, :t]


@functools.partial(jax.custom_vjp, nondiff_argnums=(7, 8, 9))
def _recur(q, k, v, u, z, log_decay, state, names, problem, return_state):
    options = Options(return_state, save_states=False)
    return run(BACKENDS, "forward", names, problem, q, k, v, u, z, log_decay, state, options=options)[:2]


def _recur_forward(q, k, v, u, z, log_decay, state, names, problem, return_state):
    operands, options = (q, k, v, u, z, log_decay, state), Options(return_state, save_states=True)
    y, last, saved = run(BACKENDS, "forward", names, problem, *operands, options=options)
    return (y, last), (*operands, saved)


def _recur_backward(names, problem, return_state, residuals, cotangents):
    options = Options(return_state, save_states=True)
    return tuple(run(BACKENDS, "backward", names, problem, *residuals, *cotangents, options=options))


_recur.defvjp(_recur_forward, _recur_backward)


def check(q, k, v, u, z, log_decay, state) -> None:
    """Whether the arguments of `general_delta_rule` fit together.

    Raises:
      ValueError: they do not.
    """
    op = "general_delta_rule"
    if v.ndim != 4 or q.ndim != 4 or q.shape[:3] != v.shape[:3]:
        raise ValueError(f"{op}: q, v of shapes {q.shape}, {v.shape} must be (b, t, h, k), (b, t, h, v)")
    (b, _, h, width), size = v.shape, q.shape[3]
    for name, x in {"k": k, "u": u, "z": z, "log_decay": log_decay}.items():
        if x.shape != q.shape:
            raise ValueError(f"{op}: {name} of shape {x.shape} must be (b, t, h, k)={q.shape}, as q")
    dtypes = tuple(x.dtype.name for x in (q, k, v, u, z))
    if len(set(dtypes)) > 1:
        raise ValueError(f"{op}: dtypes of q, k, v, u, z {dtypes} must be equal; cast them")
    if state is not None and state.shape != (b, h, size, width):
        raise ValueError(f"{op}: initial_state of shape {state.shape} must be (b, h, k, v)={(b, h, size, width)}")
