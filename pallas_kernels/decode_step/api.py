"""decode_step, the mixers' decode steps of one token: public functions.

    taylor_step    S = D S + phi(k) v^T,  z = D z + phi(k),  y = phi(q) S / (phi(q) z + eps)        (Based, Alg. 2)
    window_step    writes a slot of a ring, and attends to all slots                               (Based, Alg. 3)
    conv_step      a depthwise convolution of a few taps with gates, bias and SiLU, and its last inputs

They compute what `taylor_attention`, `sliding_window_attention` and `short_conv` do with t = 1. Kernels read and write
a state once, in place if it is donated (`jax.jit(..., donate_argnums=0)`), and no features are written to memory.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from pallas_kernels import op as base
from pallas_kernels.decode_step import triton, xla
from pallas_kernels.decode_step.problem import ConvProblem, TaylorProblem, WindowProblem
from pallas_kernels.op import Op, check_dtypes, check_state, saves_nothing
from pallas_kernels.sliding_window.api import check as check_window
from pallas_kernels.sliding_window.cache import SlidingWindowCache
from pallas_kernels.taylor_attention.state import TaylorState, check_shapes


class TaylorOptions(NamedTuple):
    """Static options of `taylor_step`."""

    scale: float
    eps: float
    normalize: bool


class WindowOptions(NamedTuple):
    """Static options of `window_step`."""

    scale: float


class ConvOptions(NamedTuple):
    """Static options of `conv_step`."""

    n_plain: int


def _op(operands: str, outputs: int, form: Callable, kernel: Callable, *checks: Callable, fixed: str = "") -> Op:
    """An op with kernels for the forward pass; XLA computes all gradients. Fixed operands are the last."""
    names = tuple(operands.split())
    free = len(names) - len(fixed.split())

    def forward(*arrays, options):
        return *form(*arrays, options), None

    def by_kernel(*arrays, options):
        return *kernel(*arrays, options), None

    def backward(*arrays, options):
        pull_back = jax.vjp(lambda *x: tuple(form(*x, *arrays[free : len(names)], options)), *arrays[:free])[1]
        return pull_back(arrays[len(names) + 1 :])

    backends = {
        "xla": base.xla(forward, backward, saved_like=saves_nothing),
        "triton": base.triton(lambda: (by_kernel, backward), *checks, saved_like=saves_nothing),
    }
    return Op("decode_step", backends, operands=names, fixed=tuple(fixed.split()), outputs=outputs)


TAYLOR = _op("q k v s z decay", 3, xla.taylor, triton.taylor, triton.taylor_objection, fixed="decay")
WINDOW = _op(
    "q k v ring_k ring_v position", 3, xla.window, triton.window, triton.window_objection, triton.window_automatic,
    fixed="position",
)  # fmt: skip
CONV = _op("x taps bias input_gate output_gate history", 2, xla.conv, triton.conv, triton.conv_objection)
"""Contract (`op.py`): `forward(*operands, options) -> *outputs, None`, with the operands and outputs of `xla.py`."""
BACKENDS = TAYLOR.backends


def taylor_step(
    state: TaylorState,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    scale: float | None = None,
    eps: float = 1e-12,
    normalize: bool = True,
    decay: jax.Array | None = None,
    implementation: str | None = None,
) -> tuple[jax.Array, TaylorState]:
    """One token of Taylor attention; 4 features v operations per head.

    Args:
      state: sums over earlier tokens.
      q: (b, h, k); h is a multiple of g.
      k: (b, g, k).
      v: (b, g, v).
      scale: factor of the scores, a Python number; None: k^-1/2.
      eps: added to the sum of weights.
      normalize: divide by the sum of weights.
      decay: (h,) in (0, 1]; None: 1. It has no gradient.
      implementation: "xla", "triton", or None: chosen for the device (`pallas_kernels.op`).

    Returns:
      y (b, h, v) in the dtype of v, and the state.
    """
    shapes = [_sequence(x).shape for x in (q, k, v)]
    check_shapes(shapes[0], shapes[1], shapes[2], decay, state)
    (b, h, k_dim), (g, v_dim) = q.shape, v.shape[1:]
    problem = TaylorProblem(
        b=b, t=1, h=h, g=g, k=k_dim, v=v_dim, dtype=q.dtype.name, kv_dtypes=(k.dtype.name, v.dtype.name)
    )  # fmt: skip
    options = TaylorOptions(k_dim**-0.5 if scale is None else float(scale), float(eps), normalize)
    y, s, z = _run(TAYLOR, xla.taylor, implementation, problem, q, k, v, *state, decay, options=options)
    return y, TaylorState(s, z)


def window_step(
    cache: SlidingWindowCache,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    scale: float | None = None,
    implementation: str | None = None,
) -> tuple[jax.Array, SlidingWindowCache]:
    """One token of attention to a ring, whose rows may be at different positions; reads the filled slots once.

    Args:
      cache: earlier tokens.
      q: (b, h, k); h is a multiple of g.
      k: (b, g, k), dtype of q; rounded to the dtype of the cache.
      v: (b, g, v), dtype of q.
      scale: factor of the scores, a Python number; None: k^-1/2.
      implementation: "xla", "triton", or None: chosen for the device (`pallas_kernels.op`).

    Returns:
      y (b, h, v) in the dtype of v, and the cache.
    """
    check_window(_sequence(q), _sequence(k), _sequence(v), cache.window, None, cache)
    problem = _window_problem(cache, q, v)
    options = WindowOptions(q.shape[2] ** -0.5 if scale is None else float(scale))
    y, ring_k, ring_v = _run(WINDOW, xla.window, implementation, problem, q, k, v, *cache, options=options)
    return y, SlidingWindowCache(ring_k, ring_v, cache.position + 1)


def has_window_kernel(cache: SlidingWindowCache, q: jax.Array, v: jax.Array) -> bool:
    """Whether `window_step` of these arrays may choose the kernel."""
    return WINDOW.choose(_window_problem(cache, q, v), None) != ("xla",)


def _window_problem(cache: SlidingWindowCache, q: jax.Array, v: jax.Array) -> WindowProblem:
    (b, h, k_dim), (g, v_dim) = q.shape, v.shape[1:]
    return WindowProblem(
        b=b, t=1, h=h, g=g, k=k_dim, v=v_dim, window=cache.window, dtype=q.dtype.name, cache_dtype=cache.k.dtype.name
    )  # fmt: skip


def conv_step(
    history: jax.Array,
    x: jax.Array,
    taps: jax.Array,
    *,
    bias: jax.Array | None = None,
    n_plain: int | None = None,
    input_gate: jax.Array | None = None,
    output_gate: jax.Array | None = None,
    implementation: str | None = None,
) -> tuple[jax.Array, jax.Array]:
    """One token of `short_conv`.

    Args:
      history: (b, w - 1, d), the last gated inputs, oldest first.
      x: (b, d).
      taps: (w, d), w >= 1; `taps[a]` multiplies the input of a tokens ago.
      bias: (d,), added to the convolution.
      n_plain: channels, from the first on, without a SiLU; None: all.
      input_gate: (b, d), dtype of x; multiplies x.
      output_gate: (b, d), dtype of x; multiplies the output.
      implementation: "xla", "triton", or None: chosen for the device (`pallas_kernels.op`).

    Returns:
      y (b, d) in the dtype of x, and the history.
    """
    op, (b, d) = "conv_step", x.shape
    if taps.ndim != 2 or taps.shape[1] != d or not len(taps):
        raise ValueError(f"{op}: x and taps of shapes {x.shape}, {taps.shape} must be (b, d) and (w, d) with w >= 1")
    check_state(op, history, "(b, w - 1, d)", (b, len(taps) - 1, d))
    for name, gate in (("input_gate", input_gate), ("output_gate", output_gate)):
        if gate is not None:
            check_dtypes(op, **{"x": x, name: gate})
    gates = (input_gate is not None) + (output_gate is not None)
    problem = ConvProblem(b=b, t=1, d=d, w=len(taps), gates=gates, dtype=x.dtype.name)
    options = ConvOptions(d if n_plain is None else min(n_plain, d))
    operands = x, taps, bias, input_gate, output_gate, history
    y, history = _run(CONV, xla.conv, implementation, problem, *operands, options=options)
    return y, history


def _sequence(x: jax.Array) -> jax.ShapeDtypeStruct:
    """Shape and dtype of a sequence of one token (b, 1, ...)."""
    return jax.ShapeDtypeStruct((x.shape[0], 1, *x.shape[1:]), x.dtype)


def _run(op: Op, form: Callable, implementation: str | None, problem: Any, *operands: Any, options: Any) -> tuple:
    op.check(implementation, tuple(op.backends))
    names = op.choose(problem, implementation)
    return form(*operands, options) if names == ("xla",) else op.run(names, problem, *operands, options=options)
