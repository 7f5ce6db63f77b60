"""Geometry of the TPU kernels, and their arrays.

A grid step (row, channels, block) processes `width` channels of `block` tokens, in turns of 32 tokens. A state is (n,
channels), with channels on the lanes. b and c enter as (n, tokens).
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels.selective_scan.problem import Problem
from pallas_kernels.tpu.lanes import LANES, Specs, call_by_name

BLOCK = 256
"""Maximum tokens of a grid step; the forward pass saves the states between steps."""
WIDTH = 1024
"""Maximum channels of a grid step."""
PART = 256
"""Minimum channels whose states are in registers together; with 512 the kernels spill more."""
GROUP = 8
"""Tokens whose stacked states are one operand."""
TURN = 32
"""Tokens of a turn, which are unrolled."""
STATES = (8, 16, 32)
"""Supported numbers of state per channel."""
LOG2_E = 1.4426950408889634
FAR = 1e36
"""Step of a token that begins a document: exp2 of it times any rate up to `SLOWEST` is 0."""
SLOWEST = -1e-30
"""Largest rate with documents: exp2 of it times any delta is 1, times `FAR` is 0."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Geometry:
    """Static sizes of a call."""

    b: int
    t: int
    d: int
    n: int
    dtype: jnp.dtype
    width: int
    """Channels of a grid step."""
    block: int
    """Tokens of a grid step, a multiple of 128."""
    turn: int
    documents: bool
    steps: bool
    """Whether steps of exponents differ from delta, by dtype or documents."""

    @property
    def n_blocks(self) -> int:
        return pl.cdiv(self.t, self.block)

    @property
    def parts(self) -> list[Any]:
        """Slices of channels whose states are in registers together."""
        size = _widths(self.width)[0]
        return [pl.ds(lane, size) for lane in range(0, self.width, size)]

    @property
    def groups(self) -> range:
        """First tokens of the groups of a turn."""
        return range(0, self.turn, GROUP)


def make_geometry(x, delta, a, keep) -> Geometry:
    (b, t, d), n = x.shape, a.shape[1]
    documents = keep is not None
    return Geometry(
        b=b, t=t, d=d, n=n, dtype=x.dtype, width=_widths(d)[-1], block=_block(t), turn=TURN, documents=documents,
        steps=documents or delta.dtype != jnp.float32,
    )  # fmt: skip


def _widths(d: int) -> list[int]:
    """Divisors of d, whole tiles of lanes, from PART to WIDTH; a single tile has no dynamic row loads."""
    return [w for w in range(PART, WIDTH + 1, LANES) if d % w == 0]


def _block(t: int) -> int:
    return min(BLOCK, pl.cdiv(t, LANES) * LANES)


def objection(p: Problem) -> str | None:
    """Why these kernels cannot serve a call, or None."""
    if not _widths(p.d):
        return f"{p.d} channels are no multiple of {PART}, or of another multiple of {LANES} up to {WIDTH}"
    if p.n not in STATES:
        return f"{p.n} numbers of state per channel are none of {STATES}"
    if p.dtype_name not in ("bfloat16", "float32"):
        return f"dtype {p.dtype_name} is not bfloat16 or float32"
    return None


def border_shape(p: Problem) -> tuple[int, int, int, int]:
    """Shape of the states before every block."""
    return p.b, pl.cdiv(p.t, _block(p.t)), p.n, p.d


class Arrays:
    """Arrays of a call, padded to whole blocks, with their block specs."""

    def __init__(self, g: Geometry, *, backwards: bool = False):
        self.g = g
        self.block_of = (lambda i: g.n_blocks - 1 - i) if backwards else (lambda i: i)

    def _padded(self, x, axis: int = 1):
        missing = self.g.n_blocks * self.g.block - x.shape[axis]
        return jnp.pad(x, [(0, missing if i == axis else 0) for i in range(x.ndim)]) if missing else x

    def tokens(self, x=None, dtype=None):
        """x (b, t, d), or an output of that shape and dtype."""
        g = self.g
        spec = pl.BlockSpec((1, g.block, g.width), lambda b, w, i: (b, self.block_of(i), w))
        empty = jax.ShapeDtypeStruct((g.b, g.n_blocks * g.block, g.d), dtype or g.dtype)
        return (empty if x is None else self._padded(x)), spec

    def maps(self, x):
        """b or c (b, t, n) as (b, n, t) float32; keep (b, t) as (b, 1, t), 1 where a document begins."""
        x = x.swapaxes(1, 2) if x.ndim == 3 else 1 - x[:, None]
        spec = pl.BlockSpec((1, x.shape[1], self.g.block), lambda b, w, i: (b, 0, self.block_of(i)))
        return self._padded(x.astype(jnp.float32), axis=2), spec

    def map_gradients(self):
        """Gradients of b or c by block of channels, (b, d / width, n, t) float32."""
        g = self.g
        shape = (g.b, g.d // g.width, g.n, g.n_blocks * g.block)
        spec = pl.BlockSpec((1, 1, g.n, g.block), lambda b, w, i: (b, w, 0, self.block_of(i)))
        return jax.ShapeDtypeStruct(shape, jnp.float32), spec

    def rates(self, a):
        """a (d, n) as (n, d), in base 2."""
        rates = a.T * jnp.float32(LOG2_E)
        if self.g.documents:
            rates = jnp.minimum(rates, jnp.float32(SLOWEST))
        return rates, pl.BlockSpec((self.g.n, self.g.width), lambda b, w, i: (0, w))

    def states(self, state=None):
        """A state (b, d, n) of every row as (b, n, d), or an output of that shape."""
        g = self.g
        spec = pl.BlockSpec((1, g.n, g.width), lambda b, w, i: (b, 0, w))
        empty = jax.ShapeDtypeStruct((g.b, g.n, g.d), jnp.float32)
        return (empty if state is None else state.astype(jnp.float32).swapaxes(1, 2)), spec

    def borders(self, x=None):
        """The states before every block."""
        g = self.g
        spec = pl.BlockSpec((1, 1, g.n, g.width), lambda b, w, i: (b, self.block_of(i), 0, w))
        return (jax.ShapeDtypeStruct((g.b, g.n_blocks, g.n, g.d), jnp.float32) if x is None else x), spec


def call(
    kernel: Callable, g: Geometry, inputs: Specs, outputs: Specs, scratch: Mapping[str, tuple[int, ...]], **how
) -> dict[str, jax.Array]:
    """`call_by_name` with the scratch that both kernels have."""
    by_token = (2, g.turn, g.width)
    scratch = {"carry": (g.n, g.width), "written": by_token, "spread": (2, g.turn, g.n, LANES), **scratch}
    if g.steps:
        scratch["step"] = by_token
    if g.documents:
        scratch["begins"] = (g.block, LANES)
    return call_by_name(
        lambda refs: kernel(refs, g), (g.b, g.d // g.width, g.n_blocks), inputs, outputs, scratch, **how
    )
