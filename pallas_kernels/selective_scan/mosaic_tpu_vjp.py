"""The selective scan on TPU, backward: one Pallas Mosaic kernel, with blocks from the last to the first.

With the state h_{t-1} before a token, its decay k = exp(delta a), and q_{t+1} the cotangent of h_t from later tokens,

    g = q_{t+1} + c dy        q_t = k g        p = q_t h_{t-1}
    dx = delta sum_n g b      ddelta = sum_n a p + x sum_n g b      da = sum_t delta p
    db = sum_d g delta x      dc = sum_d h_t dy

The states of a block are recomputed from the saved state before it and kept in VMEM. Sums over n, and over channels,
are matmuls with the stacked g, h or a p of 8 tokens, in bfloat16 rounded. XLA adds db and dc over blocks of channels.
"""

import math

import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels.selective_scan.mosaic_tpu import (
    begin,
    finish,
    fold,
    in_turns,
    operands,
    over,
    own_token,
    pieces,
    scan_group,
    spread,
    step,
    write,
)
from pallas_kernels.selective_scan.mosaic_tpu_layout import GROUP, Arrays, Geometry, call, make_geometry
from pallas_kernels.tpu.lanes import matmul, matmul_nt


def backward(x, delta, a, b, c, keep, state, borders, dy, dstate, options, *, interpret=False):
    """Gradients of x, delta, a, b, c and state (or None); borders from `mosaic_tpu.forward`."""
    g = make_geometry(x, delta, a, keep)
    arrays = Arrays(g, backwards=True)
    inputs = {"x": arrays.tokens(x), "delta": arrays.tokens(delta), "dy": arrays.tokens(dy)}
    inputs |= {"rates": arrays.rates(a), "b": arrays.maps(b), "c": arrays.maps(c), "borders": arrays.borders(borders)}
    if keep is not None:
        inputs["keep"] = arrays.maps(keep)
    if dstate is not None:
        inputs["initial"] = arrays.states(dstate)
    outputs = {"dx": arrays.tokens(), "ddelta": arrays.tokens(dtype=delta.dtype), "da": arrays.states()}
    outputs |= {"db": arrays.map_gradients(), "dc": arrays.map_gradients()}
    if state is not None:
        outputs["final"] = arrays.states()
    products = (g.block, GROUP * g.n)
    scratch = {"dys": (2, g.turn, g.width), "before": (g.block, g.n, g.width), "slopes": (g.n, g.width)}
    scratch |= {"cotangent": (g.n, g.width), "operands": products, "db_pairs": products, "dc_pairs": products}
    found = call(_kernel, g, inputs, outputs, scratch, interpret=interpret, name="selective_scan_backward")
    db, dc = (found[name].sum(1).swapaxes(1, 2)[:, : g.t].astype(x.dtype) for name in ("db", "dc"))
    dinitial = found["final"].swapaxes(1, 2) if state is not None else None
    return found["dx"][:, : g.t], found["ddelta"][:, : g.t], found["da"].sum(0).T, db, dc, dinitial


def _kernel(refs, g: Geometry):
    """refs: x delta dy rates b c borders [keep] [initial], dx ddelta da db dc [final], scratch."""
    begin(refs, g, "cotangent")

    @pl.when(pl.program_id(2) == 0)
    def _():
        refs["slopes"][...] = jnp.zeros_like(refs["slopes"])

    _replay(refs, g)
    _reverse(refs, g)
    for at in pieces(g):
        refs["db"][0, 0, :, at] = fold(refs["db_pairs"][at, :], g)
        refs["dc"][0, 0, :, at] = fold(refs["dc_pairs"][at, :], g)
    finish(refs, g, "da", refs["slopes"])
    finish(refs, g, "final", refs["cotangent"])


def _replay(refs, g: Geometry):
    """Recomputes the states before every token of a block, and dc."""
    refs["carry"][...] = refs["borders"][0, 0]

    def prepare(first, slot):
        spread(refs, "b", g, first, slot)
        _widen(refs, g, first, slot)

    def work(first, slot):
        pairs = dict.fromkeys(g.groups, 0.0)
        for lanes in g.parts:
            for group in g.groups:
                states = scan_group(refs, g, first, slot, group, lanes).astype(g.dtype)
                dy = refs["dys"][slot, group : group + GROUP, lanes].astype(g.dtype)
                pairs[group] += matmul_nt(dy, states)
        refs["dc_pairs"][pl.ds(first, g.turn), :] = jnp.concatenate(list(pairs.values()))

    in_turns(g, prepare, work)


def _reverse(refs, g: Geometry):
    """Cotangents from the last token of a block to the first, and gradients."""
    operands(refs, "b", g)
    ones = jnp.where(own_token((GROUP, GROUP * g.n), g), 1.0, 0.0).astype(g.dtype)

    def work(first, slot):
        pairs, rows = dict.fromkeys(g.groups, 0.0), pl.ds(first, g.turn)
        for lanes in g.parts:
            sums = {}
            for group in reversed(g.groups):
                cotangents, exponents = _reverse_group(refs, g, first, slot, group, lanes)
                written = refs["written"][slot, group : group + GROUP, lanes].astype(g.dtype)
                pairs[group] += matmul_nt(written, cotangents)
                writes = refs["operands"][pl.ds(first + group, GROUP), :].astype(g.dtype)
                sums[group] = matmul(writes, cotangents), matmul(ones, exponents)
            in_order = (jnp.concatenate([sums[group][i] for group in g.groups]) for i in range(2))
            _write_gradients(refs, g, rows, lanes, *in_order)
        refs["db_pairs"][rows, :] = jnp.concatenate(list(pairs.values()))

    def prepare(first, slot):
        spread(refs, "c", g, first, slot)
        _widen(refs, g, first, slot)

    in_turns(g, prepare, work, backwards=True)


def _widen(refs, g: Geometry, first, slot: int):
    """Converts rows of a turn to float32."""
    write(refs, g, first, slot)
    refs["dys"][slot] = refs["dy"][0, pl.ds(first, g.turn), :].astype(jnp.float32)


def _reverse_group(refs, g: Geometry, first, slot: int, group: int, lanes):
    """g and rates p of 8 tokens as operands, (8 n, lanes) each; carries q, and adds to da."""
    q, rates, slopes = (refs[name][:, lanes] for name in ("cotangent", "rates", "slopes"))
    cotangents, exponents = [], []
    for j in reversed(range(group, group + GROUP)):
        now = step(refs, g, first, slot, j, lanes)
        cotangent = q + refs["dys"][slot, j : j + 1, lanes] * over(refs, slot, j, lanes)
        q = jnp.exp2(now * rates) * cotangent
        p = q * refs["before"][first + j, :, lanes]
        slopes += now * p
        cotangents.insert(0, cotangent)
        exponents.insert(0, rates * p)
    refs["cotangent"][:, lanes] = q
    refs["slopes"][:, lanes] = slopes
    return jnp.concatenate(cotangents).astype(g.dtype), jnp.concatenate(exponents).astype(g.dtype)


def _write_gradients(refs, g: Geometry, rows, lanes, written, exponents):
    """Writes dx and ddelta of a turn, from sum_n g b and sum_n rates p."""
    x, delta = (refs[name][0, rows, lanes].astype(jnp.float32) for name in ("x", "delta"))
    refs["dx"][0, rows, lanes] = (delta * written).astype(g.dtype)
    ddelta = jnp.float32(math.log(2)) * exponents + x * written
    refs["ddelta"][0, rows, lanes] = ddelta.astype(refs["ddelta"].dtype)
