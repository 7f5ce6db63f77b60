"""Cases and calls for `test_verify.py`: right, wrong, hanging and crashing. NumPy alone, so that workers start fast."""

import dataclasses
import os
import time
from pathlib import Path

import numpy as np

from pallas_kernels.verify.case import Compiled


@dataclasses.dataclass(frozen=True)
class Toy:
    """y = 2 x of shape (b, t, h, c)."""

    kind: str
    tolerances = {"y": 1e-5}  # noqa: RUF012

    @property
    def name(self):
        return f"toy {self.kind} forward"

    def inputs(self, seed):
        return [np.random.default_rng(seed).standard_normal((1, 70, 2, 16))]

    def truth(self, arrays):
        return [2 * arrays[0]]

    def checked(self, outputs):
        return outputs

    def compiled(self, arrays, variant):
        if self.kind == "crashing":
            raise RuntimeError("no such instruction")
        if self.kind == "starved":
            self._starve(Path(os.environ["STARVED"]))
        y = np.float32(2 * arrays[0])
        if self.kind == "wrong" and os.environ.get("PALLAS_KERNELS_BARRIERS") != "1":
            y[0, 66, 1, 3] = np.nan
            y[0, 68:, 1, 11] += 1

        def run():
            if self.kind == "hanging":
                time.sleep(600)
            return [y]

        return Compiled(run, ["program"])

    def _starve(self, mark):
        """No memory the first time."""
        if not mark.exists():
            mark.touch()
            raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 3 bytes")


CASES = {"cpu": [Toy("right"), Toy("wrong"), Toy("hanging"), Toy("crashing"), Toy("last")]}


@dataclasses.dataclass(frozen=True)
class Numbered:
    """Its truth is its number."""

    number: int

    def inputs(self, seed):
        return [np.float64(seed)]

    def truth(self, arrays):
        return [np.array([self.number, arrays[0]])]


@dataclasses.dataclass(frozen=True)
class ToyCall:
    """A call that takes 2 ms."""

    implementation: str

    @property
    def name(self):
        return f"toy forward {self.implementation}"

    def compiled(self):
        return lambda: {"ms": 2.0, "ms_p10": 1.0, "ms_p90": 3.0}


TIMES = {"cpu": [ToyCall("right"), ToyCall("wrong")]}
