"""A case whose first process finds no memory, for `test_verify.py`."""

from tests.pallas_kernels.verify_cases import Toy

CASES = {"cpu": [Toy("starved")]}
