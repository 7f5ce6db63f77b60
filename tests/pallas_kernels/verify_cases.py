"""Cases for `test_verify.py`: right, wrong, hanging and crashing ones. NumPy alone, so that workers start fast."""

import dataclasses
import os
import time

import numpy as np


@dataclasses.dataclass(frozen=True)
class Toy:
    """y = 2 x of shape (b, t, h, c)."""

    name: str
    tolerances = {"y": 1e-5}  # noqa: RUF012

    def inputs(self, seed):
        return [np.random.default_rng(seed).standard_normal((1, 70, 2, 16))]

    def truth(self, arrays):
        return [2 * arrays[0]]

    def checked(self, outputs):
        return outputs

    def compiled(self, arrays, variant):
        if self.name == "crashing":
            raise RuntimeError("no such instruction")
        y = np.float32(2 * arrays[0])
        if self.name == "wrong" and os.environ.get("PALLAS_KERNELS_BARRIERS") != "1":
            y[0, 66, 1, 3] = np.nan
            y[0, 68:, 1, 11] += 1

        def run():
            if self.name == "hanging":
                time.sleep(600)
            return [y]

        return run


CASES = {"cpu": [Toy("right"), Toy("wrong"), Toy("hanging"), Toy("crashing"), Toy("last")]}
