"""Plans for absent accelerators, on CPU devices. Kills: sizes of the whole model in place of a device's."""

import dataclasses
from pathlib import Path
from typing import get_args

import jax
import pytest

from jaxzoo.cli.config_file import load_config
from jaxzoo.data.token_data import TokenDataConfig
from jaxzoo.mixers import AttentionConfig
from jaxzoo.models import LanguageModelConfig
from jaxzoo.plan import cudnn, search as searching
from jaxzoo.plan.collectives import Traffic
from jaxzoo.plan.compile import RejectedError, expected_seconds, make_plan
from jaxzoo.plan.plan import Memory, Plan, Work, find
from jaxzoo.plan.plan_report import describe
from jaxzoo.plan.search import candidates, search
from jaxzoo.plan.topology import Topology, find_topology
from jaxzoo.train.config import MeshConfig, RunConfig, TrainConfig
from jaxzoo.train.session import Program
from jaxzoo.utils.devices import DEVICES, find_device
from pallas_kernels.compile_check.targets import TARGETS
from pallas_kernels.sliding_window.api import BACKENDS
from pallas_kernels.sliding_window.problem import Problem
from tests.pallas_kernels.aot import absent_devices

DATA = TokenDataConfig(path="not/there", length=64)
CONFIG = RunConfig(
    model=LanguageModelConfig(pattern=(AttentionConfig(n_heads=4),), d_model=64, n_layers=1, vocab_size=500),
    data=DATA,
    train=TrainConfig(steps=1000, batch_size=16),
    mesh=MeshConfig(data=2, fsdp=4),
)
GIB = 2**30
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def topology():
    return Topology("v5e:2x4", find("v5e"), "cpu", tuple(jax.devices()[:8]))


@pytest.fixture(scope="module")
def plan(topology):
    return make_plan(CONFIG, topology, name="small")


@pytest.mark.full
def test_sizes_by_hand(plan):
    """Kills: sizes of the whole model in place of a device's, and optimizer state that is left out."""
    assert plan.n_params == 504 * 64 + 4 * 64 * 64 + 3 * 64 * 256 + 3 * 2 * 64
    assert plan.memory.params == 4 * plan.n_params // 4  # float32, shared out by fsdp
    assert plan.memory.optimizer == pytest.approx(2 * plan.memory.params, abs=64)
    assert plan.memory.batch == 2 * 4 * 2 * 64  # tokens and targets, int32, two rows of 64
    assert plan.logits == 2 * 64 * 504 * 4
    assert plan.memory.temporaries > plan.logits
    assert plan.fits


@pytest.mark.full
def test_gradients_cross_the_mesh(plan):
    """Kills: collectives of the wrong axes: data parallel devices sum gradients, fsdp gathers parameters."""
    sent = {}
    for traffic in plan.traffic:
        sent[traffic.axes] = sent.get(traffic.axes, 0) + traffic.wire
    assert sent[("data",)] >= 2 * 1 / 2 * 4 * 0.9 * plan.n_params / 4
    assert sent[("fsdp",)] >= 3 / 4 * 4 * 0.9 * plan.n_params


@pytest.mark.full
def test_accumulation_counts_every_part(plan, topology):
    """Kills: the loop over parts that counts once: gradients are reduced for each of them."""
    train = dataclasses.replace(CONFIG.train, accumulate=2)
    parts = make_plan(dataclasses.replace(CONFIG, train=train), topology, name="small")
    assert parts.logits == plan.logits // 2

    def reduced(plan):
        return sum(t.operands for t in plan.traffic if (t.kind, t.axes) == ("all-reduce", ("fsdp",)))

    assert reduced(parts) == pytest.approx(2 * reduced(plan), rel=0.01)


@pytest.mark.full
def test_saved_and_loaded(plan, tmp_path):
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan


