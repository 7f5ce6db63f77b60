"""Causal depthwise convolution over time, of any width, with a shift register for streaming.

`y_i = sum_{a=0}^{w-1} taps[a] * x_{i-a}` for each channel. The streaming state, called history, is the last `w - 1`
inputs, oldest first; zeros before the first token. `segment_ids` separate packed documents.

Up to `MAX_DIRECT_TAPS` taps the sum is computed by shifted adds; longer filters use Fourier transforms, padded against
wrap-around, or on a CPU, for up to `MAX_MATRIX_TOKENS` tokens, a Toeplitz matrix per channel. Packed documents use the
masked forms of `packed_conv.py`.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.tree_util import Partial
from jax.typing import DTypeLike

from jaxzoo.layers.packed_conv import packed_conv
from jaxzoo.layers.variables import parameter
from jaxzoo.parallel.sequence_parallel import apply_with_halo, whole_sequences
from jaxzoo.parallel.sharding import sequence_devices
from jaxzoo.utils.array_typing import Array, Float, Int
from pallas_kernels.decode_step.xla import convolve_token
from pallas_kernels.dispatch import may_run_on
from pallas_kernels.short_conv.xla import convolve

MAX_DIRECT_TAPS = 8
"""Widest filter that uses shifted adds. Forward and backward pass on two CPU cores at (b, t, d) =
(64, 256, 64), shifted adds and Fourier transform, in ms: w=3: 1.0, 3.5; w=8: 5, 7; w=16: 27, 8;
w=32: 40, 6. XLA's own depthwise convolution was slower still."""
MAX_MATRIX_TOKENS = 64
"""Longest sequence for which a CPU uses Toeplitz matrices. Forward and backward pass at (64, t, 64), in CPU ms,
transform and matrices: t=16: 0.86, 0.40; t=32: 1.7, 1.0; t=64: 4.6, 3.0; t=128: 9.8, 10.7."""


def causal_conv(
    x: Float[Array, "b t d"],
    taps: Float[Array, "w d"],
    history: Float[Array, "b w-1 d"] | None = None,
    *,
    segment_ids: Int[Array, "b t"] | None = None,
) -> Float[Array, "b t d"]:
    """Convolves each channel of `x` with its taps; float32 sums, the output has the dtype of `x`.

    Args:
      x: inputs, any `t >= 0`.
      taps: `taps[a]` multiplies the input of `a` tokens ago; `w >= 1`.
      history: the inputs before `x`; None: zeros.
      segment_ids: int32; each run of equal ids in a row is one document, which sees no other. Not with a history.
        None: each row is one document.

    Returns:
      `(b, t, d)`. Cost per token and channel: `w` multiply-adds, or the transforms (see `conv_flops`). If time is
      sharded, each device receives the `w - 1` inputs before its own; if these are more than its own, channels are
      sharded instead.

    Raises:
      ValueError: widths of taps and `x` differ, the history's length is not `w - 1`, segment_ids have a wrong shape or
        dtype, or are given with a history.
    """
    _check(x, taps, history, segment_ids)
    devices, before = sequence_devices(x.shape[1]), taps.shape[0] - 1
    if devices == 1:
        return whole_conv(x, taps, history, segment_ids)
    if before > x.shape[1] // devices:
        pasts = () if history is None else (history,)
        return whole_sequences(
            lambda x, *rest: whole_conv(x, rest[-1], *rest[:-1], segment_ids=segment_ids), x, *pasts, taps=taps
        )

    return apply_with_halo(Partial(_conv_with_halo, taps), before, x, old=history, segment_ids=segment_ids)


def _conv_with_halo(taps: jax.Array, extended: jax.Array, segment_ids: jax.Array | None) -> jax.Array:
    """Outputs of all but the first `w - 1` inputs."""
    before = taps.shape[0] - 1
    if segment_ids is None:
        return whole_conv(extended[:, before:], taps, extended[:, :before])
    return whole_conv(extended, taps, segment_ids=segment_ids)[:, before:]


def whole_conv(
    x: Float[Array, "b t d"],
    taps: Float[Array, "w d"],
    history: Float[Array, "b w-1 d"] | None = None,
    segment_ids: Int[Array, "b t"] | None = None,
) -> Float[Array, "b t d"]:
    """`causal_conv` for sequences that are not split over devices."""
    n_taps, t = taps.shape[0], x.shape[1]
    if segment_ids is not None:
        return packed_conv(x, taps, segment_ids)
    if n_taps > MAX_DIRECT_TAPS and history is None and 0 < t <= MAX_MATRIX_TOKENS:
        return lax.platform_dependent(x, taps, cpu=_matrix_conv, default=_fourier_conv)
    if n_taps > MAX_DIRECT_TAPS:
        return _fourier_conv(x, taps, history)
    return convolve(x, taps, history)


def causal_conv_step(
    x_t: Float[Array, "b d"], taps: Float[Array, "w d"], history: Float[Array, "b w-1 d"]
) -> tuple[Float[Array, "b d"], Float[Array, "b w-1 d"]]:
    """One step of `causal_conv`: `(y_t, history)`, at `w` multiply-adds per channel."""
    _check(x_t, taps, history, None)
    return convolve_token(x_t, taps, history)


def causal_conv_from(
    history: Float[Array, "b w-1 d"] | None,
    x: Float[Array, "*b d"],
    taps: Float[Array, "w d"],
    *,
    segment_ids: Int[Array, "b t"] | None = None,
) -> tuple[Float[Array, "*b d"], Float[Array, "b w-1 d"]]:
    """Applies `causal_conv_step` to one input `(b, d)` or `causal_conv` to `(b, t, d)`; returns the history too."""
    if history is not None and x.ndim == 2:
        return causal_conv_step(x, taps, history)
    y = causal_conv(x, taps, history, segment_ids=segment_ids)
    before = empty_history(x.shape[0], taps.shape[0], taps.shape[1], x.dtype) if history is None else history
    return y, push_history(before, x)


