"""TPU kernels of wkv4: a token's channels fill a vector register.

A grid step (row, channels, block) processes up to 1,024 channels of up to 256 tokens, token by token, with its sums in
registers. Arrays have tokens on the sublanes. A block is first written in float32 to a scratch with 8 rows of 128
channels per token, by stores of stride 8; then a token is one load or store. Rows beyond the channels are undefined.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.tpu.lanes import LANES, Specs, call_by_name
from pallas_kernels.wkv4.problem import Problem
from pallas_kernels.wkv4.state import EMPTY
from pallas_kernels.wkv4.sums import LOG2_E, Sums

BLOCK = 256
"""Maximum tokens of a grid step; the forward pass saves the sums between steps."""
TURN = 32
"""Unrolled tokens, a multiple of the 16 rows of a bfloat16 tile."""
ROWS = 8
"""Sublanes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Geometry:
    """Static sizes of a call."""

    b: int
    t: int
    d: int
    dtype: jnp.dtype
    width: int
    """Channels of a grid step."""
    block: int
    """Tokens of a grid step."""
    documents: bool
    backwards: bool = False

    @property
    def n_blocks(self) -> int:
        return pl.cdiv(self.t, self.block)

    @property
    def padded(self) -> bool:
        """Whether the last block has padding tokens."""
        return self.t % self.block > 0

    @property
    def tiles(self) -> list[tuple[Any, slice]]:
        """Rows of a scratch and channels of the step, for every tile of 128 channels."""
        return [
            (pl.ds(i, self.block, stride=ROWS), slice(i * LANES, (i + 1) * LANES)) for i in range(self.width // LANES)
        ]

    def block_of(self, i):
        """Block of a grid step."""
        return self.n_blocks - 1 - i if self.backwards else i


def make_geometry(k, keep, *, backwards: bool = False) -> Geometry:
    b, t, d = k.shape
    return Geometry(
        b=b, t=t, d=d, dtype=k.dtype, width=_width(d), block=_block(t), documents=keep is not None, backwards=backwards
    )


def _width(d: int) -> int:
    """Largest divisor of d in whole tiles."""
    return max((w for w in range(LANES, ROWS * LANES + 1, LANES) if d % w == 0), default=0)


def _block(t: int) -> int:
    return min(BLOCK, pl.cdiv(t, TURN) * TURN)


def objection(p: Problem) -> str | None:
    """Why these kernels cannot serve a call, or None."""
    if _width(p.d) < 4 * LANES:
        return f"{p.d} channels have no divisor that is a multiple of {LANES} from {4 * LANES} to {ROWS * LANES}"
    if p.dtype_name not in ("bfloat16", "float32"):
        return f"dtype {p.dtype_name} is not bfloat16 or float32"
    return None


def border_shape(p: Problem) -> tuple[int, ...]:
    """num, den and top before every block."""
    return 3, p.b, p.d // _width(p.d), pl.cdiv(p.t, _block(p.t)), ROWS, LANES


class Arrays:
    """Arrays of a call, padded to whole blocks, with their block specs."""

    def __init__(self, g: Geometry):
        self.g = g

    def tokens(self, x=None):
        """x (b, t, d), or an output of that shape."""
        g = self.g
        spec = pl.BlockSpec((1, g.block, g.width), lambda b, w, i: (b, g.block_of(i), w))
        empty = jax.ShapeDtypeStruct((g.b, g.n_blocks * g.block, g.d), g.dtype)
        return (empty if x is None else self._padded(x)), spec

    def resets(self, keep):
        """keep (b, t) as scalars (b, 1, t): `EMPTY` where a document begins, else 0."""
        resets = self._padded(jnp.where(keep > 0, 0.0, EMPTY).astype(jnp.float32))[:, None]
        block = (1, 1, self.g.block)
        return resets, pl.BlockSpec(block, lambda b, w, i: (b, 0, self.g.block_of(i)), memory_space=pltpu.SMEM)

    def channels(self, x):
        """w or u (d,), in base 2."""
        return self.spread(x * LOG2_E), pl.BlockSpec((1, ROWS, LANES), lambda b, w, i: (w, 0, 0))

    def rows(self, *parts):
        """Arrays (b, d) of every row, or an output of as many."""
        g, n = self.g, parts[0] if isinstance(parts[0], int) else len(parts)
        spec = pl.BlockSpec((n, 1, 1, ROWS, LANES), lambda b, w, i: (0, b, w, 0, 0))
        empty = jax.ShapeDtypeStruct((n, g.b, g.d // g.width, ROWS, LANES), jnp.float32)
        return (empty if isinstance(parts[0], int) else self.spread(jnp.stack(parts))), spec

    def borders(self, x=None):
        """num, den and top before every block."""
        g = self.g
        shape = border_shape(Problem(b=g.b, t=g.t, d=g.d, dtype=g.dtype))
        spec = pl.BlockSpec((3, 1, 1, 1, ROWS, LANES), lambda b, w, i: (0, b, w, g.block_of(i), 0, 0))
        return (jax.ShapeDtypeStruct(shape, jnp.float32) if x is None else x), spec

    def spread(self, x):
        """(.., d) -> (.., groups of channels, 8, 128)."""
        x = x.reshape(*x.shape[:-1], self.g.d // self.g.width, -1, LANES)
        return jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, ROWS - x.shape[-2]), (0, 0)])

    def gathered(self, x):
        """The inverse of `spread`."""
        return x[..., : self.g.width // LANES, :].reshape(*x.shape[:-3], self.g.d)

    def _padded(self, x):
        missing = self.g.n_blocks * self.g.block - x.shape[1]
        return jnp.pad(x, [(0, 0), (0, missing)] + [(0, 0)] * (x.ndim - 2)) if missing else x


def call(
    kernel: Callable, g: Geometry, inputs: Specs, outputs: Specs, scratch: Mapping[str, tuple[int, ...]], **how
) -> dict[str, jax.Array]:
    """`call_by_name` of a kernel of a `Step`."""
    grid = g.b, g.d // g.width, g.n_blocks
    return call_by_name(lambda refs: kernel(Step(refs, g)), grid, inputs, outputs, scratch, **how)


class Step:
    """A grid step: references, and the tokens of its block."""

    def __init__(self, refs: dict[str, Any], g: Geometry):
        self.refs, self.g = refs, g
        self.w, self.u = refs["w"][0], refs["u"][0]
        self.position = pl.program_id(2)

    def first(self, *names: str, then: Callable = lambda: None):
        """Initializes carries at the first block of a row."""

        @pl.when(self.position == 0)
        def _():
            for name in names:
                self.refs[name][...] = jnp.zeros_like(self.refs[name])
            then()

    def begin(self, carry: str, start: str):
        """Initializes carried sums at the first block, from an input if there is one."""

        def write():
            if start in self.refs:
                self.refs[carry][...] = self.refs[start][:, 0, 0]
            else:
                for i, x in enumerate((0.0, 0.0, EMPTY)):
                    self.refs[carry][i] = jnp.full((ROWS, LANES), x, jnp.float32)

        self.first(then=write)

    def finish(self, output: str, carry: str):
        """Writes an output of a row, if requested, at its last block."""
        if output in self.refs:

            @pl.when(self.position == self.g.n_blocks - 1)
            def _():
                self.refs[output][:, 0, 0] = self.refs[carry][...]

    def sums(self, name: str) -> Sums:
        return Sums(*(self.refs[name][i] for i in range(3)))

    def carry(self, name: str, sums: Sums):
        for i, x in enumerate(sums):
            self.refs[name][i] = x

    def fill(self, *names: str):
        """Writes arrays to their scratch."""
        for name in names:
            for rows, lanes in self.g.tiles:
                self.refs[f"{name}_rows"][rows, :] = self.refs[name][0, :, lanes].astype(jnp.float32)

    def write_back(self, output: str, name: str):
        """Writes a scratch to an output."""
        for rows, lanes in self.g.tiles:
            self.refs[output][0, :, lanes] = self.refs[f"{name}_rows"][rows, :].astype(self.g.dtype)

    def token(self, name: str, i):
        """A token in a scratch."""
        return self.refs[f"{name}_rows"].at[pl.ds(pl.multiple_of(i * ROWS, ROWS), ROWS), :]

    def key(self, i):
        """Key in base 2; very small for padding."""
        key = self.token("k", i)[...] * LOG2_E
        return key + jnp.where(self._real(i), 0.0, EMPTY) if self.g.padded else key

    def decay(self, i):
        """w, but 0 for padding."""
        return self.but_padding(self.w, i)

    def but_padding(self, x, i):
        """x, or 0 for padding."""
        return x * jnp.where(self._real(i), 1.0, 0.0) if self.g.padded else x

    def _real(self, i):
        return self.g.block_of(self.position) * self.g.block + i < self.g.t

    def reset(self, sums: Sums, i) -> Sums:
        """Sums before a token, reset at the start of a document."""
        return sums._replace(top=sums.top + self.refs["resets"][0, 0, i]) if self.g.documents else sums

    def in_turns(self, work: Callable, carry, *, backwards: bool = False):
        """Folds work(token, carry) over tokens, in order or backwards."""
        turns = self.g.block // TURN

        def turn(i, carry):
            first = (turns - 1 - i if backwards else i) * TURN
            for j in range(TURN):
                carry = work(first + (TURN - 1 - j if backwards else j), carry)
            return carry

        return lax.fori_loop(0, turns, turn, carry)
