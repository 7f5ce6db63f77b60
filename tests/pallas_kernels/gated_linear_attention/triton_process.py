"""Calls with which no verified case begins, by interpreted Triton kernels, in a process of its own; prints JSON.

TRITON_INTERPRET=1 JAX_PLATFORMS=cpu python -m tests.pallas_kernels.gated_linear_attention.triton_process
"""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.gated_linear_attention import api
from pallas_kernels.op import Options
from tests.pallas_kernels.calls import truth, typed
from tests.pallas_kernels.gated_linear_attention.cases import Call, interpreted
from tests.pallas_kernels.shared import relative_l2

small = functools.partial(Call, k=16, v=40)
CALLS = [
    small(t=1, h=4),
    small(t=1, channel=True),
    small(t=1, state=False, b=1),
    small(t=70, b=1, h=2, g=1, decay=60.0, documents=True),
    small(t=130, b=1, h=1, g=1, channel=True, state=False, decay=60.0, documents=True),
]


def errors(call: Call) -> list[float]:
    """Relative L2 errors of y, the last state, and all gradients."""
    found, expected = interpreted(call, "triton"), truth(call)
    return [relative_l2(x, y) for x, y in zip(*map(jax.tree.leaves, (found, expected)), strict=True)]


def without_state(t: int) -> list[float]:
    """Errors of y and the gradients of a call whose state nobody asks for, for two calls under vmap."""
    call = Call(t=t, k=16, v=8, channel=True, state=False)
    operands, (dy, _) = typed(call)
    two = [jnp.stack([x, x / 2]) for x in (*operands, dy)]

    def run(name, q, k, v, log_decay, dy):
        kernels, options = api.BACKENDS[name], Options(return_state=False, save_states=True)
        y, last, saved = kernels.forward(q, k, v, log_decay, None, options=options)
        assert last is None
        return y, kernels.backward(q, k, v, log_decay, None, saved, dy, None, options=options)[:4]

    found, expected = (jax.tree.leaves(jax.vmap(functools.partial(run, x))(*two)) for x in ("triton", "xla"))
    return [relative_l2(x, np.asarray(y)) for x, y in zip(found, expected, strict=True)]


if __name__ == "__main__":
    measured = {str(call): errors(call) for call in CALLS}
    print(json.dumps(measured | {f"no state, t={t}": without_state(t) for t in (1, 5)}))
