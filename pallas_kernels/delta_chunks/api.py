"""The recurrence over chunks of every delta rule, for users.

    y_c = mix_c (x_c + read_c S_c)          S_{c+1} = Diag(keep_c) S_c + write_c^T y_c

A delta rule with log decays, whose sums from the start of a chunk of C tokens are G, corrects values by what the state
already holds,

    v'_i = beta_i (v_i - exp(G_i) k_i S - sum_{j<i} exp(G_i - G_j) (k_i . k_j) v'_j)

which is this recurrence with x = v, y = v', read = -exp(G) k, write = exp(G_C - G) k, keep = exp(G_C) and
mix = (I + A)^-1 Diag(beta), where A_ij = beta_i exp(G_i - G_j) k_i . k_j for j < i (Yang et al. 2024, "Parallelizing
Linear Transformers with the Delta Rule over Sequence Length"; Yang et al. 2025, "Gated Delta Networks"). Its outputs
are decayed linear attention over v', another op.
"""

import functools
from typing import Literal, overload

import jax
import jax.numpy as jnp

from pallas_kernels.delta_chunks import reference
from pallas_kernels.delta_chunks.backends import BACKENDS, KERNELS, Options, problem_of
from pallas_kernels.dispatch import choose, run

IMPLEMENTATIONS = ("reference", *BACKENDS)


@overload
def delta_chunks(
    x: jax.Array,
    read: jax.Array,
    write: jax.Array,
    mix: jax.Array,
    keep: jax.Array,
    *,
    initial_state: jax.Array | None = None,
    return_state: Literal[False] = False,
    implementation: str | None = None,
) -> jax.Array: ...
@overload
def delta_chunks(
    x: jax.Array,
    read: jax.Array,
    write: jax.Array,
    mix: jax.Array,
    keep: jax.Array,
    *,
    initial_state: jax.Array | None = None,
    return_state: Literal[True],
    implementation: str | None = None,
) -> tuple[jax.Array, jax.Array]: ...
def delta_chunks(x, read, write, mix, keep, *, initial_state=None, return_state=False, implementation=None):
    """The equation of the module docstring over n >= 0 chunks of c tokens.

    Sums and states are float32, whatever the inputs. Reverse-mode differentiable in all arrays, through the output and
    the last state; forward mode only with "reference". vmap, scan, checkpoint and jit compose. The backward pass keeps
    the inputs, y, and the states before every chunk, b n h v k numbers in the dtype of x.

    Args:
      x: (b, t, h, v), t = n c. A caller pads the last chunk by tokens of read and write 0, which change no state.
      read: (b, t, h, k), dtype of x: what each token reads from the state before its chunk.
      write: (b, t, h, k), dtype of x: what it writes to the state.
      mix: (b, n, h, c, c), dtype of x. Kernels have c = 64.
      keep: (b, n, h, k), the share of each row of the state that a chunk keeps, in [0, 1]; computed in float32.
      initial_state: (b, h, k, v) float32, S before the first chunk; None: zeros.
      return_state: return S after the last chunk too.
      implementation: one of `IMPLEMENTATIONS`, which runs or raises; None: the kernel of the platform that the program
        is lowered for, where it serves this call and was verified on that kind of device
        (`pallas_kernels.certificates`), else "xla".

    Returns:
      y (b, t, h, v) in the dtype of x, or (y, state).

    Raises:
      ValueError: arguments that contradict each other.
      NotImplementedError: the implementation asked for does not serve this call.
    """
    check(x, read, write, mix, keep, initial_state)
    if implementation is not None and implementation not in IMPLEMENTATIONS:
        raise ValueError(f"delta_chunks: implementation={implementation!r} must be one of {IMPLEMENTATIONS}")
    if implementation == "reference":
        y, state = reference.recurrence(x, read, write, mix, keep, initial_state=initial_state)
        return (y, state) if return_state else y
    problem = problem_of(x, read, mix)
    names = choose(BACKENDS, problem, implementation, kernels=KERNELS)
    if problem.t == 0:
        y, state = x, initial_state
        if state is None:
            state = jnp.zeros((problem.b, problem.h, problem.k, problem.v), jnp.float32)
    else:
        y, state = _recur(x, read, write, mix, keep.astype(jnp.float32), initial_state, names, problem, return_state)
    return (y, state) if return_state else y


@functools.partial(jax.custom_vjp, nondiff_argnums=(6, 7, 8))
def _recur(x, read, write, mix, keep, state, names, problem, return_state):
    options = Options(return_state, save_states=False)
    return run(BACKENDS, "forward", names, problem, x, read, write, mix, keep, state, options=options)[:2]


def _recur_forward(x, read, write, mix, keep, state, names, problem, return_state):
    operands, options = (x, read, write, mix, keep, state), Options(return_state, save_states=True)
    y, last, states = run(BACKENDS, "forward", names, problem, *operands, options=options)
    return (y, last), (*operands, y, states)


def _recur_backward(names, problem, return_state, residuals, cotangents):
    options = Options(return_state, save_states=True)
    return tuple(run(BACKENDS, "backward", names, problem, *residuals, *cotangents, options=options))


_recur.defvjp(_recur_forward, _recur_backward)


def check(x, read, write, mix, keep, state) -> None:
    """Whether the arguments of `delta_chunks` fit together.

    Raises:
      ValueError: they do not.
    """
    op = "delta_chunks"
    if x.ndim != 4 or read.ndim != 4 or read.shape[:3] != x.shape[:3] or write.shape != read.shape:
        shapes = f"{x.shape}, {read.shape}, {write.shape}"
        raise ValueError(f"{op}: x, read, write of shapes {shapes} must be (b, t, h, v), (b, t, h, k), (b, t, h, k)")
    (b, t, h, v), k = x.shape, read.shape[3]
    c = mix.shape[-1] if mix.ndim else 0
    if c == 0 or t % c:
        raise ValueError(f"{op}: t={t} of x must be a multiple of c={c}, the last axis of mix; pad the last chunk")
    if mix.shape != (b, t // c, h, c, c):
        raise ValueError(f"{op}: mix of shape {mix.shape} must be (b, n, h, c, c)={(b, t // c, h, c, c)}")
    if keep.shape != (b, t // c, h, k):
        raise ValueError(f"{op}: keep of shape {keep.shape} must be (b, n, h, k)={(b, t // c, h, k)}")
    if not x.dtype == read.dtype == write.dtype == mix.dtype:
        dtypes = (x.dtype.name, read.dtype.name, write.dtype.name, mix.dtype.name)
        raise ValueError(f"{op}: dtypes of x, read, write, mix {dtypes} must be equal; cast them")
    if state is not None and state.shape != (b, h, k, v):
        raise ValueError(f"{op}: initial_state of shape {state.shape} must be (b, h, k, v)={(b, h, k, v)}")
