"""The selective scan on TPU, forward: one Pallas Mosaic kernel.

    h <- exp(delta a) h + (delta x) b        y = sum_n c[n] h[n]

Token by token: a vector unit takes 8 numbers of state of 128 channels at a time, five operations for each. A row of
delta or delta x is read from memory as a tile with that row on all sublanes. b is spread over the lanes once for all
channels of a grid step. The states of 8 tokens, below each other, are an operand of the matrix units, which sum over
n: on the vector units those sums, over sublanes, would take as long again.

bfloat16: states are rounded as operands, not in the recurrence.
"""

import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels.mosaic_tpu_lanes import matmul
from pallas_kernels.selective_scan.mosaic_tpu_layout import GROUP, Arrays, Geometry, call, make_geometry
from pallas_kernels.selective_scan.mosaic_tpu_turns import (
    begin,
    finish,
    in_turns,
    operands,
    over,
    spread,
    step,
    write,
)


def forward(x, delta, a, b, c, keep, state, options, *, interpret=False):
    """y, the last state or None, the states before each block or None; arrays as `api.py` says."""
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
    """The states after each of 8 tokens, from token `group` of a turn on: (8 n, lanes). Carries the last one."""
    h, rates, states = refs["carry"][:, lanes], refs["rates"][:, lanes], []
    for j in range(group, group + GROUP):
        if "before" in refs:
            refs["before"][first + j, :, lanes] = h
        kept = jnp.exp2(step(refs, g, first, slot, j, lanes) * rates)
        h = kept * h + refs["written"][slot, j : j + 1, lanes] * over(refs, slot, j, lanes)
        states.append(h)
    refs["carry"][:, lanes] = h
    return jnp.concatenate(states)
