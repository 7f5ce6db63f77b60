"""Compiles one case in its own process, and runs it on request of `verify.job`.

Arguments: MODULE LIST PLATFORM INDEX FOLDER. The folder has `options.json`. The worker creates `compiled` there, waits
for `go`, runs, and writes `found.npz`. It ends with its parent.
"""

import contextlib
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pallas_kernels.verify.case import Case, Variant


def main(module: str, listed: str, platform: str, index: str, folder: str) -> None:
    options = json.loads(Path(folder, "options.json").read_text())
    entry = getattr(importlib.import_module(module), listed)[platform][int(index)]
    run = prepared_case(entry, options) if listed == "CASES" else entry.compiled()
    Path(folder, "compiled").touch()
    parent = os.getppid()
    while not Path(folder, "go").exists():
        if os.getppid() != parent:
            sys.exit("the parent is gone")
        time.sleep(0.02)
    found = {key: np.asarray(x) for key, x in run().items()}
    np.savez(Path(folder, "found.npz"), allow_pickle=False, **found)


def prepared_case(case: Case, options: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """Function that runs a compiled case: outputs by index, `changed` (repeats with other bits), and `programs`."""
    with _planned_for(options["multiprocessors"]):
        run, programs = case.compiled(case.inputs(options["seed"]), Variant(**options["variant"]))

    def repeated():
        first = run()
        repeats = (run() for _ in range(options["repeats"]))
        changed = sum(any(map(_differ, first, again)) for again in repeats)
        outputs = {str(i): x.astype(np.float64) for i, x in enumerate(case.checked([np.asarray(x) for x in first]))}
        return outputs | {"changed": changed, "programs": np.array(programs, np.str_)}

    return repeated


def _planned_for(multiprocessors: int | None) -> contextlib.AbstractContextManager[None]:
    """Context in which kernels are planned for a GPU with so many multiprocessors; None: no GPU."""
    if multiprocessors is None:
        return contextlib.nullcontext()
    from pallas_kernels.dispatch import lowering_for

    return lowering_for("cuda", multiprocessors=multiprocessors)


def _differ(x: Any, y: Any) -> bool:
    """Whether two arrays of NumPy or JAX differ in any bit; JAX arrays are compared on their device."""
    if isinstance(x, np.ndarray):
        return x.tobytes() != y.tobytes()
    import jax

    bits = [jax.lax.bitcast_convert_type(array, f"uint{8 * x.dtype.itemsize}") for array in (x, y)]
    return bool((bits[0] != bits[1]).any())


if __name__ == "__main__":
    main(*sys.argv[1:])
