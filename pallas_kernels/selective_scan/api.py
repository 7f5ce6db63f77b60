"""Selective scan for users: the recurrence of Mamba (Gu and Dao 2023, Algorithm 2).

    h_t[i, n] = exp(delta_t[i] a[i, n]) h_{t-1}[i, n] + delta_t[i] x_t[i] b_t[n]        y_t[i] = sum_n c_t[n] h_t[i, n]

What surrounds it in the paper stays outside: the softplus that makes delta, the skip D x, the gate. b is discretised by
Euler's rule, as the public code does.
"""

import functools
from typing import Literal, overload

import jax
import jax.numpy as jnp

from pallas_kernels.dispatch import choose, may_run_by_default, may_run_on, run
from pallas_kernels.selective_scan import reference, xla
from pallas_kernels.selective_scan.backends import BACKENDS, KERNELS, Options, problem_of

IMPLEMENTATIONS = ("reference", *BACKENDS)


@overload
def selective_scan(
    x: jax.Array,
    delta: jax.Array,
    a: jax.Array,
    b: jax.Array,
    c: jax.Array,
    *,
    segment_ids: jax.Array | None = None,
    initial_state: jax.Array | None = None,
    return_state: Literal[False] = False,
    implementation: str | None = None,
) -> jax.Array: ...
@overload
def selective_scan(
    x: jax.Array,
    delta: jax.Array,
    a: jax.Array,
    b: jax.Array,
    c: jax.Array,
    *,
    segment_ids: jax.Array | None = None,
    initial_state: jax.Array | None = None,
    return_state: Literal[True],
    implementation: str | None = None,
) -> tuple[jax.Array, jax.Array]: ...
def selective_scan(x, delta, a, b, c, *, segment_ids=None, initial_state=None, return_state=False, implementation=None):
    """The equation of the module docstring over t >= 0 tokens.

    Sums and states are float32, whatever the inputs. Reverse-mode differentiable in x, delta, a, b, c and the initial
    state, through the output and the final state; forward mode only with "reference". vmap, scan, checkpoint and jit
    compose.

    Args:
      x: (b, t, d), d channels.
      delta: (b, t, d), the step, at least 0; float32 or the dtype of x. A token with delta 0 changes no state.
      a: (d, n), at most 0, n numbers of state per channel; computed in float32.
      b: (b, t, n), dtype of x: writes to the state.
      c: (b, t, n), dtype of x: reads from it.
      segment_ids: (b, t) int32, packed documents, each one run of equal ids in a row: the first token of a document
        finds a state of zeros. `initial_state` is that of the first document, the state returned that of the last.
      initial_state: (b, d, n) float32, h before the first token; None: zeros.
      return_state: return h after the last token too.
      implementation: one of `IMPLEMENTATIONS`, which runs or raises; None: the kernel of the platform that the program
        is lowered for, where it serves this call and was verified on that kind of device
        (`pallas_kernels.certificates`), else "xla".

    Returns:
      y (b, t, d) in the dtype of x, or (y, state).

    Raises:
      ValueError: arguments that contradict each other.
      NotImplementedError: the implementation asked for does not serve this call.
    """
    check(x, delta, a, b, c, segment_ids, initial_state)
    if implementation is not None and implementation not in IMPLEMENTATIONS:
        raise ValueError(f"selective_scan: implementation={implementation!r} must be one of {IMPLEMENTATIONS}")
    if implementation == "reference":
        y, state = reference.recurrence(x, delta, a, b, c, segment_ids=segment_ids, initial_state=initial_state)
        return (y, state) if return_state else y
    keep = xla.keep_of(segment_ids)
    return scan_kept(x, delta, a, b, c, keep, initial_state, return_state=return_state, implementation=implementation)


def scan_kept(x, delta, a, b, c, keep, state, *, return_state, implementation):
    """`selective_scan` by any implementation but "reference", of keep (b, t) or None, as `backends.py` says."""
    a = a.astype(jnp.float32)
    problem = problem_of(x, delta, a)
    names = choose(BACKENDS, problem, implementation, kernels=KERNELS)
    if problem.t == 0:
        y = jnp.zeros(x.shape, x.dtype)
        state = jnp.zeros((problem.b, problem.d, problem.n), jnp.float32) if state is None else state
    elif names == ("xla",):
        y, state = xla.forward(x, delta, a, b, c, keep, state)
    else:
        save = next((name for name in KERNELS if name in names and _may_run(name, implementation)), None)
        options = Options(return_state, save_states=save)
        y, state = _scan(x, delta, a, b, c, keep, state, names, problem, options)
    return (y, state) if return_state else y


def _may_run(name: str, implementation: str | None) -> bool:
    """Whether the program that is traced may run a kernel, by choice or because it was asked for."""
    platform = str(BACKENDS[name].platform)
    return may_run_on(platform) if implementation else may_run_by_default(platform, "selective_scan")


@functools.partial(jax.custom_vjp, nondiff_argnums=(7, 8, 9))
def _scan(x, delta, a, b, c, keep, state, names, problem, options):
    options = options._replace(save_states=None)
    return run(BACKENDS, "forward", names, problem, x, delta, a, b, c, keep, state, options=options)[:2]


def _scan_forward(x, delta, a, b, c, keep, state, names, problem, options):
    operands = x, delta, a, b, c, keep, state
    y, last, saved = run(BACKENDS, "forward", names, problem, *operands, options=options)
    return (y, last), (*operands, saved)


def _scan_backward(names, problem, options, residuals, cotangents):
    found = run(BACKENDS, "backward", names, problem, *residuals, *cotangents, options=options)
    *gradients, dstate = found
    return (*gradients, None, dstate)


_scan.defvjp(_scan_forward, _scan_backward)


def check(x, delta, a, b, c, segment_ids, state) -> None:
    """Whether the arguments of `selective_scan` fit together.

    Raises:
      ValueError: they do not.
    """
    op = "selective_scan"
    if x.ndim != 3 or delta.shape != x.shape:
        raise ValueError(f"{op}: x and delta of shapes {x.shape}, {delta.shape} must both be (b, t, d)")
    if a.ndim != 2 or a.shape[0] != x.shape[2]:
        raise ValueError(f"{op}: a of shape {a.shape} must be (d, n), with d={x.shape[2]} of x")
    tokens, n = x.shape[:2], a.shape[1]
    if not b.shape == c.shape == (*tokens, n):
        raise ValueError(f"{op}: b and c of shapes {b.shape}, {c.shape} must both be (b, t, n)={(*tokens, n)}")
    if not x.dtype == b.dtype == c.dtype:
        dtypes = (x.dtype.name, b.dtype.name, c.dtype.name)
        raise ValueError(f"{op}: dtypes of x, b, c {dtypes} must be equal; cast them")
    if delta.dtype not in (jnp.float32, x.dtype):
        raise ValueError(f"{op}: dtype of delta {delta.dtype.name} must be float32 or that of x, {x.dtype.name}")
    if segment_ids is not None and (segment_ids.shape != tokens or segment_ids.dtype != jnp.int32):
        raise ValueError(
            f"{op}: segment_ids {segment_ids.dtype.name}{list(segment_ids.shape)} must be int32{list(tokens)}, one for "
            "each token"
        )
    if state is not None and state.shape != (tokens[0], x.shape[2], n):
        raise ValueError(f"{op}: initial_state of shape {state.shape} must be (b, d, n)={(tokens[0], x.shape[2], n)}")