def empty_history(batch_size: int, n_taps: int, width: int, dtype: DTypeLike = jnp.float32) -> Float[Array, "b w-1 d"]:
    """Initial history: zeros."""
    return jnp.zeros((batch_size, n_taps - 1, width), dtype)


def push_history(history: Float[Array, "b w-1 d"], x: Float[Array, "b t d"]) -> Float[Array, "b w-1 d"]:
    """History after `t` more inputs, in the dtype of `history`."""
    n, t = history.shape[1], x.shape[1]
    x = x[:, max(t - n, 0) :].astype(history.dtype)
    return x if t >= n else jnp.concatenate([history[:, t:], x], axis=1)


def conv_flops(n_taps: int, length: int) -> float:
    """FLOPs per token and channel of `causal_conv` without history.

    `2 w`, or over `length` tokens a real transform and its inverse (`2.5 L log2 L` each) and the product of the spectra
    (`3 L`); the filter's own transform, shared by the batch, is left out. A CPU's matrices count the same.

    With packed documents a long filter costs more: about 2.4 times as much at `w = L = 1024`, growing with the
    logarithm of the smaller of `w` and `L`. A short filter costs the same.
    """
    if n_taps <= MAX_DIRECT_TAPS:
        return 2.0 * n_taps
    size = fast_size(length + min(n_taps, length) - 1)
    return size * (5 * math.log2(size) + 3) / length


def uniform_parameter(
    shape: tuple[int, ...], fan_in: int, axes: tuple[str | None, ...], *, rngs: nnx.Rngs, **traits: Any
) -> nnx.Param[jax.Array]:
    """Parameter uniform in `+-1 / sqrt(fan_in)`, as PyTorch initialises Linear and Conv layers; `traits`: see
    `parameter`."""
    bound = fan_in**-0.5
    return parameter(jax.random.uniform(rngs.params(), shape, jnp.float32, -bound, bound), axes, **traits)


def _matrix_conv(x: jax.Array, taps: jax.Array) -> jax.Array:
    """Convolution as products with a Toeplitz matrix per channel, whose entry (i, j) is tap i - j."""
    t, (n_taps, d) = x.shape[1], taps[: x.shape[1]].shape
    taps = taps[:t].astype(jnp.float32)
    # Row i is row 0 shifted i times: the same row of 2 t numbers, repeated and read as rows of 2 t - 1.
    first = jnp.concatenate([taps[:1], jnp.zeros((2 * t - n_taps, d)), taps[:0:-1]]).T
    repeated = jnp.broadcast_to(first[:, None], (d, t, 2 * t)).reshape(d, -1)
    matrices = repeated[:, : t * (2 * t - 1)].reshape(d, t, -1)[:, :, :t]
    y = jnp.einsum("bjd,dij->dbi", x.astype(jnp.float32), matrices, precision=lax.Precision.HIGHEST)
    return y.transpose(1, 2, 0).astype(x.dtype)


def _fourier_conv(x: jax.Array, taps: jax.Array, history: jax.Array | None = None) -> jax.Array:
    t = x.shape[1]
    if t == 0:
        return x
    signal, skip = x.astype(jnp.float32), 0
    if history is None:
        taps = taps[:t]
        size = fast_size(t + taps.shape[0] - 1)
    else:
        # Only the first w - 1 outputs, those of the history, wrap around; they are dropped.
        skip = history.shape[1]
        signal = jnp.concatenate([history.astype(jnp.float32), signal], axis=1)
        size = fast_size(signal.shape[1])
    spectrum = jnp.fft.rfft(signal.swapaxes(1, 2), n=size)
    response = jnp.fft.rfft(taps.astype(jnp.float32).T, n=size)
    y = jnp.fft.irfft(spectrum * response[None], n=size)[..., skip : skip + t]
    y = y.swapaxes(1, 2)
    if may_run_on("cpu"):  # a transposition fused with its input would miss the caches
        y = lax.optimization_barrier(y)
    return y.astype(x.dtype)


def fast_size(n: int) -> int:
    """Smallest transform length of at least `n` with no prime factor above 5."""
    while True:
        rest = n
        for prime in (2, 3, 5):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return n
        n += 1


def _check(x: jax.Array, taps: jax.Array, history: jax.Array | None, segment_ids: jax.Array | None) -> None:
    if taps.shape[1] != x.shape[-1]:
        raise ValueError(f"causal_conv: taps of shape {taps.shape} must be (w, {x.shape[-1]}), one column a channel")
    if history is not None and history.shape[1] != taps.shape[0] - 1:
        raise ValueError(
            f"causal_conv: history of {history.shape[1]} inputs must hold {taps.shape[0] - 1}, "
            "one less than the taps; make it with empty_history"
        )
    if segment_ids is not None and history is not None:
        raise ValueError(
            "causal_conv: segment_ids with a history, which does not say whose its inputs are; convolve one "
            "document at a time, each from an empty history"
        )
    if segment_ids is not None and (segment_ids.shape != x.shape[:2] or segment_ids.dtype != jnp.int32):
        raise ValueError(
            f"causal_conv: segment_ids {segment_ids.dtype.name}{list(segment_ids.shape)} must be "
            f"int32{list(x.shape[:2])}, one for each token"
        )
