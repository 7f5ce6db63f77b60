"""short_conv, the depthwise causal convolution of a few taps with its gates, bias and SiLU: public functions.

For every channel, with f the SiLU or the identity and absent gates 1:

    y_i = f(sum_{a=0}^{w-1} taps[a] in_{i-a} x_{i-a} + bias) out_i

`offsets` are added to x, out and in first: biases of the projections that make them.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, PartitionSpec as P

from pallas_kernels.layout import checked_mesh, on_shares
from pallas_kernels.op import (
    Op,
    check_dtypes,
    check_segment_ids,
    check_state,
    saves_nothing,
    triton as triton_backend,
    xla as xla_backend,
)
from pallas_kernels.short_conv import reference, triton, xla
from pallas_kernels.short_conv.problem import Problem


class Options(NamedTuple):
    """Static options of a call."""

    n_plain: int
    """Channels, from the first on, without a SiLU."""
    save_states: bool = False
    """Whether `backward` follows."""


def problem_of(x: jax.Array, taps: jax.Array, *gates: jax.Array | None) -> Problem:
    """Problem of a call with these inputs."""
    b, t, d = x.shape
    return Problem(b=b, t=t, d=d, w=len(taps), gates=sum(gate is not None for gate in gates), dtype=x.dtype.name)


OP = Op(
    "short_conv",
    {
        "xla": xla_backend(xla.forward, xla.backward, saved_like=saves_nothing),
        "triton": triton_backend(lambda: (triton.forward, triton.backward), triton.objection, saved_like=saves_nothing),
    },
    operands=("x", "taps", "bias", "input_gate", "output_gate", "history", "documents", "offsets"),
    fixed=("documents",),
    outputs=1,
)
"""Contract (`op.py`):

    forward(x, taps, bias, input_gate, output_gate, history, documents, offsets, options) -> y, None
    backward(..., None, dy, options) -> dx, dtaps, dbias, gradients of the gates, of the history and of the offsets

