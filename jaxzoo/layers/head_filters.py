"""Causal filters for queries, keys and values of attention heads: CAT (Li et al. 2025), sec. 3.1.

Each head has one filter of scalars for all of its channels (the paper's `1D per-head`), or taps are matrices that mix
the heads (`multi-head`):

    y_i^h = sum_{a < w} F[a, h] x_{i-a}^h        y_i^h = sum_{a < w} sum_g F[a, g, h] x_{i-a}^g

Inputs before the first token of a document are 0. The streaming state, called history, is the last `w - 1` inputs.
"""

import dataclasses
from collections.abc import Mapping
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax.tree_util import Partial
from jax.typing import DTypeLike

from jaxzoo.config.checked import Checked, PositiveInt
from jaxzoo.layers.causal_conv import uniform_parameter
from jaxzoo.layers.short_conv import has_kernel, short_conv_from
from jaxzoo.layers.variables import parameter
from jaxzoo.parallel.sequence_parallel import apply_with_halo
from jaxzoo.utils.array_typing import Array, Float, Int

PARTS = ("queries", "keys", "values")
FilterInit = Literal["uniform", "delta"]
MOST_UNROLLED = 64
"""Largest number of taps that is unrolled; longer filters use a compiled loop."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadFiltersConfig(Checked):
    """Which parts are filtered, and the initial filters; part of a mixer's config."""

    n_taps: PositiveInt = 3
    """Taps of a filter, the current token's included."""
    filter_queries: bool = True
    """Filters queries."""
    filter_keys: bool = True
    """Filters keys."""
    filter_values: bool = True
    """Filters values."""
    filter_init: FilterInit = "uniform"
    """Initial taps: uniform in +-1/sqrt(n_taps), or delta, 1 for the current token of the own head and else 0."""

    @property
    def filtered(self) -> tuple[str, ...]:
        """Parts (`queries`, `keys`, `values`) that have a filter."""
        return tuple(name for name in PARTS if getattr(self, f"filter_{name}"))


class HeadFilters(nnx.Module):
    """Filters `queries`, `keys`, `values` of the filtered parts: taps `(n_taps, h)` or `(n_taps, h, h)` (from, to).

    The taps are replicated on a mesh, since mixing needs them all.
    """

    def __init__(self, heads: Mapping[str, int], *, n_taps: int, mixing: bool, start: FilterInit, rngs: nnx.Rngs):
        """`heads`: number of heads of each filtered part; `mixing`: one matrix per tap, not one number per head."""
        self.n_taps: int = n_taps
        self.names: tuple[str, ...] = tuple(heads)
        for name, n in heads.items():
            setattr(self, name, initial_taps(n, n_taps, mixing=mixing, start=start, rngs=rngs))

    def __call__(
        self,
        name: str,
        x: Float[Array, "b t h k"],
        history: Float[Array, "b w-1 h k"] | None = None,
        *,
        segment_ids: Int[Array, "b t"] | None = None,
    ) -> Float[Array, "b t h k"]:
        """Applies `head_conv` to a part; a part without a filter is returned unchanged."""
        if name not in self.names:
            return x
        return head_conv(x, getattr(self, name)[...], history, segment_ids=segment_ids)

    def empty_histories(
        self, batch_size: int, heads: Mapping[str, tuple[int, int]], dtype: DTypeLike
    ) -> dict[str, Float[Array, "b w-1 h k"]]:
        """Initial histories per part, zeros, for `heads` (h, k) of each; empty, (b, 0, h, k), without a filter."""
        taps = {name: self.n_taps - 1 if name in self.names else 0 for name in heads}
        return {name: jnp.zeros((batch_size, taps[name], *shape), dtype) for name, shape in heads.items()}


def initial_taps(n: int, n_taps: int, *, mixing: bool, start: FilterInit, rngs: nnx.Rngs) -> nnx.Param[jax.Array]:
    """Initial taps for `n` heads."""
    shape: tuple[int, ...] = (n_taps, n, n) if mixing else (n_taps, n)
    axes = (None,) * len(shape)
    if start == "uniform":
        return uniform_parameter(shape, n_taps, axes, rngs=rngs)
    return parameter(jnp.zeros(shape).at[0].set(jnp.eye(n) if mixing else jnp.ones((n,))), axes)


