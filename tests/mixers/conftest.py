"""The contract is asked case by case, not test by test: what is built and compiled for a case serves all its tests."""

from pathlib import Path

import pytest

from tests.mixers.cases import CASES

CONTRACT = Path(__file__).with_name("test_contract.py")
ORDER = {case: i for i, case in enumerate(CASES)}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    at = [i for i, item in enumerate(items) if item.path == CONTRACT]
    by_case = sorted((items[i] for i in at), key=lambda item: ORDER.get(item.name.partition("[")[2][:-1], len(ORDER)))
    for i, item in zip(at, by_case, strict=True):
        items[i] = item
