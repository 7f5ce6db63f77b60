"""wkv4 on TPU, backward: one Pallas Mosaic kernel, with blocks from the last to the first.

The sums before every token of a block are recomputed from the saved ones and kept in VMEM; then the block is processed
in reverse. `mosaic_gpu_vjp.py` has the equations.
"""

import jax.numpy as jnp

from pallas_kernels.wkv4.mosaic_tpu import inputs_of
from pallas_kernels.wkv4.mosaic_tpu_layout import LANES, ROWS, Arrays, Step, call, make_geometry
from pallas_kernels.wkv4.state import Wkv4State
from pallas_kernels.wkv4.sums import LOG2_E, Sums, before_token


def backward(k, v, w, u, keep, state, last_max, borders, dy, dstate, options, *, interpret=False):
    """Gradients of k, v, w, u and state (or None); borders from `mosaic_tpu.forward`."""
    g = make_geometry(k, keep, backwards=True)
    arrays = Arrays(g)
    inputs = inputs_of(arrays, k, v, w, u, keep) | {"dy": arrays.tokens(dy), "borders": arrays.borders(borders)}
    if dstate is not None:
        inputs["end"] = arrays.rows(dstate.num, dstate.den, -last_max * LOG2_E)
    outputs = {"dk": arrays.tokens(), "dv": arrays.tokens(), "dw_du": arrays.rows(2)}
    if state is not None:
        outputs["start"] = arrays.rows(3)
    rows = (ROWS * g.block, LANES)
    scratch = {"later": (3, ROWS, LANES), "slopes": (2, ROWS, LANES), "before": (g.block, 3, ROWS, LANES)}
    scratch |= {"k_rows": rows, "v_rows": rows, "dy_rows": rows}
    found = call(_kernel, g, inputs, outputs, scratch, interpret=interpret, name="wkv4_backward")
    dw, du = arrays.gathered(found["dw_du"]).sum(1)
    dstart = None
    if state is not None:
        num, den, top = arrays.gathered(found["start"])
        scale = jnp.exp2(top + LOG2_E * state.max)  # at most 1
        dstart = Wkv4State(num * scale, den * scale, jnp.zeros_like(scale))
    return found["dk"][:, : g.t], found["dv"][:, : g.t], dw, du, dstart


def _kernel(step: Step):
    """refs: k v w u [resets] dy borders [end], dk dv dw_du [start], scratch. Gradients overwrite k and v."""
    step.begin("later", "end")
    step.first("slopes")
    step.fill("k", "v", "dy")
    _replay(step)

    def work(i, carry):
        later, dw, du = carry
        sums = step.reset(Sums(*(step.refs["before"][i, j] for j in range(3))), i)
        arrays = step.key(i), step.token("v", i)[...], step.token("dy", i)[...]
        dk, dv, later, (dw_term, du_term) = before_token(sums, later, *arrays, u=step.u, w=step.decay(i))
        step.token("k", i)[...], step.token("v", i)[...] = dk, dv
        return step.reset(later, i), dw - step.but_padding(dw_term, i), du + du_term

    carry = step.sums("later"), step.refs["slopes"][0], step.refs["slopes"][1]
    later, *slopes = step.in_turns(work, carry, backwards=True)
    step.carry("later", later)
    for i, x in enumerate(slopes):
        step.refs["slopes"][i] = x
    step.write_back("dk", "k")
    step.write_back("dv", "v")
    step.finish("dw_du", "slopes")
    step.finish("start", "later")


def _replay(step: Step):
    """Recomputes the sums before every token of a block."""

    def work(i, sums):
        for j, x in enumerate(sums):
            step.refs["before"][i, j] = x
        before = step.reset(sums, i)
        return before._replace(top=before.top - step.decay(i)).with_term(step.key(i), step.token("v", i)[...])

    step.in_turns(work, Sums(*(step.refs["borders"][j, 0, 0, 0] for j in range(3))))