def example(**changes):
    """8 v5e: a step of 197e12 * 8 FLOPs takes a second, one of 819e9 bytes too, and one of 200e9 bytes sent."""
    memory = Memory(params=GIB, optimizer=2 * GIB, batch=0, peak=8 * GIB, capacity=16 * GIB)
    fields = {
        "name": "run", "topology": "v5e:2x4", "device": "v5e", "mesh": {"data": 2, "fsdp": 4, "tensor": 1},
        "remat": "nothing", "dtype": "bfloat16", "batch_size": 64, "length": 2048, "accumulate": 1, "loss_chunk": 0,
        "logits": 10, "steps": 3600, "n_params": 10, "memory": memory, "work": Work(8 * 197e12, 8 * 197e12),
        "memory_bytes": int(819e9), "open_loops": 0, "kernels": {"mosaic_tpu": 3}, "compile_seconds": 2.0,
        "traffic": (Traffic(kind="all-gather", axes=("fsdp",), count=2, operands=1, wire=600e9),),
    }  # fmt: skip
    return Plan(**(fields | changes))


def test_times_by_hand():
    """Kills: times of all devices in place of one's, recomputation that counts as the model's, and hours of a step."""
    plan = example()
    assert (plan.times.compute, plan.times.memory, plan.times.network) == pytest.approx((2, 1, 3))
    assert (plan.times.bound, plan.times.in_turn) == pytest.approx((3, 6))
    assert plan.times.bottleneck == "network"
    assert plan.mfu == pytest.approx(1 / 3)
    assert plan.hours == pytest.approx(3)
    text = describe(plan)
    assert "43,691 tokens/s, MFU 33% at most" in text
    assert "3 hours, 24 device-hours" in text


def test_cudnn_is_told():
    """Kills: a plan that reports a stand-in for cuDNN as a Pallas kernel, or does not name it."""
    text = describe(example(device="h100", kernels={"mosaic_gpu": 2, cudnn.NAME: 3}))
    assert "Pallas kernels in the program: 2 x mosaic_gpu\n" in text
    assert "attention by cuDNN, which compiles only on a GPU: 3 calls, planned by what they read and write" in text
    assert "cuDNN" not in describe(example(device="h100", kernels={"mosaic_gpu": 2}))


@pytest.mark.full
def test_attention_on_an_absent_gpu_moves_what_cudnn_would(monkeypatch):
    """Kills: XLA's attention, whose scores are t times as large, in a plan for a GPU, where no GPU would run it; a call
    that reads or writes too little; and a stand-in that outlives the plan, or serves what cuDNN does not."""
    absent_devices("h100", monkeypatch)
    model = dataclasses.replace(CONFIG.model, pattern=(AttentionConfig(n_heads=2),), d_model=128)
    model = dataclasses.replace(model, max_length=2048, dtype="bfloat16")
    data = dataclasses.replace(DATA, length=2048)
    config = dataclasses.replace(CONFIG, model=model, data=data, mesh=MeshConfig(data=2))
    before = BACKENDS["cudnn"]
    plan = make_plan(config, find_topology("h100:2"), name="attention")
    assert BACKENDS["cudnn"] is before
    assert plan.kernels == {cudnn.NAME: 2}
    moved = {source.file: source.total for source in plan.sources}["pallas_kernels/sliding_window/api.py"]
    array, lse = 8 * 2048 * 128 * 2, 8 * 2048 * 2 * 4
    assert moved == pytest.approx(4 * array + lse + 8 * array + lse, rel=0.05)  # q k v y, lse; those, dy, dq dk dv
    wide = Problem(b=1, t=256, h=1, k=160, v=160, window=256)
    assert cudnn._objection(wide, None) == "head_dim 160 is not a multiple of 8 up to 128"


def _failing_step(init, error):
    """`Program.__init__` with a train step whose lowering raises an error."""

    class Failing:
        def lower(self, *_):
            raise error

    def failing(self, *arguments):
        init(self, *arguments)
        self.train_step = Failing()

    return failing


def test_program_that_is_too_large(topology, monkeypatch):
    """A TPU's compiler refuses what does not fit. Kills a traceback in place of a verdict."""
    said = (
        "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO "
        "temporaries (21.50G) exceeds available HBM (15.75G). HLO module: jit_train_step."
    )
    monkeypatch.setattr(Program, "__init__", _failing_step(Program.__init__, jax.errors.JaxRuntimeError(said)))
    plan = make_plan(CONFIG, topology, name="large")
    assert not plan.fits
    assert plan.memory.temporaries == int(21.5 * GIB)
    text = describe(plan)
    assert "DOES NOT FIT: 23.1 GB of 16.9 GB, 6.17 GB too many" in text
    assert "temporaries (21.50G) exceeds available HBM (15.75G)" in text


