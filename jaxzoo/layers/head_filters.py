"""Filters of the queries, keys and values of attention heads: their parameters, and their fields in a config."""

import dataclasses
from collections.abc import Mapping
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxzoo.array_typing import Array, Float, Int
from jaxzoo.checked import Checked, PositiveInt
from jaxzoo.layers.causal_conv import uniform_parameter
from jaxzoo.layers.head_conv import head_conv
from jaxzoo.layers.variables import parameter

PARTS = ("queries", "keys", "values")
FilterInit = Literal["uniform", "delta"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadFiltersConfig(Checked):
    """Choice of the filtered parts and of the initial filters; part of a mixer's config."""

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
        """Those of `queries`, `keys` and `values` that have a filter."""
        return tuple(name for name in PARTS if getattr(self, f"filter_{name}"))


class HeadFilters(nnx.Module):
    """`queries`, `keys`, `values`, of those that have one: taps `(n_taps, h)`, or `(n_taps, h, h)` from head to head.

    On a mesh they are whole on every device: a few numbers, which mixing heads all read.
    """

    def __init__(self, heads: Mapping[str, int], *, n_taps: int, mixing: bool, start: FilterInit, rngs: nnx.Rngs):
        """Makes the taps.

        Args:
          heads: number of heads of each part that is filtered, by its name.
          n_taps: taps of a filter.
          mixing: one matrix a tap, not one number per head.
          start: the initial taps, as `HeadFiltersConfig.filter_init` says.
          rngs: its `params` stream.
        """
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
        """The part filtered (`head_conv`), or as it is where it has no filter."""
        if name not in self.names:
            return x
        return head_conv(x, getattr(self, name)[...], history, segment_ids=segment_ids)

    def empty_history(self, name: str, shape: tuple[int, int, int], dtype: DTypeLike) -> Float[Array, "b w-1 h k"]:
        """History that the filter of a part reaches before the first token, for `shape` (b, h, k): zeros; none,
        (b, 0, h, k), where it has no filter."""
        b, h, k = shape
        return jnp.zeros((b, self.n_taps - 1 if name in self.names else 0, h, k), dtype)


def initial_taps(n: int, n_taps: int, *, mixing: bool, start: FilterInit, rngs: nnx.Rngs) -> nnx.Param[jax.Array]:
    """Taps of `n` heads."""
    shape: tuple[int, ...] = (n_taps, n, n) if mixing else (n_taps, n)
    axes = (None,) * len(shape)
    if start == "uniform":
        return uniform_parameter(shape, n_taps, axes, rngs=rngs)
    return parameter(jnp.zeros(shape).at[0].set(jnp.eye(n) if mixing else jnp.ones((n,))), axes)
