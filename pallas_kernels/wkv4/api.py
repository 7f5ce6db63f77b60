"""wkv4 for users: the weighted key-value mean of RWKV-4 (Peng et al. 2023, equations 14 to 16).

For every channel, with a decay w > 0 and a bonus u for the token itself:

    wkv_t = (sum_{i<t} e^{-(t-1-i) w + k_i} v_i + e^{u + k_t} v_t) / (sum_{i<t} e^{-(t-1-i) w + k_i} + e^{u + k_t})
"""

import functools
from typing import Literal, overload

import jax
import jax.numpy as jnp

from pallas_kernels.dispatch import choose, may_run_by_default, may_run_on, run
from pallas_kernels.wkv4 import reference, xla
from pallas_kernels.wkv4.backends import BACKENDS, KERNELS, Options, problem_of
from pallas_kernels.wkv4.state import Wkv4State, empty_state

IMPLEMENTATIONS = ("reference", *BACKENDS)


@overload
def wkv4(
    k: jax.Array,
    v: jax.Array,
    w: jax.Array,
    u: jax.Array,
    *,
    segment_ids: jax.Array | None = None,
    initial_state: Wkv4State | None = None,
    return_state: Literal[False] = False,
    implementation: str | None = None,
) -> jax.Array: ...
@overload
def wkv4(
    k: jax.Array,
    v: jax.Array,
    w: jax.Array,
    u: jax.Array,
    *,
    segment_ids: jax.Array | None = None,
    initial_state: Wkv4State | None = None,
    return_state: Literal[True],
    implementation: str | None = None,
) -> tuple[jax.Array, Wkv4State]: ...
def wkv4(k, v, w, u, *, segment_ids=None, initial_state=None, return_state=False, implementation=None):
    """The equation of the module docstring over t >= 0 tokens from any state.

    Sums and states are float32, whatever the inputs. Reverse-mode differentiable in k, v, w, u and the sums of the
    initial state, through the output and the sums of the final state; `max` of both is a scale without a gradient.
    Forward mode only with "reference". vmap, scan, checkpoint and jit compose.

    Args:
      k: (b, t, d), logarithms of the weights, any finite numbers.
      v: (b, t, d), values, dtype of k.
      w: (d,), decay per token, positive: the past loses the factor e^-w; computed in float32.
      u: (d,), bonus of the token itself; computed in float32.
      segment_ids: (b, t) int32, packed documents, each one run of equal ids in a row: the first token of a document
        reads itself alone. `initial_state` is that of the first document, the state returned that of the last.
      initial_state: the sums over the tokens before; None: there are none.
      return_state: return the state after the last token too.
      implementation: one of `IMPLEMENTATIONS`, which runs or raises; None: the kernel of the platform that the program
        is lowered for, where it serves this call and was verified on that kind of device
        (`pallas_kernels.certificates`), else "xla".

    Returns:
      wkv (b, t, d) in the dtype of v, or (wkv, state).

    Raises:
      ValueError: arguments that contradict each other.
      NotImplementedError: the implementation asked for does not serve this call.
    """
    check(k, v, w, u, segment_ids, initial_state)
    if implementation is not None and implementation not in IMPLEMENTATIONS:
        raise ValueError(f"wkv4: implementation={implementation!r} must be one of {IMPLEMENTATIONS}")
    if implementation == "reference":
        y, state = reference.recurrence(k, v, w, u, segment_ids=segment_ids, initial_state=initial_state)
        return (y, state) if return_state else y
    keep = xla.keep_of(segment_ids)
    return scan_kept(k, v, w, u, keep, initial_state, return_state=return_state, implementation=implementation)


def scan_kept(k, v, w, u, keep, state, *, return_state, implementation):
    """`wkv4` by any implementation but "reference", of keep (b, t) or None, as `backends.py` says."""
    w, u = (x.astype(jnp.float32) for x in (w, u))
    problem = problem_of(k)
    names = choose(BACKENDS, problem, implementation, kernels=KERNELS)
    if problem.t == 0:
        y, state = v, empty_state(problem.b, problem.d) if state is None else state
    elif names == ("xla",):
        y, state = xla.forward(k, v, w, u, keep, state)
    else:
        save = next((name for name in KERNELS if name in names and _may_run(name, implementation)), None)
        y, state = _scan(k, v, w, u, keep, state, names, problem, Options(return_state, save_states=save))
    return (y, state) if return_state else y


def _may_run(name: str, implementation: str | None) -> bool:
    """Whether the program that is traced may run a kernel, by choice or because it was asked for."""
    platform = str(BACKENDS[name].platform)
    return may_run_on(platform) if implementation else may_run_by_default(platform, "wkv4")


@functools.partial(jax.custom_vjp, nondiff_argnums=(6, 7, 8))
def _scan(k, v, w, u, keep, state, names, problem, options):
    options = options._replace(save_states=None)
    return run(BACKENDS, "forward", names, problem, k, v, w, u, keep, state, options=options)[:2]


def _scan_forward(k, v, w, u, keep, state, names, problem, options):
    operands = k, v, w, u, keep, state
    y, last, saved = run(BACKENDS, "forward", names, problem, *operands, options=options)
    return (y, last), (*operands, saved, None if last is None else last.max)


def _scan_backward(names, problem, options, residuals, cotangents):
    found = run(BACKENDS, "backward", names, problem, *residuals, *cotangents, options=options)
    *gradients, dstate = found
    return (*gradients, None, dstate)


_scan.defvjp(_scan_forward, _scan_backward)


def check(k, v, w, u, segment_ids, state) -> None:
    """Whether the arguments of `wkv4` fit together.

    Raises:
      ValueError: they do not.
    """
    op = "wkv4"
    if k.ndim != 3 or v.shape != k.shape:
        raise ValueError(f"{op}: k and v of shapes {k.shape}, {v.shape} must both be (b, t, d)")
    if k.dtype != v.dtype:
        raise ValueError(f"{op}: dtypes of k, v {(k.dtype.name, v.dtype.name)} must be equal; cast them")
    (*tokens, d) = k.shape
    if not w.shape == u.shape == (d,):
        raise ValueError(f"{op}: w and u of shapes {w.shape}, {u.shape} must both be (d,)={(d,)}")
    if segment_ids is not None and (segment_ids.shape != (*tokens,) or segment_ids.dtype != jnp.int32):
        raise ValueError(
            f"{op}: segment_ids {segment_ids.dtype.name}{list(segment_ids.shape)} must be int32{tokens}, one for each "
            "token"
        )
    for name, x in zip(Wkv4State._fields, state or (), strict=False):
        if x.shape != (tokens[0], d):
            raise ValueError(f"{op}: initial_state.{name} of shape {x.shape} must be (b, d)={(tokens[0], d)}")
