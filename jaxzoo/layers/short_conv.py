"""Depthwise causal convolution with a few taps, used after the projections of mixers."""

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from jaxzoo.layers.causal_conv import causal_conv_from, empty_history, push_history, uniform_parameter
from jaxzoo.parallel.sharding import on_mesh
from jaxzoo.utils.array_typing import Array, Float, Int
from pallas_kernels.decode_step import conv_step
from pallas_kernels.dispatch import may_run_by_default, mesh_objection
from pallas_kernels.short_conv import api, sharded_short_conv, short_conv
from pallas_kernels.short_conv.xla import finish, with_offsets


class ShortConv(nnx.Module):
    """`sum_a taps[a] x_{i-a} + bias` for each channel; the history is the last `n_taps - 1` inputs.

    `taps` (n_taps, width), `bias` (width,): both uniform in +-1/sqrt(n_taps), PyTorch's default of a depthwise Conv1d.
    `taps[a]` is `conv1d.weight[:, 0, n_taps - 1 - a]` of PyTorch.

    Args:
      width: number of channels.
      n_taps: taps per channel, including the current token's.
      bias: whether there is a bias.
      n_plain: number of channels, from the first on, without a SiLU; the others have one (Mamba-2, delta rules). None:
        no channel has one.
      axis: logical axis of the channels.
      rngs: the `params` stream is used.
    """

    def __init__(
        self,
        width: int,
        n_taps: int,
        *,
        bias: bool = True,
        n_plain: int | None = None,
        axis: str | None = "channels",
        rngs: nnx.Rngs,
    ) -> None:
        self.taps: nnx.Param[jax.Array] = uniform_parameter((n_taps, width), n_taps, (None, axis), rngs=rngs)
        self.n_plain: int = width if n_plain is None else n_plain
        self.bias: nnx.Param[jax.Array] | None = (
            uniform_parameter((width,), n_taps, (axis,), decay=False, rngs=rngs) if bias else None
        )

    def __call__(
        self,
        x: Float[Array, "*b d"],
        history: Float[Array, "b w-1 d"] | None = None,
        *,
        segment_ids: Int[Array, "b t"] | None = None,
    ) -> tuple[Float[Array, "*b d"], Float[Array, "b w-1 d"]]:
        """Outputs and new history for tokens `(b, t, d)`, or one token `(b, d)`; `history` None: zeros."""
        bias = None if self.bias is None else self.bias[...]
        return short_conv_from(
            history, x, self.taps[...], bias=bias, n_plain=self.n_plain, segment_ids=segment_ids
        )  # fmt: skip


def short_conv_from(
    history: Float[Array, "b w-1 d"] | None,
    x: Float[Array, "*b d"],
    taps: Float[Array, "w d"],
    *,
    bias: Float[Array, "d"] | None = None,
    n_plain: int = 0,
    input_gate: Float[Array, "*b d"] | None = None,
    output_gate: Float[Array, "*b d"] | None = None,
    offsets: Float[Array, "3 d"] | None = None,
    segment_ids: Int[Array, "b t"] | None = None,
) -> tuple[Float[Array, "*b d"], Float[Array, "b w-1 d"]]:
    """`silu(taps * (input_gate . x) + bias) . output_gate` and the new history, of gated inputs.

    One kernel where a verified one serves the call (`pallas_kernels.short_conv`), else `causal_conv_from`. The first
    `n_plain` channels have no SiLU; `offsets`, for x of three axes, are added to x, the output gate and the input gate.
    """
    if history is not None and x.ndim == 2:
        return conv_step(
            history, x, taps, bias=bias, n_plain=n_plain, input_gate=input_gate, output_gate=output_gate
        )  # fmt: skip
    kernel = _kernel_form(history, x, taps, n_plain, segment_ids)
    shifted, shifted_out, shifted_in = with_offsets(x, output_gate, input_gate, offsets)
    gated = shifted if shifted_in is None else shifted_in * shifted
    if kernel is not None:
        y = kernel(
            x, taps, bias=bias, input_gate=input_gate, output_gate=output_gate, n_plain=n_plain,
            offsets=offsets, segment_ids=segment_ids, initial_state=history,
        )  # fmt: skip
        before = empty_history(len(x), taps.shape[0], taps.shape[1], x.dtype) if history is None else history
        return y, push_history(before, gated)
    y, history = causal_conv_from(history, gated, taps, segment_ids=segment_ids)
    return finish(y, bias, shifted_out, n_plain=n_plain), history


def has_kernel(history: Array | None, x: Any, taps: Any, n_plain: int, segment_ids: Array | None) -> bool:
    """Whether `short_conv_from` takes a kernel for an x like this."""
    return _kernel_form(history, x, taps, n_plain, segment_ids) is not None


def _kernel_form(
    history: Array | None, x: Any, taps: Array, n_plain: int, segment_ids: Array | None
) -> Callable[..., Any] | None:
    """The function that computes the convolution by a kernel, sharded for the current mesh; None if none applies."""
    if x.ndim != 3 or 0 in x.shape or (segment_ids is not None and history is not None):
        return None
    if not may_run_by_default("cuda", "short_conv", "triton"):
        return None
    problem, channels = api.problem_of(x, taps), jax.ShapeDtypeStruct((*x.shape, 1), x.dtype)
    form: Any = on_mesh(short_conv, _sharded, channels, channels)
    allowed = (None,) if form is short_conv else (None, mesh_objection(problem.ON_MESH))
    if api.BACKENDS["triton"].objection(problem) not in allowed:
        return None
    if form is not short_conv:
        mixed = form.keywords["head_axes"] and n_plain not in (0, x.shape[2])
        if mixed or "sequence_axis" in form.keywords:
            return None
    return form


def _sharded(*arrays: Array, head_axes: tuple[str, ...], **options: Any) -> Any:
    """`short_conv` with channels sharded like heads."""
    return sharded_short_conv(*arrays, channel_axes=head_axes, **options)
