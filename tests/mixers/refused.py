"""Configs that are not accepted."""

import re

import pytest


def assert_refused(make, cases):
    """`make(**fields)` raises ValueError with the message, a regular expression, for each of `cases`."""
    for fields, message in cases:
        try:
            make(**fields)
        except ValueError as error:
            assert re.search(message, str(error)), f"{fields}: {error}"  # noqa: PT017
        else:
            pytest.fail(f"{fields} is accepted")
