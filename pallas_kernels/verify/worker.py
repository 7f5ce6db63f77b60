"""Runs one case in a process of its own, which `python -m pallas_kernels.verify` may kill.

Arguments: MODULE PLATFORM INDEX FOLDER. The folder has `options.json`; `compiled` appears there before the first run,
and `outputs.npz` after the last.
"""

import importlib
import json
import sys
from pathlib import Path

import numpy as np

from pallas_kernels.verify.case import Variant


def main(module: str, platform: str, index: str, folder: str) -> None:
    options = json.loads(Path(folder, "options.json").read_text())
    case = importlib.import_module(module).CASES[platform][int(index)]
    run = case.compiled(case.inputs(options["seed"]), Variant(**options["variant"]))
    Path(folder, "compiled").touch()
    first = [np.asarray(x) for x in run()]
    repeats = ([np.asarray(x) for x in run()] for _ in range(options["repeats"]))
    changed = sum(any(x.tobytes() != y.tobytes() for x, y in zip(first, again, strict=True)) for again in repeats)
    outputs = [x.astype(np.float64) for x in case.checked(first)]
    np.savez(Path(folder, "outputs.npz"), *outputs, changed=changed)


if __name__ == "__main__":
    main(*sys.argv[1:])
