"""Several steps in sequence by interpreted Triton kernels, in a process of its own; prints errors as JSON.

TRITON_INTERPRET=1 JAX_PLATFORMS=cpu python -m tests.pallas_kernels.decode_step.triton_process
"""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.benchmark.checks import wide
from pallas_kernels.decode_step.workloads import ConvStepCase, StepCase, TaylorStepCase, WindowStepCase
from tests.pallas_kernels.shared import relative_l2

CASES = [
    TaylorStepCase(implementation="triton", backward=False, b=2, h=4, g=2, k=3, v=5, decay=True, dtype="float32"),
    WindowStepCase(
        implementation="triton", backward=False, b=5, h=4, g=2, k=6, v=5, window=5, dtype="float32",
        cache_dtype="float32",
    ),
    ConvStepCase(implementation="triton", backward=False, b=2, d=9, w=4, gates=2, dtype="float32"),
]  # fmt: skip


def steps(case: StepCase, n: int = 7) -> float:
    """Largest relative L2 error of the outputs of n steps and of the last state."""
    kernel, forms = case.OP.backends["triton"].forward, [list(case.inputs(seed).operands) for seed in range(n)]
    names = case.OP.operands
    states = [i for i, name in enumerate(names) if name in ("s", "z", "ring_k", "ring_v", "history")]
    position = names.index("position") if "position" in names else None
    fixed = [i for i, name in enumerate(names) if name in ("decay", "taps", "bias")]
    found, exact = ([forms[0][i] for i in states] for _ in range(2))
    errors = []
    for step, operands in enumerate(forms):
        for i in fixed:
            operands[i] = forms[0][i]
        if position is not None:
            operands[position] = forms[0][position] + step
        given = list(operands)
        for i, x, y in zip(states, found, exact, strict=True):
            given[i], operands[i] = x, y
        y, *found, _ = kernel(*map(_array, given), options=case.step_options)
        with jax.enable_x64(True):
            truth, *exact = jax.jit(case.reference)(*(None if x is None else wide(np.asarray(x)) for x in operands))
        errors.append(relative_l2(y, np.asarray(truth)))
    return max(errors + [relative_l2(x, np.asarray(y)) for x, y in zip(found, exact, strict=True)])


def under_vmap() -> float:
    """Difference between two calls under vmap and the calls themselves."""
    case = dataclasses.replace(CASES[2], bias=True)
    calls = [list(map(_array, case.inputs(seed).operands)) for seed in (0, 1)]

    def run(*operands):
        return case.OP.backends["triton"].forward(*operands, options=case.step_options)[:2]

    found = jax.vmap(run)(*(jnp.stack(pair) for pair in zip(*calls, strict=True)))
    alone = [run(*operands) for operands in calls]
    return max(relative_l2(x, np.stack(pair)) for x, *pair in zip(found, *alone, strict=True))


def _array(x):
    return None if x is None else jnp.asarray(x)


if __name__ == "__main__":
    print(json.dumps({case.name: steps(case) for case in CASES} | {"vmap": under_vmap()}))
