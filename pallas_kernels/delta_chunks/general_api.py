"""The general delta rule, of RWKV-7 (Peng et al. 2025, arXiv 2503.14456), for users.

    S_t = Diag(exp(g_t)) S_{t-1} + z_t (u_t^T S_{t-1}) + k_t v_t^T          y_t = S_t^T q_t

with a log decay g per channel of the keys. u reads the state before its decay. In chunks as `general_xla.py` says.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import op as base
from pallas_kernels.delta_chunks import general_xla, reference
from pallas_kernels.delta_chunks.general_xla import CHUNK
from pallas_kernels.delta_chunks.problem import GeneralProblem
from pallas_kernels.dispatch import hopper_objection
from pallas_kernels.op import Op, Options, check_dtypes, check_state


def problem_of(k: jax.Array, v: jax.Array) -> GeneralProblem:
    """The problem of a call's arrays."""
    b, t, h, width = v.shape
    return GeneralProblem(b=b, t=t, h=h, k=k.shape[3], v=width, dtype=v.dtype.name)


def _passes(stages: ModuleType) -> tuple[Callable, Callable]:
    """Forward and backward of a module with the functions of `general_xla`."""

    def forward(q, k, v, u, z, log_decay, state, options, **how):
        given = stages.prepare(q, k, u, z, log_decay, **how)
        mix = stages.inverse(given.system, **how)
        y, last, x, states = stages.recur(v, given, mix, state, save=options.save_states, **how)
        saved = general_xla.Saved(x, states, mix) if options.save_states else None
        return y, last if options.return_state else None, saved

    def backward(q, k, v, u, z, log_decay, state, saved, dy, dstate, options, **how):
        """What is before states is made again: it is four times the inputs."""
        given = stages.prepare(q, k, u, z, log_decay, **how)
        dx, dv, after, first = stages.recur_reverse(dy, given, saved.mix, dstate, **how)
        found = stages.gradients(q, k, u, z, log_decay, v, saved.x, dy, dx, saved.states, after, **how)
        dq, dk, du, dz, dlog_decay = found
        return dq, dk, dv, du, dz, dlog_decay, None if state is None else first

    return forward, backward


def _hopper():
    from pallas_kernels.delta_chunks import mosaic_gpu_general

    return _passes(mosaic_gpu_general)


def _hopper_objection(p: GeneralProblem) -> str | None:
    if (p.k, p.v) != (64, 64):
        return f"key and value widths {p.k}, {p.v} are not 64"
    return hopper_objection((p.dtype_name,))


_XLA = base.xla(*_passes(general_xla))
OP = Op(
    "general_delta_rule",
    {
        "xla": _XLA,
        "mosaic_gpu": base.hopper(_hopper, _hopper_objection),
        "mosaic_tpu": base.no_tpu_kernel(_XLA),
    },
    operands=("q", "k", "v", "u", "z", "log_decay", "state"),
)
"""As `op.py` says, with

    forward(q, k, v, u, z, log_decay, state, options) -> y, last state or None, `general_xla.Saved`
    backward(q, k, v, u, z, log_decay, state, saved, dy, dstate, options)
        -> dq, dk, dv, du, dz, dlog_decay, dstate

t >= 1, a multiple of 64; q, k, u, z (b, t, h, k), v, y and dy (b, t, h, v) of one dtype; log_decay (b, t, h, k) and
state (b, h, k, v) float32, None means zeros; dstate None likewise.
"""
BACKENDS = OP.backends
IMPLEMENTATIONS = OP.implementations


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
      implementation: one of `IMPLEMENTATIONS`, which runs or raises; None: a kernel, where it serves this call and is
        certified for the device that the program is lowered for (`pallas_kernels.certificates`), else "xla".

    Returns:
      y (b, t, h, v) in the dtype of v, or (y, state).

    Raises:
      ValueError: arguments that contradict each other.
      NotImplementedError: the implementation asked for does not serve this call.
    """
    _check(q, k, v, u, z, log_decay, initial_state)
    OP.check(implementation)
    if implementation == "reference":
        y, state = reference.general_recurrence(q, k, v, u, z, log_decay, initial_state=initial_state)
        return (y, state) if return_state else y
    t = v.shape[1]
    padding = ((0, 0), (0, -t % CHUNK), (0, 0), (0, 0))
    tokens = [jnp.pad(x, padding) for x in (q, k, v, u, z, log_decay.astype(jnp.float32))]
    problem = problem_of(k, tokens[2])
    names = OP.choose(problem, implementation)
    if t == 0:
        y, state = v, initial_state
        if state is None:
            state = jnp.zeros((problem.b, problem.h, problem.k, problem.v), jnp.float32)
    else:
        options = Options(return_state, save_states=False)
        y, state = OP.run(names, problem, *tokens, initial_state, options=options)
    return (y[:, :t], state) if return_state else y[:, :t]


def _check(q, k, v, u, z, log_decay, state) -> None:
    op = "general_delta_rule"
    if v.ndim != 4 or q.ndim != 4 or q.shape[:3] != v.shape[:3]:
        raise ValueError(f"{op}: q, v of shapes {q.shape}, {v.shape} must be (b, t, h, k), (b, t, h, v)")
    for name, x in {"k": k, "u": u, "z": z, "log_decay": log_decay}.items():
        if x.shape != q.shape:
            raise ValueError(f"{op}: {name} of shape {x.shape} must be (b, t, h, k)={q.shape}, as q")
    check_dtypes(op, q=q, k=k, v=v, u=u, z=z)
    b, _, h, width = v.shape
    check_state(op, state, "(b, h, k, v)", (b, h, q.shape[3], width))