t >= 1; x, gates, y, dy (b, t, d) of the same dtype; taps (w, d), bias (d,) or None; history (b, w - 1, d), gated
inputs before x, or None: zeros; documents (b, t) int32, numbers from 0 of each row's documents, or None: one document;
offsets (3, d) of x, output and input gate, or None: zeros. Document 0 continues the history. Forward passes save
nothing.
"""
BACKENDS = OP.backends
IMPLEMENTATIONS = OP.implementations


def short_conv(
    x: jax.Array,
    taps: jax.Array,
    *,
    bias: jax.Array | None = None,
    input_gate: jax.Array | None = None,
    output_gate: jax.Array | None = None,
    n_plain: int | None = None,
    offsets: jax.Array | None = None,
    segment_ids: jax.Array | None = None,
    initial_state: jax.Array | None = None,
    return_state: bool = False,
    implementation: str | None = None,
) -> Any:
    """The equation of the module docstring over t >= 0 tokens.

    Differentiable in all arrays except segment_ids, through the output and the final state. "xla" rounds the
    convolution, its sum with the bias and the SiLU to the dtype of x; kernels round y once.

    Args:
      x: (b, t, d).
      taps: (w, d), w >= 1; `taps[a]` multiplies the input of a tokens ago; float32 sums.
      bias: (d,), added to the convolution.
      input_gate: (b, t, d), dtype of x; multiplies x.
      output_gate: (b, t, d), dtype of x; multiplies the output.
      n_plain: channels, from the first on, without a SiLU; None: all.
      offsets: (3, d), added to x, the output gate and the input gate (where there is one); None: zeros.
      segment_ids: (b, t) int32 for packed documents, each a run of equal ids in a row. A document sees no other;
        `initial_state` belongs to the first document, the returned state to the last.
      initial_state: (b, w - 1, d), the gated inputs before x, oldest first; None: zeros.
      return_state: whether to return the last w - 1 gated inputs too.
      implementation: one of `IMPLEMENTATIONS`; None: chosen for the device (`pallas_kernels.op`).

    Returns:
      y (b, t, d) in the dtype of x, or (y, state) with the state in the dtype of `initial_state` (else of x).
    """
    arrays = x, taps, bias, input_gate, output_gate, initial_state
    _check("short_conv", *arrays, segment_ids, n_plain, offsets)
    OP.check(implementation)
    n_plain = x.shape[2] if n_plain is None else n_plain
    if implementation == "reference":
        y, state = reference.recurrence(
            x, taps, bias=bias, input_gate=input_gate, output_gate=output_gate, n_plain=n_plain,
            offsets=offsets, segment_ids=segment_ids, initial_state=initial_state,
        )  # fmt: skip
        return (y, state) if return_state else y
    documents = xla.documents_of(segment_ids)
    options = {"n_plain": n_plain, "return_state": return_state, "implementation": implementation}
    return _convolve(*arrays, documents, offsets, **options)


def sharded_short_conv(
    x: jax.Array,
    taps: jax.Array,
    *,
    mesh: Mesh | AbstractMesh | None = None,
    batch_axes: tuple[str, ...] = (),
    channel_axes: tuple[str, ...] = (),
    bias: jax.Array | None = None,
    input_gate: jax.Array | None = None,
    output_gate: jax.Array | None = None,
    n_plain: int | None = None,
    offsets: jax.Array | None = None,
    segment_ids: jax.Array | None = None,
    initial_state: jax.Array | None = None,
    return_state: bool = False,
    implementation: str | None = None,
) -> Any:
    """`short_conv` on a mesh; `pallas_kernels.layout` describes mesh and axes.

    Only gradients of taps and bias are communicated. With sharded channels, `n_plain` is 0, d or None.
    """
    op, d = "sharded_short_conv", x.shape[-1]
    arrays = x, taps, bias, input_gate, output_gate, initial_state
    _check(op, *arrays, segment_ids, n_plain, offsets)
    OP.check(implementation, tuple(BACKENDS), op)
    if channel_axes and n_plain not in (None, 0, d):
        raise ValueError(f"{op}: n_plain={n_plain} must be 0, {d} or None for sharded channels")
    mesh = checked_mesh(op, mesh, {"batch": (len(x), batch_axes), "channels": (d, channel_axes)})
    tokens, channels = P(batch_axes, None, channel_axes), P(None, channel_axes)
    specs = tokens, channels, P(channel_axes), tokens, tokens, tokens, P(batch_axes), channels
    run = functools.partial(
        _convolve, n_plain=d if n_plain is None else n_plain, return_state=return_state, implementation=implementation
    )  # fmt: skip
    documents = xla.documents_of(segment_ids)
    return on_shares(run, mesh, (*arrays, documents, offsets), specs, (tokens, tokens) if return_state else tokens)


def _convolve(
    x, taps, bias, input_gate, output_gate, history, documents, offsets, *, n_plain, return_state, implementation
):  # fmt: skip
    """`short_conv` by an implementation other than "reference"."""
    operands = x, taps, bias, input_gate, output_gate, history, documents, offsets
    problem = problem_of(x, taps, input_gate, output_gate)
    names = OP.choose(problem, implementation)
    n_plain = min(n_plain, x.shape[2])
    if names == ("xla",) or problem.t == 0:
        y = xla.direct(*operands, n_plain=n_plain)
    else:
        (y,) = OP.run(names, problem, *operands, options=Options(n_plain))
    if not return_state:
        return y
    x, _, input_gate = xla.with_offsets(x, None, input_gate, offsets)
    return y, last_inputs(x, input_gate, history, documents, len(taps) - 1)


def last_inputs(
    x: jax.Array, input_gate: jax.Array | None, history: jax.Array | None, documents: jax.Array | None, n: int
) -> jax.Array:
    """The last n gated inputs of the last document, zeros before it."""
    first = max(x.shape[1] - n, 0)
    latest = x[:, first:] if input_gate is None else x[:, first:] * input_gate[:, first:]
    if history is None:
        history = jnp.zeros((len(x), n, x.shape[2]), x.dtype)
    found = jnp.concatenate([history, latest.astype(history.dtype)], axis=1)[:, latest.shape[1] :]
    if documents is None or not x.shape[1]:
        return found
    owner = jnp.pad(documents[:, first:], ((0, 0), (n, 0)))[:, latest.shape[1] :]
    return jnp.where((owner == documents[:, -1:])[..., None], found, jnp.zeros_like(found))


def _check(op, x, taps, bias, input_gate, output_gate, state, segment_ids, n_plain, offsets) -> None:
    if x.ndim != 3 or taps.ndim != 2 or taps.shape[1] != x.shape[2] or not len(taps):
        raise ValueError(f"{op}: x and taps of shapes {x.shape}, {taps.shape} must be (b, t, d) and (w, d) with w >= 1")
    b, t, d = x.shape
    for name, gate in (("input_gate", input_gate), ("output_gate", output_gate)):
        if gate is not None:
            check_dtypes(op, **{"x": x, name: gate})
            if gate.shape != x.shape:
                raise ValueError(f"{op}: {name} of shape {gate.shape} must have the shape of x, {x.shape}")
    if bias is not None and bias.shape != (d,):
        raise ValueError(f"{op}: bias of shape {bias.shape} must be (d,)={(d,)}")
    if offsets is not None and offsets.shape != (3, d):
        raise ValueError(f"{op}: offsets of shape {offsets.shape} must be (3, d)={(3, d)}")
    if n_plain is not None and not 0 <= n_plain <= d:
        raise ValueError(f"{op}: n_plain={n_plain} must be from 0 to d={d}")
    check_state(op, state, "(b, w - 1, d)", (b, len(taps) - 1, d))
    check_segment_ids(op, segment_ids, (b, t))
