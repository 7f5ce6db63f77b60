"""Geometry of the TPU kernels, their arrays, and what forward and backward kernels have in common.

A grid step (row, channels, block) takes `width` channels of `block` tokens, in turns of 32 tokens. A state is (n,
channels): its n numbers on the sublanes, channels on the lanes. b and c, which have a number for each of a state's,
enter as (n, tokens) and are needed in two forms:

    spread over the lanes, (n, 128) per token, to be multiplied by what is per channel
    an operand (8, 8 n) of a group of 8 tokens: row i has the n numbers of token i next to each other, zeros elsewhere

The second makes sums over n of 8 tokens one product with their 8 states below each other; `fold` is its transpose.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.mosaic_tpu_lanes import LANES, Specs, call_by_name
from pallas_kernels.selective_scan.problem import Problem

BLOCK = 256
"""Tokens of a grid step, at most; the forward pass saves the states between them."""
WIDTH = 1024
"""Channels of a grid step, at most."""
PART = 256
"""Channels whose states are in registers together, at least.

With 512 the kernels spill more registers, and the backward one takes a tenth longer."""
GROUP = 8
"""Tokens whose states are one operand."""
TURN = 32
"""Tokens of a turn, which the compiler schedules together."""
STATES = (8, 16, 32)
"""Numbers of state per channel whose kernels were compiled."""
LOG2_E = 1.4426950408889634
FAR = 1e36
"""The step of a token that begins a document: exp2 of it times any rate below is 0, and no product is infinite."""
SLOWEST = -1e-30
"""The rate of no decay where there are documents: exp2 of it times any delta is 1, times FAR 0."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Geometry:
    """Everything static about one call."""

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
    """Whether the exponents' steps are not delta itself, but in float32, or those of documents."""

    @property
    def n_blocks(self) -> int:
        return pl.cdiv(self.t, self.block)

    @property
    def parts(self) -> list[Any]:
        """Slices of the channels of a grid step: those whose states are in registers together."""
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
    """Numbers of channels, whole tiles of lanes, that share out d: from PART to WIDTH. No row of one tile can be read
    at a token that the program computes."""
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
    """States before every block."""
    return p.b, pl.cdiv(p.t, _block(p.t)), p.n, p.d


class Arrays:
    """Arrays of a call, padded to whole blocks, with their blocks of a grid step."""

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
        """Those of b or c, by block of channels: (b, d / width, n, t) float32."""
        g = self.g
        shape = (g.b, g.d // g.width, g.n, g.n_blocks * g.block)
        spec = pl.BlockSpec((1, 1, g.n, g.block), lambda b, w, i: (b, w, 0, self.block_of(i)))
        return jax.ShapeDtypeStruct(shape, jnp.float32), spec

    def rates(self, a):
        """a (d, n) as (n, d), to the base 2."""
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


def begin(refs, g: Geometry, carry: str):
    """Sets what a scan carries at its first block."""

    @pl.when(pl.program_id(2) == 0)
    def _():
        refs[carry][...] = refs["initial"][0] if "initial" in refs else jnp.zeros_like(refs[carry])

    if g.documents:
        for at in pieces(g):
            refs["begins"][at, :] = jnp.broadcast_to(refs["keep"][0, :, at], (LANES, LANES)).T


def finish(refs, g: Geometry, name: str, value):
    """Writes an output of a whole scan, where there is one, at its last block."""
    if name in refs:

        @pl.when(pl.program_id(2) == g.n_blocks - 1)
        def _():
            refs[name][0] = value[...]


def pieces(g: Geometry) -> list[slice]:
    """Tokens that fill the lanes."""
    return [slice(p, p + LANES) for p in range(0, g.block, LANES)]


def in_turns(g: Geometry, prepare: Callable, work: Callable, *, backwards: bool = False):
    """prepare(first token, slot), then work(first token, slot), of every turn of a block in order.

    A turn is prepared during the one before it, in the other of two slots: moves between lanes take long, and the
    arithmetic of that turn hides it.
    """
    turns = g.block // g.turn

    def first(position):
        position = position & (turns - 1)
        return pl.multiple_of((turns - 1 - position if backwards else position) * g.turn, g.turn)

    def both(i, _):
        for slot in range(2):
            work(first(2 * i + slot), slot)
            prepare(first(2 * i + slot + 1), 1 - slot)

    prepare(first(0), 0)
    lax.fori_loop(0, turns // 2, both, None)


def spread(refs, name: str, g: Geometry, first, slot: int):
    """Numbers of b or c of a turn over the lanes, refs["spread"][slot, token of the turn] (n, 128)."""
    tile = pl.multiple_of(first & -LANES, LANES)
    x = pltpu.roll(refs[name][0, :, pl.ds(tile, LANES)], LANES - (first & (LANES - 1)), 1)
    for j in range(g.turn):
        refs["spread"][slot, j] = jnp.broadcast_to(x[:, j : j + 1], (g.n, LANES))


def write(refs, g: Geometry, first, slot: int):
    """delta x, and the steps of the exponents, of a turn."""
    rows = pl.ds(first, g.turn)
    delta = refs["delta"][0, rows, :].astype(jnp.float32)
    refs["written"][slot] = delta * refs["x"][0, rows, :].astype(jnp.float32)
    if g.documents:
        begins = jnp.concatenate([refs["begins"][rows, :]] * (g.width // LANES), axis=1)
        delta = jnp.where(begins > 0, FAR, delta)
    if g.steps:
        refs["step"][slot] = delta


def step(refs, g: Geometry, first, slot: int, j: int, lanes):
    """(1, lanes): what the rates are multiplied with in the exponents of token j of a turn."""
    return refs["step"][slot, j : j + 1, lanes] if g.steps else refs["delta"][0, pl.ds(first + j, 1), lanes]


def over(refs, slot: int, j: int, lanes):
    """The numbers of token j of a turn, as `spread` wrote them, over the lanes."""
    return jnp.concatenate([refs["spread"][slot, j]] * (lanes.size // LANES), axis=1)


def operands(refs, name: str, g: Geometry):
    """b or c as operands of groups of 8 tokens, refs["operands"] (block, 8 n)."""
    for at in pieces(g):
        x = jnp.concatenate([refs[name][0, :, at]] * GROUP).T
        refs["operands"][at, :] = jnp.where(own_token(x.shape, g), x, 0.0)


def fold(x, g: Geometry):
    """(tokens, 8 n) of products of groups with each other -> (n, tokens), those of a token with itself."""
    own = jnp.where(own_token(x.shape, g), x, 0.0).T
    return sum(own[i * g.n : (i + 1) * g.n] for i in range(GROUP))


def own_token(shape: tuple[int, int], g: Geometry):
    """Whether a lane's token, of a group, is that of the row."""
    row, lane = (lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (0, 1))
    return (row & (GROUP - 1)) == lane >> (g.n.bit_length() - 1)
