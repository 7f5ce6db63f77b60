"""Peers in PyTorch: what is missing is one line, and what is here is checked as all other candidates."""

import importlib.util
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import torch_peers
from pallas_kernels.benchmark import checks
from pallas_kernels.taylor_attention.problem import Problem
from pallas_kernels.taylor_attention.workloads import WORKLOADS as TAYLOR

TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not TORCH, reason="torch is no dependency; its adapters are checked where it is")
SHORT = Problem(b=2, t=40, h=2, g=1, k=3, v=4, dtype=jnp.float32)


def checkout(root):
    """A stand-in for the peer, whose other folders must not be imported."""
    for folder in ("fla", "fla/ops", "fla/ops/based"):
        (root / folder).mkdir()
    (root / "fla" / "__init__.py").write_text("raise ImportError('all models')")
    (root / "fla" / "ops" / "__init__.py").write_text("raise ImportError('all operators')")
    (root / "fla" / "utils.py").write_text("from . import __version__\nEPS = 1e-6\n")
    (root / "fla" / "ops" / "based" / "__init__.py").write_text(PEER)


PEER = """
from fla.utils import EPS


def fused_chunk_based(q, k, v, scale=None, use_norm=True):
    import torch

    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    s = (q.shape[-1] ** -0.5 if scale is None else scale) * q @ k.transpose(-1, -2)
    weights = (1 + s + s * s / 2).tril()
    return (weights @ v / (weights.sum(-1, keepdim=True) + EPS)).transpose(1, 2)


def parallel_based(q, k, v, scale=None, use_norm=True):
    return fused_chunk_based(q, k, v)[:, :, :, :] * 1.1
"""


@pytest.fixture
def imported_modules():
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.split(".")[0] == "fla":
            del sys.modules[name]


@pytest.mark.full
def test_only_the_operators_of_a_checkout_are_imported(tmp_path, imported_modules):
    checkout(tmp_path)
    assert torch_peers.import_part(tmp_path, "fla", ("ops",), "based").EPS == 1e-6


@pytest.mark.full
@needs_torch
@pytest.mark.parametrize("kind", ["forward", "forward_backward"])
def test_peers_in_torch_are_checked_as_all_others(kind, tmp_path, monkeypatch, imported_modules):
    """A right and a wrong peer, through the adapters, on a CPU."""
    checkout(tmp_path)
    monkeypatch.setattr(torch_peers, "_no_torch", lambda *a, **k: None)
    found, notes, versions = torch_peers.flash_linear_attention(tmp_path, "cpu", torch_peers.FLA["taylor_attention"])
    assert [c.name for c in found] == ["fla_fused_chunk", "fla_parallel"]
    assert not notes
    assert versions["flash-linear-attention"] == "unknown"
    errors = [torch_errors(TAYLOR.workload("x", SHORT, kind), c) for c in found]
    assert max(errors[0]) < 1e-5
    assert min(errors[1]) > 1e-2


def torch_errors(work, candidate):
    sets = [work.inputs(seed) for seed in range(2)]
    program = torch_peers.TorchProgram(candidate.build(work), sets, 1, gradients=work.kind == "forward_backward")
    rows = np.arange(2)
    actual, finite = program.outputs(rows)
    assert finite
    program.batch(3)
    return checks.errors(actual, checks.expected(work.truth, sets[0], rows))
