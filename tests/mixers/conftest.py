"""Order and tiers of the mixers' tests.

The contract is asked case by case, not test by test: what is built and compiled for a case serves all its tests. Of an
equation's settings the first is core, the others are full unless they are slow.
"""

from pathlib import Path

import pytest

from tests.mixers.cases import CASES

CONTRACT = Path(__file__).with_name("test_contract.py")
ORDER = {case: i for i, case in enumerate(CASES)}


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    equations = set()
    for item in items:
        name = item.name.partition("[")[0]
        if name in ("test_equation", "test_formula", "test_equation_7") and not item.get_closest_marker("slow"):
            if (item.path, name) in equations:
                item.add_marker(pytest.mark.full)
            equations.add((item.path, name))
    at = [i for i, item in enumerate(items) if item.path == CONTRACT]
    by_case = sorted((items[i] for i in at), key=lambda item: ORDER.get(item.name.partition("[")[2][:-1], len(ORDER)))
    for i, item in zip(at, by_case, strict=True):
        items[i] = item
