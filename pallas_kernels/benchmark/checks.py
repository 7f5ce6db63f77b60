"""Comparison of a program's outputs with float64, by relative L2 error."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.workload import Workload

TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2, "float16": 5e-3}
"""Relative error allowed per dtype of an output in `dtypes`; tf32 errors (3e-4) fail. Other outputs, e.g. positions,
are exact."""
TOKENS = {"cpu": 8192, "gpu": 16384}
"""Number of tokens that are computed in float64."""


def truth_device() -> Any:
    """Device for float64: the default device, or the host of a TPU."""
    return jax.devices("cpu")[0] if jax.default_backend() == "tpu" else jax.devices()[0]


def checked_rows(workload: Workload) -> np.ndarray:
    """Compared rows of the batch, including the first and, if there is more than one, the last."""
    b, t = int(workload.sizes["b"]), int(workload.sizes.get("t", 1))
    budget = TOKENS.get(truth_device().platform, TOKENS["cpu"])
    return np.unique(np.linspace(0, b - 1, max(1, min(b, budget // max(t, 1)))).round().astype(int))


def expected(truth: Callable, inputs: Any, rows: np.ndarray) -> list:
    """Leaves of `truth` for some rows of the inputs, in float64."""
    arrays = jax.tree.map(lambda x: wide(np.asarray(jnp.asarray(x)[rows])), inputs)
    with jax.enable_x64(True), jax.default_device(truth_device()):
        outputs = jax.jit(truth)(*arrays)
        return [np.asarray(x) for x in jax.tree.leaves(outputs)]


def wide(x: np.ndarray) -> np.ndarray:
    """Converts to float64, except integers."""
    return x.astype(np.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x


def errors(actual: list[np.ndarray], expected: list[np.ndarray]) -> list[float]:
    """Relative L2 error of each array; infinite if shapes differ or a number is not finite."""
    return [_error(x.astype(np.float64), y) for x, y in zip(actual, expected, strict=True)]


def _error(found: np.ndarray, truth: np.ndarray) -> float:
    if found.shape != truth.shape or not np.isfinite(found).all():
        return math.inf
    return float(np.linalg.norm(found - truth) / max(np.linalg.norm(truth), 1e-30))


def dtypes(workload: Workload, actual: list[np.ndarray]) -> list[str]:
    """Dtype that sets each output's tolerance: its own, or for gradients the dtype of the inputs."""
    inputs = workload.sizes.get("dtype")
    if workload.kind == "forward_backward" and isinstance(inputs, str):
        return [inputs] * len(actual)
    return [x.dtype.name for x in actual]


def objection(found: list[float], finite: bool, dtypes: list[str]) -> str | None:
    """Why outputs with these errors are wrong, or None."""
    for i, (dtype, error) in enumerate(zip(dtypes, found, strict=True)):
        tolerance = TOLERANCE.get(dtype, 0.0)
        if not error <= tolerance:
            return f"output {i}: relative L2 {error:.1e} exceeds {tolerance:.0e} of {dtype}"
    return None if finite else "a value that is not finite, outside the rows that were compared"
