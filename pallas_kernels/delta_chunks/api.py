"""Recurrence over the chunks of delta rules: public functions.

    y_c = mix_c (x_c + read_c S_c)          S_{c+1} = Diag(keep_c) S_c + write_c^T y_c

A delta rule with log decays, whose sums from the start of a chunk of C tokens are G, writes

    v'_i = beta_i (v_i - exp(G_i) k_i S - sum_{j<i} exp(G_i - G_j) (k_i . k_j) v'_j)

which is this recurrence with x = v, y = v', read = -exp(G) k, write = exp(G_C - G) k, keep = exp(G_C) and
mix = (I + A)^-1 Diag(beta), where A_ij = beta_i exp(G_i - G_j) k_i . k_j for j < i (arXiv 2406.06484, 2412.06464).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh

from pallas_kernels import op as base
from pallas_kernels.delta_chunks import reference, triton, xla
from pallas_kernels.delta_chunks.problem import Problem
from pallas_kernels.dispatch import hopper_objection
from pallas_kernels.layout import make_layout, on_shares
from pallas_kernels.op import Op, Options, check_dtypes, check_state


def problem_of(x: jax.Array, read: jax.Array, mix: jax.Array) -> Problem:
    """Problem of a call with these arrays."""
    b, t, h, v = x.shape
    return Problem(b=b, t=t, h=h, k=read.shape[3], v=v, chunk=mix.shape[3], dtype=x.dtype.name)


def _passes(recur: Callable, gradients: Callable) -> tuple[Callable, Callable]:
    """Forward and backward passes from functions like `xla.recur`, which both passes call, and `xla.gradients`."""

    def forward(x, read, write, mix, keep, state, options, **how):
        y, last, states = recur(x, read, write, mix, keep, state, save_states=options.save_states, **how)
        return y, last if options.return_state else None, states

    def backward(x, read, write, mix, keep, state, y, states, dy, dstate, options, **how):
        dx, first, after = recur(dy, write, read, mix, keep, dstate, save_states=True, reverse=True, **how)
        found = gradients(x, read, write, y, dy, dx, states, after, **how)
        return dx, *found, None if state is None else first

    return forward, backward


def _hopper():
    from pallas_kernels.delta_chunks import mosaic_gpu, mosaic_gpu_vjp

    return _passes(mosaic_gpu.recur, mosaic_gpu_vjp.gradients)


def _hopper_objection(p: Problem) -> str | None:
    if p.chunk != 64:
        return f"chunks are of {p.chunk} tokens, not 64"
    if p.k not in (64, 128):
        return f"key width {p.k} is not 64 or 128"
    if p.v % 64 or p.v == 0:
        return f"value width {p.v} is not a multiple of 64"
    return hopper_objection((p.dtype_name,))


_XLA = base.xla(*_passes(xla.recur, xla.gradients))
OP = Op(
    "delta_chunks",
    {
        "xla": _XLA,
        "mosaic_gpu": base.hopper(_hopper, _hopper_objection),
        "triton": base.triton(lambda: _passes(triton.recur, triton.gradients), triton.objection),
        "mosaic_tpu": base.no_tpu_kernel(_XLA),
    },
    operands=("x", "read", "write", "mix", "keep", "state"),
    kept=base.first_output,
)
"""Contract (`op.py`):

    forward(x, read, write, mix, keep, state, options) -> y, last state or None, states
    backward(x, read, write, mix, keep, state, y, states, dy, dstate, options)
        -> dx, dread, dwrite, dmix, dkeep, dstate

t a multiple of the chunk c, n = t / c >= 1; x, y, dy (b, t, h, v), read, write (b, t, h, k) and mix (b, n, h, c, c) of
the same dtype; keep (b, n, h, k) float32; state and dstate (b, h, k, v) float32, None: zeros. `states` are the states
before every chunk, (b, n, h, k, v) in the dtype of x.
"""
BACKENDS = OP.backends
IMPLEMENTATIONS = OP.implementations


def delta_chunks(
    x: jax.Array,
    read: jax.Array,
    write: jax.Array,
    mix: jax.Array,
    keep: jax.Array,
    *,
    initial_state: jax.Array | None = None,
    return_state: bool = False,
    implementation: str | None = None,
) -> Any:
    """The equation of the module docstring over n >= 0 chunks of c tokens.

    Differentiable in all arrays, through the output and the last state. The backward pass keeps the inputs, y, and the
    states before every chunk, b n h v k numbers in the dtype of x.

    Args:
      x: (b, t, h, v), t = n c. Pad the last chunk with tokens whose read and write are 0; they change no state.
      read: (b, t, h, k), dtype of x: vectors that read the state before the chunk.
      write: (b, t, h, k), dtype of x: vectors that write to the state.
      mix: (b, n, h, c, c), dtype of x. Kernels need c = 64.
      keep: (b, n, h, k), decay factor of each row of the state over a chunk, in [0, 1]; computed in float32.
      initial_state: (b, h, k, v) float32, S before the first chunk; None: zeros.
      return_state: whether to return S after the last chunk too.
      implementation: one of `IMPLEMENTATIONS`; None: chosen for the device (`pallas_kernels.op`).

    Returns:
      y (b, t, h, v) in the dtype of x, or (y, state).
    """
    _check(x, read, write, mix, keep, initial_state)
    OP.check(implementation)
    if implementation == "reference":
        y, state = reference.recurrence(x, read, write, mix, keep, initial_state=initial_state)
        return (y, state) if return_state else y
    (b, _, h, v), k = x.shape, read.shape[3]
    return OP.recur(
        problem_of(x, read, mix), implementation, x, read, write, mix, keep.astype(jnp.float32), initial_state,
        options=Options(return_state), empty=lambda: (x, jnp.zeros((b, h, k, v), jnp.float32)),
    )  # fmt: skip


def sharded_delta_chunks(
    x: jax.Array,
    read: jax.Array,
    write: jax.Array,
    mix: jax.Array,
    keep: jax.Array,
    *,
    mesh: Mesh | AbstractMesh | None = None,
    batch_axes: tuple[str, ...] = (),
    head_axes: tuple[str, ...] = (),
    initial_state: jax.Array | None = None,
    return_state: bool = False,
    implementation: str | None = None,
) -> Any:
    """`delta_chunks` on a mesh; `pallas_kernels.layout` describes mesh and axes."""
    _check(x, read, write, mix, keep, initial_state)
    layout = make_layout("sharded_delta_chunks", mesh, x, read, batch_axes=batch_axes, head_axes=head_axes)

    def local(*arrays):
        *operands, state = arrays
        return delta_chunks(*operands, initial_state=state, return_state=return_state, implementation=implementation)

    tokens = layout.queries
    specs = *[tokens] * 5, layout.states
    arrays = x, read, write, mix, keep, initial_state
    return on_shares(local, layout.mesh, arrays, specs, (tokens, layout.states) if return_state else tokens)


def _check(x, read, write, mix, keep, state) -> None:
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
    check_dtypes(op, x=x, read=read, write=write, mix=mix)
    check_state(op, state, "(b, h, k, v)", (b, h, k, v))
