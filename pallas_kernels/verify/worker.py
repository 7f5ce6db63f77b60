"""Functions of other processes: a case or a timed call is compiled for a later run; truths are computed ahead."""

import collections
import contextlib
import importlib
import itertools
import os
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np

from pallas_kernels.child import host_pool
from pallas_kernels.verify.case import Variant

MOST = 6
"""Maximum number of processes that compute truths."""


def truths(cases: Sequence[Any], seed: int) -> Generator[list[np.ndarray], None, None]:
    """Yields the outputs of the cases in float64, computed ahead."""
    count = max(1, min(MOST, (os.cpu_count() or 1) // 2))
    waiting = iter(cases)
    with host_pool(count) as pool:
        ahead = collections.deque(pool.submit(_truth, case, seed) for case in itertools.islice(waiting, 2 * count))
        try:
            while ahead:
                yield ahead.popleft().result()
                ahead.extend(pool.submit(_truth, case, seed) for case in itertools.islice(waiting, 1))
        finally:
            pool.shutdown(cancel_futures=True)


def _truth(case: Any, seed: int) -> list[np.ndarray]:
    return case.truth(case.inputs(seed))


def device() -> dict[str, Any]:
    """JAX's default device, after it has computed 1 + 1."""
    import jax

    found = jax.devices()[0]
    assert float(jax.numpy.ones(()) + 1) == 2
    facts = {"platform": jax.default_backend(), "device": found.device_kind, "jax": jax.__version__}
    return facts | {
        "capability": getattr(found, "compute_capability", None),
        "cores": getattr(found, "core_count", None),
    }


def timed_call(module: str, platform: str, index: int) -> Callable[[], dict[str, float]]:
    """Function that times an entry of the module's TIMES."""
    return importlib.import_module(module).TIMES[platform][index].compiled()


def prepared_case(
    module: str,
    platform: str,
    index: int,
    seed: int,
    repeats: int,
    variant: dict[str, Any],
    multiprocessors: int | None,
    capability: str | None,
) -> Callable[[], dict[str, Any]]:
    """Function that runs an entry of the module's CASES: outputs, `changed` (repeats with other bits), `programs`.

    Kernels are planned for a GPU with so many multiprocessors and a compute capability; None: no GPU.
    """
    case = importlib.import_module(module).CASES[platform][index]
    with _planned_for(multiprocessors, capability):
        run, programs = case.compiled(case.inputs(seed), Variant(**variant))

    def repeated():
        first = run()
        repeated = (run() for _ in range(repeats))
        changed = sum(any(map(_differ, first, again)) for again in repeated)
        outputs = [x.astype(np.float64) for x in case.checked([np.asarray(x) for x in first])]
        return {"outputs": outputs, "changed": changed, "programs": list(programs)}

    return repeated


def _planned_for(multiprocessors: int | None, capability: str | None) -> contextlib.AbstractContextManager[None]:
    if multiprocessors is None or capability is None:
        return contextlib.nullcontext()
    from pallas_kernels.dispatch import lowering_for

    return lowering_for("cuda", multiprocessors=multiprocessors, capability=capability)


def _differ(x: Any, y: Any) -> bool:
    """Whether two arrays of NumPy or JAX differ in any bit; JAX arrays are compared on their device."""
    if isinstance(x, np.ndarray):
        return x.tobytes() != y.tobytes()
    import jax

    bits = [jax.lax.bitcast_convert_type(array, f"uint{8 * x.dtype.itemsize}") for array in (x, y)]
    return bool((bits[0] != bits[1]).any())
