"""Tests of evaluation compile as the trainer's do."""

from tests.train.conftest import compilation  # noqa: F401 a fixture: quick compilations, kept from the user's
