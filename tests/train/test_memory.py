"""Memory estimates from shapes. Kills: layers that are counted once for all repeats."""

import dataclasses
import subprocess
import sys
from types import SimpleNamespace

import pytest

from jaxzoo.models import presets
from jaxzoo.models.accounting import count_parameters
from jaxzoo.train.memory import check_model, estimate_parameters, memory_of_each
from jaxzoo.utils.devices import host_limits


@pytest.mark.parametrize(
    "name", ["mqar-attention", *(pytest.param(n, marks=pytest.mark.full) for n in ("based-360m", "transformer++-360m"))]
)
def test_the_estimate_counts_the_parameters(name):
    """Kills: layers counted with the embedding, or once for all their repeats, and a pattern that is cut short."""
    config = presets.PRESETS[name]()
    assert estimate_parameters(config) == count_parameters(config)
    cut = dataclasses.replace(config, n_layers=len(config.pattern) * 3 + 1)
    assert estimate_parameters(cut) == pytest.approx(count_parameters(cut), rel=0.05)


def test_memory_of_a_device():
    """Kills: the host's memory counted once for each of its devices, or against an accelerator that has its own."""
    cpu = SimpleNamespace(platform="cpu", memory_stats=lambda: None)
    gpu = SimpleNamespace(platform="gpu", memory_stats=lambda: {"bytes_limit": 5})
    assert memory_of_each([cpu] * 4) == memory_of_each([cpu]) / 4 > 2**20
    assert memory_of_each([gpu] * 4) == 5


@pytest.mark.parametrize(
    ("group", "file", "limit"),
    [
        ("0::/", "memory.max", 5),
        ("0::/slurm/job_1/task_0", "slurm/job_1/memory.max", 7),
        ("4:memory:/a/b", "memory/a/b/memory.limit_in_bytes", 9),
        ("0::/", "memory.max", "max"),
    ],
)
def test_limits_of_a_container_or_job(group, file, limit, tmp_path):
    """Kills: batches that follow the host's memory, of which a container or a job has a part, and are killed."""
    whole = host_limits(tmp_path / "no", tmp_path)
    (tmp_path / "groups").write_text(f"8:pids:/x\n{group}\n")
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(f"{limit}\n")
    assert set(host_limits(tmp_path / "groups", tmp_path)) - set(whole) == ({limit} if limit != "max" else set())


def test_the_limit_of_ulimit():
    """Kills: batches beyond ulimit -v."""
    code = "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**33, -1)); from jaxzoo.utils.devices import *"
    words = [sys.executable, "-c", f"{code}; print(min(host_limits(Path('no'), Path('no'))))"]
    assert int(subprocess.run(words, check=True, capture_output=True, text=True).stdout) == 2**32


def test_a_model_beyond_the_device_is_refused(tiny_config, monkeypatch):
    """Kills: a generator that hangs on a config.json with a million layers too many."""
    check_model(tiny_config.model)
    monkeypatch.setattr("jaxzoo.train.memory.memory_of_each", lambda _: 1e5)
    with pytest.raises(
        ValueError, match=r"^LanguageModelConfig: d_model=16, n_layers=4000, vocab_size=40 needs 0.0 GB"
    ):
        check_model(dataclasses.replace(tiny_config.model, n_layers=4000))
