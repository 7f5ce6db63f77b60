"""Gated linear attention for users.

    S_t = Diag(exp(g_t)) S_{t-1} + k_t v_t^T        y_t = scale S_t^T q_t

with log decays g_t <= 0: one number per head and token (RetNet, Sun et al. 2023, eq. 6, where it is a constant of the
head; Mamba-2, Dao and Gu 2024, where C, B and delta x are q, k and v) or one per channel of the keys (GLA, Yang et al.
2024, eq. 4). The decay acts on the state before the token is written.

RWKV-5 and 6 read before they write, and add a bonus for the token itself: shift k, v and g by one token, and add
(q . u k) v.
"""

import functools
from typing import Literal, overload

import jax
import jax.numpy as jnp

from pallas_kernels.dispatch import choose, may_run_by_default, may_run_on, run
from pallas_kernels.gated_linear_attention import reference, xla
from pallas_kernels.gated_linear_attention.backends import BACKENDS, KERNELS, Options
from pallas_kernels.gated_linear_attention.problem import Problem

IMPLEMENTATIONS = ("reference", *BACKENDS)


@overload
def gated_linear_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    log_decay: jax.Array,
    *,
    scale: float = 1.0,
    segment_ids: jax.Array | None = None,
    initial_state: jax.Array | None = None,
    return_state: Literal[False] = False,
    implementation: str | None = None,
) -> jax.Array: ...
@overload
def gated_linear_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    log_decay: jax.Array,
    *,
    scale: float = 1.0,
    segment_ids: jax.Array | None = None,
    initial_state: jax.Array | None = None,
    return_state: Literal[True],
    implementation: str | None = None,
) -> tuple[jax.Array, jax.Array]: ...
def gated_linear_attention(
    q,
    k,
    v,
    log_decay,
    *,
    scale=1.0,
    segment_ids=None,
    initial_state=None,
    return_state=False,
    implementation=None,
):
    """The equation of the module docstring over t >= 0 tokens.

    Sums and states are float32, whatever the inputs. Reverse-mode differentiable in q, k, v, log_decay and the initial
    state, through the output and the final state; forward mode only with "reference". vmap, scan, checkpoint and jit
    compose.

    Args:
      q: (b, t, g, k); head i of q and k serves the heads i h/g .. (i+1) h/g - 1 of v, as the groups of Mamba-2.
      k: (b, t, g, k), dtype of q.
      v: (b, t, h, v), dtype of q; h is a multiple of g.
      log_decay: (b, t, h) or (b, t, h, k), at most 0 and finite, computed in float32.
      scale: factor of y, a Python number; multiplied into q, in its dtype.
      segment_ids: (b, t) int32, packed documents, each one run of equal ids in a row: the first token of a document
        finds a state of zeros. `initial_state` is that of the first document, the state returned that of the last.
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
    check(q, k, v, log_decay, segment_ids, initial_state)
    if implementation is not None and implementation not in IMPLEMENTATIONS:
        raise ValueError(f"gated_linear_attention: implementation={implementation!r} must be one of {IMPLEMENTATIONS}")
    (b, t, h, v_dim), (g, k_dim) = v.shape, k.shape[2:]
    if scale != 1:
        q = q * jnp.asarray(scale, q.dtype)
    if implementation == "reference":
        y, state = reference.recurrence(q, k, v, log_decay, initial_state=initial_state, segment_ids=segment_ids)
        return (y, state) if return_state else y
    log_decay = log_decay.astype(jnp.float32)
    problem = Problem(b=b, t=t, h=h, g=g, k=k_dim, v=v_dim, dtype=q.dtype.name, channel=log_decay.ndim == 4)
    names = choose(BACKENDS, problem, implementation, kernels=KERNELS)
    decays = xla.with_resets(log_decay.reshape(b, t, h, k_dim if problem.channel else 1), segment_ids).reshape(
        log_decay.shape
    )
    if t == 0:
        y, state = jnp.zeros(v.shape, v.dtype), initial_state
        state = jnp.zeros((b, h, k_dim, v_dim), jnp.float32) if state is None else state
    elif names == ("xla",):
        y, state = xla.forward(q, k, v, decays, initial_state)
    else:
        may_run = may_run_on if implementation else may_run_by_default
        save = next((x for x in KERNELS if x in names and may_run(str(BACKENDS[x].platform))), None)
        options = Options(return_state, save_states=save)
        y, state = _attend(q, k, v, decays, initial_state, names, problem, options)
    return (y, state) if return_state else y


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6, 7))
def _attend(q, k, v, log_decay, state, names, problem, options):
    options = options._replace(save_states=None)
    return run(BACKENDS, "forward", names, problem, q, k, v, log_decay, state, options=options)[:2]


def _attend_forward(q, k, v, log_decay, state, names, problem, options):
    operands = q, k, v, log_decay, state
    y, last, saved = run(BACKENDS, "forward", names, problem, *operands, options=options)
    return (y, last), (*operands, saved)


def _attend_backward(names, problem, options, residuals, cotangents):
    return run(BACKENDS, "backward", names, problem, *residuals, *cotangents, options=options)


_attend.defvjp(_attend_forward, _attend_backward)


def check(q, k, v, log_decay, segment_ids, state) -> None:
    """Whether the arguments of `gated_linear_attention` fit together.

    Raises:
      ValueError: they do not.
    """
    op = "gated_linear_attention"
    if not q.ndim == k.ndim == v.ndim == 4 or q.shape != k.shape or v.shape[:2] != q.shape[:2]:
        raise ValueError(
            f"{op}: q, k, v of shapes {q.shape}, {k.shape}, {v.shape} must be (b, t, g, k), (b, t, g, k), (b, t, h, v)"
        )
    (b, t, h, v_dim), (g, k_dim) = v.shape, k.shape[2:]
    if g == 0 or h % g:
        raise ValueError(f"{op}: {h} heads of v must be a multiple of the {g} heads of q and k")
    if not q.dtype == k.dtype == v.dtype:
        dtypes = (q.dtype.name, k.dtype.name, v.dtype.name)
        raise ValueError(f"{op}: dtypes of q, k, v {dtypes} must be equal; cast them")
    if log_decay.shape not in ((b, t, h), (b, t, h, k_dim)):
        raise ValueError(
            f"{op}: log_decay of shape {log_decay.shape} must be (b, t, h)={(b, t, h)} or (b, t, h, k)="
            f"{(b, t, h, k_dim)}; broadcast it"
        )
    if segment_ids is not None and (segment_ids.shape != (b, t) or segment_ids.dtype != jnp.int32):
        raise ValueError(
            f"{op}: segment_ids {segment_ids.dtype.name}{list(segment_ids.shape)} must be int32{[b, t]}, one for each "
            "token"
        )
    if state is not None and state.shape != (b, h, k_dim, v_dim):
        raise ValueError(f"{op}: initial_state of shape {state.shape} must be (b, h, k, v)={(b, h, k_dim, v_dim)}")
