"""Fixtures of benchmarks: compilation as in the trainer's tests."""

from tests.train.conftest import compilation  # noqa: F401 a fixture: quick compilations, kept from the user's
