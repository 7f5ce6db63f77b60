"""The selective scan on TPU, forward: one Pallas Mosaic kernel.

    h <- exp(delta a) h + (delta x) b        y = sum_n c[n] h[n]

Token by token: a vector register has 8 numbers of state of 128 channels. A row of delta or delta x is loaded broadcast
to all sublanes. b is broadcast over the lanes once for all channels of a grid step. The stacked states of 8 tokens are
an operand of the matrix units, which sum over n. bfloat16: states are rounded as operands only.

b and c enter as (n, tokens). They are broadcast over the lanes, (n, 128) per token, or are operands (8, 8 n) of a group
of 8 tokens, with the n numbers of token i in its own columns of row i; `fold` is the transpose.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.selective_scan.mosaic_tpu_layout import FAR, GROUP, Arrays, Geometry, call, make_geometry
from pallas_kernels.tpu.lanes import LANES, matmul


def begin(refs, g: Geometry, carry: str):
    """Initializes the carry at the first block."""

    @pl.when(pl.program_id(2) == 0)
    def _():
        refs[carry][...] = refs["initial"][0] if "initial" in refs else jnp.zeros_like(refs[carry])

    if g.documents:
        for at in pieces(g):
            refs["begins"][at, :] = jnp.broadcast_to(refs["keep"][0, :, at], (LANES, LANES)).T


def finish(refs, g: Geometry, name: str, value):
    """Writes an output, if requested, at the last block."""
    if name in refs:

        @pl.when(pl.program_id(2) == g.n_blocks - 1)
        def _():
            refs[name][0] = value[...]


def pieces(g: Geometry) -> list[slice]:
    """Slices of tokens that fill the lanes."""
    return [slice(p, p + LANES) for p in range(0, g.block, LANES)]


def in_turns(g: Geometry, prepare: Callable, work: Callable, *, backwards: bool = False):
    """Calls prepare(first token, slot), then work(first token, slot), for every turn of a block in order.

    A turn is prepared during the previous one, in the other of two slots, to hide moves between lanes.
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
    """Broadcasts b or c of a turn over the lanes, into refs["spread"][slot, token of the turn] (n, 128)."""
    tile = pl.multiple_of(first & -LANES, LANES)
    x = pltpu.roll(refs[name][0, :, pl.ds(tile, LANES)], -first & (LANES - 1), 1)
    for j in range(g.turn):
        refs["spread"][slot, j] = jnp.broadcast_to(x[:, j : j + 1], (g.n, LANES))


def write(refs, g: Geometry, first, slot: int):
    """Writes delta x, and the steps of the exponents, of a turn."""
    rows = pl.ds(first, g.turn)
    delta = refs["delta"][0, rows, :].astype(jnp.float32)
    refs["written"][slot] = delta * refs["x"][0, rows, :].astype(jnp.float32)
    if g.documents:
        begins = jnp.concatenate([refs["begins"][rows, :]] * (g.width // LANES), axis=1)
        delta = jnp.where(begins > 0, FAR, delta)
    if g.steps:
        refs["step"][slot] = delta


def step(refs, g: Geometry, first, slot: int, j: int, lanes):
    """Factor of the rates in the exponents of token j of a turn, (1, lanes)."""
    return refs["step"][slot, j : j + 1, lanes] if g.steps else refs["delta"][0, pl.ds(first + j, 1), lanes]


def over(refs, slot: int, j: int, lanes):
    """Result of `spread` for token j of a turn, for all lanes."""
    return jnp.concatenate([refs["spread"][slot, j]] * (lanes.size // LANES), axis=1)


def operands(refs, name: str, g: Geometry):
    """Writes b or c as operands of groups of 8 tokens, refs["operands"] (block, 8 n)."""
    for at in pieces(g):
        x = jnp.concatenate([refs[name][0, :, at]] * GROUP).T
        refs["operands"][at, :] = jnp.where(own_token(x.shape, g), x, 0.0)


def fold(x, g: Geometry):
    """Selects the products of tokens with themselves: (tokens, 8 n) -> (n, tokens)."""
    own = jnp.where(own_token(x.shape, g), x, 0.0).T
    return sum(own[i * g.n : (i + 1) * g.n] for i in range(GROUP))


def own_token(shape: tuple[int, int], g: Geometry):
    """Mask of lanes that belong to the row's token in its group."""
    row, lane = (lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (0, 1))
    return (row & (GROUP - 1)) == lane >> (g.n.bit_length() - 1)


def forward(x, delta, a, b, c, keep, state, options, *, interpret=False):
    """y, the last state or None, the states before each block or None (contract in `api.py`)."""
    g = make_geometry(x, delta, a, keep)
    arrays = Arrays(g)
    inputs = {"x": arrays.tokens(x), "delta": arrays.tokens(delta), "rates": arrays.rates(a)}
    inputs |= {"b": arrays.maps(b), "c": arrays.maps(c)}
    if keep is not None:
        inputs["keep"] = arrays.maps(keep)
    if state is not None:
        inputs["initial"] = arrays.states(state)
    outputs = {"y": arrays.tokens()}
    if options.return_state:
        outputs["final"] = arrays.states()
    if options.save_states:
        outputs["borders"] = arrays.borders()
    scratch = {"operands": (g.block, GROUP * g.n)}
    found = call(_kernel, g, inputs, outputs, scratch, interpret=interpret, name="selective_scan_forward")
    last = found["final"].swapaxes(1, 2) if options.return_state else None
    return found["y"][:, : g.t], last, found.get("borders")


def _kernel(refs, g: Geometry):
    """refs: x delta rates b c [keep] [initial], y [final] [borders], carry written spread operands [step] [begins]."""
    begin(refs, g, "carry")
    if "borders" in refs:
        refs["borders"][0, 0] = refs["carry"][...]
    operands(refs, "c", g)

    def prepare(first, slot):
        spread(refs, "b", g, first, slot)
        write(refs, g, first, slot)

    def work(first, slot):
        for lanes in g.parts:
            outputs = []
            for group in g.groups:
                states = scan_group(refs, g, first, slot, group, lanes)
                reads = refs["operands"][pl.ds(first + group, GROUP), :].astype(g.dtype)
                outputs.append(matmul(reads, states.astype(g.dtype)))
            refs["y"][0, pl.ds(first, g.turn), lanes] = jnp.concatenate(outputs).astype(g.dtype)

    in_turns(g, prepare, work)
    finish(refs, g, "final", refs["carry"])


def scan_group(refs, g: Geometry, first, slot: int, group: int, lanes):
    """States after each of 8 tokens, from token `group` of a turn on: (8 n, lanes); carries the last one."""
    h, rates, states = refs["carry"][:, lanes], refs["rates"][:, lanes], []
    for j in range(group, group + GROUP):
        if "before" in refs:
            refs["before"][first + j, :, lanes] = h
        kept = jnp.exp2(step(refs, g, first, slot, j, lanes) * rates)
        h = kept * h + refs["written"][slot, j : j + 1, lanes] * over(refs, slot, j, lanes)
        states.append(h)
    refs["carry"][:, lanes] = h
    return jnp.concatenate(states)