def test_candidates(topology):
    """Kills: meshes that do not share out the batch or use all devices, and policies that are left out."""
    found = list(candidates(CONFIG, topology))
    sizes = {(each.config.mesh.data, each.config.mesh.fsdp, each.config.mesh.tensor) for each in found}
    assert {a * b * c for a, b, c in sizes} == {8}
    assert (8, 1, 1) in sizes
    assert (1, 2, 4) in sizes
    policies = get_args(LanguageModelConfig.__dataclass_fields__["remat"].type)
    assert {each.config.model.remat for each in found} == set(policies)
    assert [each.seconds for each in found] == sorted(each.seconds for each in found)
    odd = dataclasses.replace(CONFIG, train=TrainConfig(batch_size=2))
    assert {each.config.mesh.tensor for each in candidates(odd, topology)} == {4, 8}
    model = dataclasses.replace(CONFIG.model, scan_layers=False)  # which remat "everything" does not allow
    unrolled = candidates(dataclasses.replace(CONFIG, model=model), topology)
    assert {(x.config.model.remat == "everything", x.config.model.scan_layers) for x in unrolled} == {
        (True, True),
        (False, False),
    }


def test_search(topology, monkeypatch):
    """Kills: a ranking that prefers what does not fit or is slow, more compilations than allowed, and an end of all
    where the compiler refuses one."""
    large = dataclasses.replace(example().memory, peak=20 * GIB)
    results = [example(memory=large, traffic=()), RejectedError("no"), example(), example(memory_bytes=1, traffic=())]

    def made(*_, **__):
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(searching, "make_plan", made)
    said = []
    plan = search(CONFIG, topology, name="small", most=4, say=said.append)
    assert results == []
    assert plan.times.bound == pytest.approx(2)
    assert [line.partition(": ")[2] for line in said[-3:]] == [
        "2 s, peak 8.59 GB", "3 s, peak 8.59 GB", "does not fit, peak 21.5 GB",
    ]  # fmt: skip
    assert "rejected: no" in said


def test_devices_agree_with_the_kernels_targets():
    """Kills: two tables that drift apart."""
    for name, target in TARGETS.items():
        device = find(name)
        assert (device.peak_flops, device.memory_bandwidth) == (target.peak_flops, target.bandwidth)
    assert find_device("TPU v5 lite") is find("v5e")
    assert find_device("abacus") is None
    assert len({kind for device in DEVICES for kind in device.kinds}) == sum(len(d.kinds) for d in DEVICES)


@pytest.mark.full
def test_a_kept_plan_is_that_of_today(monkeypatch):
    """Kills: a step that moves more bytes between kernels than docs/scale.md says, or another way to count them."""
    absent_devices("h100", monkeypatch)
    kept = Plan.load(ROOT / "benchmarks/results/plans/transformer-360m-h100.json")
    config = load_config(ROOT / "configs/lm/based.py", name="transformer_pp_360m_30b")
    train = dataclasses.replace(config.train, pallas_kernels="all", loss_chunk=kept.loss_chunk)
    model = dataclasses.replace(config.model, remat=kept.remat)
    config = dataclasses.replace(config, model=model, train=train, mesh=MeshConfig(**kept.mesh))
    plan = make_plan(config, find_topology(kept.topology), name=kept.name)
    assert plan.memory_bytes == pytest.approx(kept.memory_bytes, rel=0.03)
    assert plan.memory.peak == pytest.approx(kept.memory.peak, rel=0.05)
    assert plan.kernels == kept.kernels


def test_the_estimate_of_the_compilation_is_that_of_kept_plans():
    """Kills: an estimate for another number of parameters, or of the other platform."""
    plans = [Plan.load(file) for file in sorted((ROOT / "benchmarks/results/plans").glob("*.json"))]
    assert len(plans) > 4
    for plan in plans:
        expected = expected_seconds("cuda" if plan.device == "h100" else "tpu", plan.n_params, plan.remat)
        assert 0.5 < expected / plan.compile_seconds < 2, plan.name
