"""Comparisons with layers and models of transformers, on PyTorch's CPU: `python -m pytest -m parity`."""

import os

import pytest

REMEDY = "needs torch and transformers: pip install -e '.[parity]'"


@pytest.fixture
def torch():
    """PyTorch, with a seed of its own for every test."""
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported, which transformers does
    torch = pytest.importorskip("torch", reason=REMEDY)
    torch.manual_seed(0)
    return torch


@pytest.fixture
def transformers(torch):
    """Hugging Face's transformers."""
    return pytest.importorskip("transformers", reason=REMEDY)
