"""Hopper kernels of the selective scan: layout of states in registers, and loads.

A thread block of one warpgroup has 32 channels of a batch row, a warp 8 of them, a thread 4 of the 16 numbers of state
of a channel. Lanes with the same numbers of state are adjacent, so loads of b and c are broadcasts. A sum over the
state takes 3 additions and 2 shuffles.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.hopper.ring import pad_tokens

STATES = 16
"""Numbers of state per channel; fewer are padded with zeros."""
CHANNELS = 32
"""Channels of a block."""
SAVED = 16
"""Tokens between saved states, which are a chunk of the backward kernel."""
CHUNK = 32
"""Tokens of a chunk of the forward kernel; lengths are padded to multiples."""

LAYOUT = plgpu.Layout.TILED(plgpu.Tiling(((CHANNELS, STATES), (CHANNELS // 4, STATES), (4,))), (-5,), (-2, -3), -1)
PER_CHANNEL = LAYOUT.reduce(1)
PER_STATE = LAYOUT.reduce(0)
RESET = -1e30
"""Added to the exponent of a decay to reset the state."""
LOG2_E = math.log2(math.e)


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Inputs of both kernels."""

    arrays: dict[str, jax.Array]
    """x, delta (b, t', d); maps (b, t', 32 or 36) float32: b, c and, with documents, 0 or `RESET` four times; rates
    (d, 16): log2(e) a."""
    documents: bool

    @property
    def x(self) -> jax.Array:
        return self.arrays["x"]

    @property
    def delta(self) -> jax.Array:
        return self.arrays["delta"]

    @property
    def tokens(self) -> int:
        """t', a multiple of `CHUNK`."""
        return self.x.shape[1]

    @property
    def grid(self) -> dict[str, int]:
        """A block for each row and `CHANNELS` channels."""
        return {"b": self.x.shape[0], "block": self.x.shape[2] // CHANNELS}


def inputs(x, delta, a, b, c, keep) -> Inputs:
    """Converts the arrays of `api.py`."""
    maps = [pad_states(z.astype(jnp.float32)) for z in (b, c)]
    if keep is not None:
        reset = jnp.where(keep > 0, 0.0, RESET).astype(jnp.float32)
        maps.append(jnp.broadcast_to(reset[..., None], (*reset.shape, 4)))  # TMA copies at least 16 bytes
    by_token = {"x": x, "delta": delta, "maps": jnp.concatenate(maps, axis=2)}
    arrays = {name: pad_tokens(z, CHUNK) for name, z in by_token.items()}
    return Inputs(arrays | {"rates": pad_states(a) * LOG2_E}, keep is not None)


def pad_states(z):
    """Pads (..., n) with zeros to `STATES`."""
    missing = STATES - z.shape[-1]
    return jnp.pad(z, [(0, 0)] * (z.ndim - 1) + [(0, missing)]) if missing else z


def channels_of(block):
    """Channels of a block."""
    return pl.ds(block * CHANNELS, CHANNELS)


def token_loads(r, names, size: int) -> list[tuple[Any, Callable, Callable]]:
    """Loads of a `Ring` of `size` tokens: arrays (b, t', channels or maps), into `<name>_s`."""
    batch, block = lax.axis_index("b"), lax.axis_index("block")

    def load(name):
        slots = getattr(r, f"{name}_s")
        last = slice(None) if name == "maps" else channels_of(block)
        return getattr(r, name), lambda row: (batch, pl.ds(row, size), last), lambda slot: slots.at[slot]

    return [load(name) for name in names]


def token_scratch(given: Inputs, names, stages: int, size: int) -> dict[str, Any]:
    """Shared memory of `token_loads`."""

    def width(name):
        return given.arrays[name].shape[2] if name == "maps" else CHANNELS

    return {f"{x}_s": plgpu.SMEM((stages, size, width(x)), given.arrays[x].dtype) for x in names}


@dataclasses.dataclass(frozen=True)
class Tokens:
    """Tokens in a slot of shared memory, in float32, as lists."""

    r: Any
    slot: Any
    documents: bool

    def channels(self, name: str, tokens) -> list[Any]:
        """x, delta or dy of the tokens, (32,) each."""
        return self._load(getattr(self.r, f"{name}_s"), PER_CHANNEL, tokens)

    def b(self, tokens) -> list[Any]:
        """b of the tokens, (16,) each."""
        return self._load(self.r.maps_s, PER_STATE, tokens, pl.ds(0, STATES))

    def c(self, tokens) -> list[Any]:
        """c of the tokens, (16,) each."""
        return self._load(self.r.maps_s, PER_STATE, tokens, pl.ds(STATES, STATES))

    def _load(self, ref, layout, tokens, *columns):
        found = (plgpu.load(ref.at[(self.slot, i, *columns)], layout=layout, optimized=False) for i in tokens)
        return [x.astype(jnp.float32) for x in found]

    def decay(self, delta, rate, token: int):
        """exp(delta a) (32, 16) for delta (32,); 0 where a document begins."""
        exponent = by_channel(delta) * rate
        return jnp.exp2(exponent + self.r.maps_s[self.slot, token, 2 * STATES] if self.documents else exponent)


def load_state(ref):
    """Loads a state (32, 16) in float32."""
    return plgpu.load(ref, layout=LAYOUT, optimized=False).astype(jnp.float32)


def zero_state():
    return plgpu.layout_cast(jnp.zeros((CHANNELS, STATES), jnp.float32), LAYOUT)


def by_channel(x):
    """Broadcasts (32,) to (32, 16)."""
    return plgpu.layout_cast(lax.broadcast_in_dim(x, (CHANNELS, STATES), [0]), LAYOUT)


def by_state(x):
    """Broadcasts (16,) to (32, 16)."""
    return plgpu.layout_cast(lax.broadcast_in_dim(x, (CHANNELS, STATES), [1]), LAYOUT)
