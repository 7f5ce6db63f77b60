"""Peers in PyTorch: what is missing is one line, and what is here is checked as all other candidates."""

import importlib.util
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import torch_peers
from pallas_kernels.benchmark import __main__ as command, checks
from pallas_kernels.taylor_attention.problem import Problem
from pallas_kernels.taylor_attention.workloads import WORKLOADS as TAYLOR
from tests.pallas_kernels.test_benchmark_candidates import window_workload

TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not TORCH, reason="torch is no dependency; its adapters are checked where it is")
SHORT = Problem(b=2, t=40, h=2, g=1, k=3, v=4, dtype=jnp.float32)


@pytest.mark.full
def test_a_path_without_the_peer_is_one_line(tmp_path):
    found = torch_peers.flash_linear_attention(tmp_path, "cpu", torch_peers.FLA["taylor_attention"])
    assert found == ((), [f"peers: {tmp_path} holds no fla/ops; fla not run"], {})
    assert torch_peers.peers("wkv4", "cpu") == ((), (), {})


@pytest.mark.skipif(importlib.util.find_spec("fla") is not None, reason="fla is here")
def test_the_command_loads_the_file_of_peers():
    """Kills a file of peers that is not asked for the op and the platform of the command."""
    found = command._peers(Path(torch_peers.__file__), "taylor_attention", "cpu")
    assert found == ((), ["peers: fla is not on PYTHONPATH; not run"], {})
    assert command._peers(None, "taylor_attention", "cpu") == ((), (), {})


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
@pytest.mark.skipif(TORCH, reason="torch is here")
def test_without_torch_a_peer_is_one_line(tmp_path, monkeypatch):
    checkout(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert torch_peers.peers("taylor_attention", "gpu").notes == ["peers: torch is not installed; fla not run"]
    notes = torch_peers.peers("sliding_window", "gpu").notes
    assert notes == ["peers: torch is not installed; flex_attention and sdpa not run"]


@pytest.mark.full
@needs_torch
def test_fla_needs_cuda(tmp_path, imported_modules):
    checkout(tmp_path)
    found = torch_peers.flash_linear_attention(tmp_path, "gpu", torch_peers.FLA["taylor_attention"])
    assert found.notes == ["peers: torch sees no CUDA device; fla not run"]


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


@pytest.mark.full
@needs_torch
@pytest.mark.filterwarnings("default")  # torch.compile warns of torch's own code
@pytest.mark.parametrize("kind", ["forward", "forward_backward"])
@pytest.mark.parametrize("g", [2, 4])
@pytest.mark.parametrize("name", ["torch_flex", "torch_sdpa"])
def test_torch_windows_are_our_window(name, kind, g):
    candidate = next(c for c in torch_peers.torch_windows("cpu").candidates if c.name == name)
    if (name, kind) == ("torch_flex", "forward_backward"):
        with pytest.raises(NotImplementedError, match="no backward on a CPU"):
            candidate.build(window_workload(kind, g=g))
        return
    assert max(torch_errors(window_workload(kind, g=g), candidate)) < 1e-5


def torch_errors(work, candidate):
    sets = [work.inputs(seed) for seed in range(2)]
    program = torch_peers.TorchProgram(candidate.build(work), sets, 1, gradients=work.kind == "forward_backward")
    rows = np.arange(2)
    actual, finite = program.outputs(rows)
    assert finite
    program.batch(3)
    return checks.errors(actual, checks.expected(work.truth, sets[0], rows))
