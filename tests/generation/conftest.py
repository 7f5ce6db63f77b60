"""Compilation as in the trainer's tests: shared, quick, and away from the user's own cache."""

from tests.train.conftest import compilation  # noqa: F401 a fixture