def head_conv(
    x: Float[Array, "b t h k"],
    taps: Float[Array, "w h"] | Float[Array, "w h h"],
    history: Float[Array, "b w-1 h k"] | None = None,
    *,
    segment_ids: Int[Array, "b t"] | None = None,
) -> Float[Array, "b t h k"]:
    """Applies the equation of the module docstring; float32 sums, the output has the dtype of `x`. One number per head
    is a tap for each of its channels, for which `short_conv` takes a kernel where a verified one serves.

    Args:
      x: inputs by head, any `t >= 0`.
      taps: `taps[a]` multiplies the input of `a` tokens ago: one number per head, or a matrix (from, to).
      history: the inputs before `x`; None: zeros.
      segment_ids: int32; each run of equal ids is one document, which sees no other. Not with a history.

    Returns:
      `(b, t, h, k)`, at `w` multiply-adds per number, or `w h` if heads are mixed.

    Raises:
      ValueError: the number of heads of the taps is wrong, or the history's length is not `w - 1`.
    """
    w, *heads = taps.shape
    if set(heads) != {x.shape[2]}:
        raise ValueError(f"head_conv: taps of shape {taps.shape} must be (w, h) or (w, h, h) with h={x.shape[2]} heads")
    if history is not None and history.shape[1] != w - 1:
        raise ValueError(f"head_conv: history of {history.shape[1]} inputs must hold {w - 1}, one less than the taps")
    if taps.ndim == 2:
        width = x.shape[2] * x.shape[3]
        flat = jax.ShapeDtypeStruct((*x.shape[:2], width), x.dtype)
        if has_kernel(history, flat, jax.ShapeDtypeStruct((w, width), taps.dtype), width, segment_ids):
            before = None if history is None else history.reshape(*history.shape[:2], width)
            by_channel = jnp.repeat(taps, x.shape[3], axis=1)
            y, _ = short_conv_from(before, x.reshape(flat.shape), by_channel, n_plain=width, segment_ids=segment_ids)
            return y.reshape(x.shape)
    return apply_with_halo(Partial(_head_conv, taps), w - 1, x, old=history, segment_ids=segment_ids)


def _head_conv(taps: jax.Array, extended: jax.Array, documents: jax.Array | None) -> jax.Array:
    """Outputs of all but the first `w - 1` inputs, with a document id per input."""
    w = taps.shape[0]
    t = extended.shape[1] - w + 1
    signal, taps = extended.astype(jnp.float32), taps.astype(jnp.float32)
    own = None if documents is None else documents[:, w - 1 :]

    def add(a: int | jax.Array, y: jax.Array) -> jax.Array:
        delayed = _part(signal, w - 1 - a, t)
        if documents is not None:
            same = own == _part(documents, w - 1 - a, t)
            delayed = jnp.where(same[:, :, None, None], delayed, 0.0)
        if taps.ndim == 2:
            return y + delayed * taps[a][None, None, :, None]
        return y + jnp.einsum("btgk,gh->bthk", delayed, taps[a], precision=jax.lax.Precision.HIGHEST)

    y = jnp.zeros((extended.shape[0], t, *extended.shape[2:]), jnp.float32)
    if w > MOST_UNROLLED:
        # Without the checkpoint, the gradient of the taps would keep w copies of the signal.
        return jax.lax.fori_loop(0, w, jax.checkpoint(add), y).astype(extended.dtype)
    for a in range(w):
        y = add(a, y)
    return y.astype(extended.dtype)


def _part(x: jax.Array, start: int | jax.Array, length: int) -> jax.Array:
    """Slice of `length` tokens from `start` on."""
    if isinstance(start, int):
        return jax.lax.slice_in_dim(x, start, start + length, axis=1)
    return jax.lax.dynamic_slice_in_dim(x, start, length, axis=1)
