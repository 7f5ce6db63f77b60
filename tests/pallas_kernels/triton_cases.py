"""Cases of an op for its Triton kernels, interpreted: prints the relative L2 errors as JSON.

TRITON_INTERPRET=1 python -m tests.pallas_kernels.triton_cases OP [part of a name]
"""

import dataclasses
import json
import os
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import triton_call
from pallas_kernels.registry import load
from pallas_kernels.verify.case import Variant
from pallas_kernels.verify.kernel_case import LONG, KernelCase
from tests.pallas_kernels.shared import relative_l2

DTYPES = ("float32", "float16")
"""float16 stands for bfloat16, which Triton's interpreter does not multiply."""


def triton_cases(op: str) -> list[KernelCase]:
    """Short cases of the op's other kernels that its Triton kernels serve in bfloat16."""
    found = {}
    for case in (case for platform in ("gpu", "tpu", "cpu") for case in load(op, "workloads").CASES[platform]):
        backend = case.OP.backends.get("triton")
        as_triton = dataclasses.replace(case, implementation="triton", dtype="bfloat16")
        if case.t <= LONG and backend is not None and backend.objection(as_triton.problem) is None:
            fields = (field.name for field in dataclasses.fields(as_triton) if field.name.endswith("dtype"))
            narrow = [name for name in fields if getattr(as_triton, name) == "bfloat16"]
            for dtype in DTYPES:
                interpreted = dataclasses.replace(as_triton, **dict.fromkeys(narrow, dtype))
                found[interpreted] = interpreted
    return list(found)


def errors(case: KernelCase) -> dict[str, float]:
    """Relative L2 error of every output, divided by the tolerance."""
    inputs = case.inputs(0)
    operands, cotangents = jax.tree.map(jnp.asarray, inputs)
    found = case.call(operands, cotangents, Variant(interpret=True))
    truth = case.truth(inputs)
    named = zip(case.tolerances.items(), case.checked([np.asarray(x) for x in found]), truth, strict=True)
    return {name: relative_l2(x, exact) / tolerance for (name, tolerance), x, exact in named}


def interpreted(op: str, pattern: str = "") -> dict[str, dict[str, float]]:
    """Errors by case, divided by tolerances, of cases whose name contains the pattern, from a process of its own."""
    reason = triton_call.missing()
    if reason is not None and os.environ.get("JAXZOO_REQUIRE_AOT") != "1":
        pytest.skip(f"needs the extra triton: {reason}")
    command = [sys.executable, "-m", "tests.pallas_kernels.triton_cases", op, pattern]
    environment = os.environ | {"TRITON_INTERPRET": "1", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def check_interpreted(op: str, pattern: str = "") -> None:
    """Fails unless there are cases and all errors are below their tolerances."""
    found = interpreted(op, pattern)
    wrong: dict[str, Any] = {name: each for name, each in found.items() if not max(each.values()) < 1}
    assert found
    assert not wrong, wrong


if __name__ == "__main__":
    pattern = sys.argv[2] if len(sys.argv) > 2 else ""
    measured = {}
    for case in triton_cases(sys.argv[1]):
        if pattern in case.name:
            measured[case.name] = errors(case)
            print(case.name, {name: f"{x:.2g}" for name, x in measured[case.name].items()}, file=sys.stderr, flush=True)
    print(json.dumps(measured))
