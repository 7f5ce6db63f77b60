"""Plans by the compilers of absent TPUs and H100s. Kills: kernels that a plan loses."""

import dataclasses

import pytest

from jaxzoo.cli.plan import main
from jaxzoo.data.token_data import TokenDataConfig
from jaxzoo.mixers import SlidingWindowAttentionConfig, TaylorLinearAttentionConfig
from jaxzoo.models import LanguageModelConfig
from jaxzoo.parallel.sharding import MeshConfig
from jaxzoo.plan.compile import make_plan
from jaxzoo.plan.plan import Plan
from jaxzoo.plan.topology import find_topology
from jaxzoo.train.config import RunConfig, TrainConfig
from pallas_kernels import triton_packages
from tests.pallas_kernels.aot import absent_devices

pytestmark = pytest.mark.full

WIDTH, PERIODS = 128, 3
CONFIG = RunConfig(
    model=LanguageModelConfig(
        pattern=(
            TaylorLinearAttentionConfig(n_heads=4, feature_dim=16, head_dim=64),
            SlidingWindowAttentionConfig(n_heads=4, head_dim=64, window=64),
        ),
        n_layers=2 * PERIODS, d_model=WIDTH, vocab_size=512, max_length=256, dtype="bfloat16",
    ),
    data=TokenDataConfig(path="not/there", length=256),
    train=TrainConfig(steps=100, batch_size=16),
    mesh=MeshConfig(data=2, fsdp=4),
)  # fmt: skip
TOPOLOGIES = {"v5e:2x4": {"mosaic_tpu"}, "h100:8": {"mosaic_gpu"}}


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_plan(name, monkeypatch, tmp_path):
    """Kills: kernels that are lost on the way, layers of a loop that count once, and a peak without temporaries."""
    absent_devices(name.partition(":")[0], monkeypatch)
    plan = make_plan(CONFIG, find_topology(name), name="small")
    triton = {"triton"} if name == "h100:8" and triton_packages.missing() is None else set()
    assert set(plan.kernels) == TOPOLOGIES[name] | triton
    assert plan.open_loops == 0
    assert plan.memory.params == plan.n_params  # float32 over four
    assert plan.memory.temporaries > plan.logits
    assert plan.fits
    layers = plan.n_params - 512 * WIDTH
    gathered = sum(t.wire for t in plan.traffic if t.axes == ("fsdp",))
    assert gathered > 3 / 4 * 2 * layers  # bfloat16, all layers at least once
    assert sum(t.wire for t in plan.traffic if t.axes == ("data",)) >= 2 * layers / 4
    assert plan.memory_bytes > 2 * (plan.memory.params + plan.memory.optimizer) / 4
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan


def test_program_that_is_too_large(monkeypatch):
    """The words of the TPU's compiler. Kills a traceback where a plan does not fit."""
    absent_devices("v5e", monkeypatch)
    model = dataclasses.replace(CONFIG.model, n_layers=2, vocab_size=200_000)
    train = dataclasses.replace(CONFIG.train, batch_size=2048)
    plan = make_plan(dataclasses.replace(CONFIG, model=model, train=train), find_topology("v5e:2x4"), name="large")
    assert not plan.fits
    assert plan.refusal
    assert plan.memory.peak > plan.logits > plan.memory.capacity


def test_slice_that_does_not_exist(monkeypatch, capsys, tmp_path):
    absent_devices("v5e", monkeypatch)
    (tmp_path / "config.py").write_text("from tests.test_topology_plan import CONFIG as config\n")
    assert main(["--config", str(tmp_path / "config.py"), "--topology", "v5e:3x5"]) == 2
    assert "topology 'v5e:3x5' does not exist" in capsys.readouterr().err
    command = ["--config", str(tmp_path / "config.py"), "--topology", "v5e:2x4", "--mesh.fsdp", "3"]
    assert main(command) == 2
    assert "does not fit 8 devices" in capsys.readouterr().err
