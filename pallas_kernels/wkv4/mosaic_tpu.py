"""wkv4 on TPU, forward: one Pallas Mosaic kernel, token by token on the vector units."""

from pallas_kernels.wkv4.mosaic_tpu_layout import LANES, ROWS, Arrays, Step, call, make_geometry
from pallas_kernels.wkv4.state import Wkv4State
from pallas_kernels.wkv4.sums import LOG2_E


def forward(k, v, w, u, keep, state, options, *, interpret=False):
    """y, the last state or None, the sums before each block or None (contract in `api.py`)."""
    g = make_geometry(k, keep)
    arrays = Arrays(g)
    inputs = inputs_of(arrays, k, v, w, u, keep)
    if state is not None:
        inputs["start"] = arrays.rows(state.num, state.den, state.max * LOG2_E)
    outputs = {"y": arrays.tokens()}
    if options.return_state:
        outputs["last"] = arrays.rows(3)
    if options.save_states:
        outputs["borders"] = arrays.borders()
    scratch = {"sums": (3, ROWS, LANES), "k_rows": (ROWS * g.block, LANES), "v_rows": (ROWS * g.block, LANES)}
    found = call(_kernel, g, inputs, outputs, scratch, interpret=interpret, name="wkv4_forward")
    last = None
    if options.return_state:
        num, den, top = arrays.gathered(found["last"])
        last = Wkv4State(num, den, top / LOG2_E)
    return found["y"][:, : g.t], last, found.get("borders")


def inputs_of(arrays: Arrays, k, v, w, u, keep) -> dict:
    """Inputs of both kernels."""
    inputs = {"k": arrays.tokens(k), "v": arrays.tokens(v), "w": arrays.channels(w), "u": arrays.channels(u)}
    return inputs if keep is None else inputs | {"resets": arrays.resets(keep)}


def _kernel(step: Step):
    """refs: k v w u [resets] [start], y [last] [borders], sums k_rows v_rows. Outputs overwrite values."""
    step.begin("sums", "start")
    if "borders" in step.refs:
        step.refs["borders"][:, 0, 0, 0] = step.refs["sums"][...]
    step.fill("k", "v")

    def work(i, sums):
        key, value = step.key(i), step.token("v", i)[...]
        before = step.reset(sums, i)
        read = before.with_term(key + step.u, value)
        step.token("v", i)[...] = read.num / read.den
        return before._replace(top=before.top - step.decay(i)).with_term(key, value)

    step.carry("sums", step.in_turns(work, step.sums("sums")))
    step.write_back("y", "v")
    step.finish("last", "sums")
