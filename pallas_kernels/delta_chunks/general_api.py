"""The general delta rule of RWKV-7 (Peng et al. 2025, arXiv 2503.14456): public function.

    S_t = Diag(exp(g_t)) S_{t-1} + z_t (u_t^T S_{t-1}) + k_t v_t^T          y_t = S_t^T q_t

with a log decay g per channel of the keys. u reads the state before its decay. `general_xla.py` has the form in chunks.
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
    """Problem of a call with these arrays."""
    b, t, h, width = v.shape
    return GeneralProblem(b=b, t=t, h=h, k=k.shape[3], v=width, dtype=v.dtype.name)


def _passes(stages: ModuleType) -> tuple[Callable, Callable]:
    """Forward and backward passes from a module with the functions of `general_xla`."""

    def forward(q, k, v, u, z, log_decay, state, options, **how):
        given = stages.prepare(q, k, u, z, log_decay, **how)
        mix = stages.inverse(given.system, **how)
        y, last, x, states = stages.recur(v, given, mix, state, save=options.save_states, **how)
        saved = general_xla.Saved(x, states, mix) if options.save_states else None
        return y, last if options.return_state else None, saved

    def backward(q, k, v, u, z, log_decay, state, saved, dy, dstate, options, **how):
        """Recomputes everything but the states: it is four times as large as the inputs."""
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
"""Contract (`op.py`):

    forward(q, k, v, u, z, log_decay, state, options) -> y, last state or None, `general_xla.Saved`
    backward(q, k, v, u, z, log_decay, state, saved, dy, dstate, options)
        -> dq, dk, dv, du, dz, dlog_decay, dstate

t >= 1, a multiple of 64; q, k, u, z (b, t, h, k), v, y and dy (b, t, h, v) of the same dtype; log_decay (b, t, h, k)
float32; state and dstate (b, h, k, v) float32, None: zeros.
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

    Differentiable in all arrays, through the output and the last state. The backward pass keeps the inputs and 3 b t h
    64 numbers in their dtype: reads, states before chunks, and inverses.

    Args:
      q: queries (b, t, h, k), scaled by the caller.
      k: keys (b, t, h, k), dtype of q.
      v: values (b, t, h, v), dtype of q.
      u: (b, t, h, k), dtype of q: reads the state before its decay; 0 where a document begins.
      z: (b, t, h, k), dtype of q: writes the result of the read.
      log_decay: (b, t, h, k), at most 0; computed in float32; -8192 where a document begins.
      initial_state: (b, h, k, v) float32, S before the first token; None: zeros.
      return_state: whether to return S after the last token too.
      implementation: one of `IMPLEMENTATIONS`; None: chosen for the device (`pallas_kernels.op`).

    Returns:
      y (b, t, h, v) in the dtype of v, or (y, state).
    """
    _check(q, k, v, u, z, log_decay, initial_state)
    OP.check(implementation)
    if implementation == "reference":
        y, state = reference.general_recurrence(q, k, v, u, z, log_decay, initial_state=initial_state)
        return (y, state) if return_state else y
    t = v.shape[1]
    padding = ((0, 0), (0, -t % CHUNK), (0, 0), (0, 0))
    tokens = [jnp.pad(x, padding) for x in (q, k, v, u, z, log_decay.astype(jnp.float32))]
    (b, _, h, v_dim), k_dim = v.shape, k.shape[3]
    found = OP.recur(
        problem_of(k, tokens[2]), implementation, *tokens, initial_state, options=Options(return_state),
        empty=lambda: (v, jnp.zeros((b, h, k_dim, v_dim), jnp.float32)),
    )  # fmt: skip
    return (found[0][:, :t], found[1]) if return_state else found[:, :t]


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
