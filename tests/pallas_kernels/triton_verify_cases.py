"""Cases for `test_triton_verify.py`: short convolutions, some in another language."""

import dataclasses

from pallas_kernels.short_conv.workloads import CASES as OF_OP

SMALL = [dataclasses.replace(case, dtype="float32", t=20) for case in OF_OP["gpu"] if case.t <= 70]
FEW = [next(case for case in SMALL if case.backward == backward) for backward in (False, True)]
CASES = {"cpu": [FEW[0], dataclasses.replace(FEW[0], implementation="mosaic_gpu"), FEW[1]]}
TIMES = {"cpu": []}
