"""CPU cost of an MQAR training step: `python benchmarks/mqar_cpu.py [--peer PYTHON]`.

Trains the released Zoology figure models (2 layers, d 64, vocabulary 8192, batch 64) for a few steps each on one
thread, data included, and writes a table and `benchmarks/results/mqar_cpu.json`. Numbers are medians over blocks of
steps of the process's CPU time, which a busy machine disturbs less than wall time. `authors` are times of the authors'
PyTorch code (HazyResearch/zoology d88d6f5), one thread, without data; its head runs at all positions.

With `--peer`, a Python with torch (CPU) and numpy, blocks of ours alternate with two PyTorch forms of the same models
(`benchmarks/mqar_cpu_torch.py`), with the head at labelled positions only and data made beforehand: `authors` computes
scores as their code does; `lean` uses the best of PyTorch and our settings of the C allocator. They start from our
parameters and batches; three updates without dropout must give our losses before anything is timed.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["NPROC"] = "1"  # XLA's pool of threads: two of them cost a third more CPU time than one, for a shorter wall

import contextlib
import dataclasses
import datetime
import json
import statistics
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
import tyro
from flax import nnx

from benchmarks.peer_process import PeerProcess
from jaxzoo.layers.implicit_filter import position_features
from jaxzoo.layers.variables import traits_of
from jaxzoo.models import presets
from jaxzoo.sweep.machine import commit, machine, versions
from jaxzoo.tasks import mqar
from jaxzoo.tasks.recall_data import Examples, RecallDataConfig
from jaxzoo.train.config import OptimizerConfig, RunConfig, TrainConfig
from jaxzoo.train.optimizer import decay_mask, make_schedule
from jaxzoo.train.session import Session
from jaxzoo.utils import host_memory

MODELS = {
    "attention": presets.mqar_attention,
    "base_conv": presets.mqar_base_conv,
    "based": presets.mqar_based,
}
PAIRS = {64: 4, 256: 16}
AUTHORS_CPU_MS = {
    ("attention", 64): (764, 78),
    ("base_conv", 64): (720, 49),
    ("based", 64): (690, 57),
    ("attention", 256): (4654, 491),
    ("base_conv", 256): (3250, 288),
    ("based", 256): (3393, 376),
}
"""CPU ms of the authors' code as released, and with the head at labelled positions only; one run each."""
FORMS = ("authors", "lean")
PEER = Path(__file__).with_name("mqar_cpu_torch.py")
CHECKED_UPDATES = 3
PEER_BATCHES = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchmarkConfig:
    """Length of the measurement, peer, and file of the result."""

    blocks: int = 9
    """Blocks of steps that are timed; the median counts."""
    block_steps: int = 5
    """Steps of a block."""
    peer: str = ""
    """A Python interpreter with torch and numpy: also times the same models in PyTorch. Empty: ours alone."""
    out: Path = Path("benchmarks/results/mqar_cpu.json")
    """File of the result."""


class Ours:
    """One of our models at one length; batch 64, the pairs of the released Figure 2."""

    def __init__(self, name: str, length: int, *, dropout: bool = True):
        examples = Examples(task=mqar.release(length, PAIRS[length]), n_examples=100_000)
        model = MODELS[name](length=length, variant="release")
        self.experiment = RunConfig(
            model=model if dropout else dataclasses.replace(model, embed_dropout=0.0),
            data=RecallDataConfig(train=(examples,), valid=(examples,)),
            optimizer=OptimizerConfig(warmup_fraction=0.0),
            train=TrainConfig(steps=1000, batch_size=64),
        )
        self.session = Session(self.experiment)
        with jax.set_mesh(self.session.mesh):
            self._state = self.session.init_state()
        self._stream = self.session.dataset.train()

    def losses(self, count: int) -> list[float]:
        with jax.set_mesh(self.session.mesh):
            return [float(self._update()["loss"]) for _ in range(count)]

    def cpu_ms(self, count: int) -> float:
        """Returns the CPU ms per update, data included, over `count` updates."""
        with jax.set_mesh(self.session.mesh):
            jax.block_until_ready(self._state)
            start = time.process_time()
            for _ in range(count):
                self._update()
            jax.block_until_ready(self._state)
        return 1e3 * (time.process_time() - start) / count

    def _update(self) -> dict:
        self._state, metrics = self.session.update(self._state, next(self._stream))
        return metrics

    def file(self) -> dict:
        """Returns the contents of a peer's file except `forms`: initial parameters layer by layer, batches,
        constants."""
        config, optimizer = self.experiment.model, self.experiment.optimizer
        model = self.session.blueprint.model(self.session.init_state().variables).unstacked()
        params = nnx.state(model, nnx.Param)
        decays = decay_mask(nnx.to_pure_dict(params, traits_of), optimizer)
        stream = self.session.dataset.train()
        batches = [next(stream) for _ in range(PEER_BATCHES)]
        schedule = make_schedule(optimizer, self.experiment.train.steps)
        return {
            **{f"params/{name}": np.asarray(x) for name, x in _flat(nnx.to_pure_dict(params)).items()},
            "buffers/positions": position_features(config.max_length, 3),
            "decayed": np.array([name for name, decay in _flat(decays).items() if decay]),
            **{field: np.stack([getattr(b, field) for b in batches]) for field in ("tokens", "positions", "targets")},
            "rates": np.array([np.asarray(schedule(i), np.float64) for i in range(100)]),
            "dropout": config.embed_dropout,
            **optimizer.constants,
            "weight_decay": optimizer.weight_decay,
            "clip_norm": optimizer.clip_norm,
        }


def main(config: BenchmarkConfig) -> None:
    host_memory.keep_freed_memory()
    peers = FORMS if config.peer else ()
    columns = ["model", "N", "CPU ms per step", *(f"PyTorch, {forms}" for forms in peers), "authors", "compile s"]
    print("| " + " | ".join(columns) + " |\n" + "| --- " * len(columns) + "|")
    rows = []
    for length in PAIRS:
        for name in MODELS:
            row = _measure(name, length, config)
            rows.append(row)
            cells = [name, length, f"{row['cpu_ms']:.1f}"]
            cells += [f"{ms:.1f} ({ms / row['cpu_ms']:.2f}x)" for ms in row.get("peer_cpu_ms", {}).values()]
            theirs = row["authors_cpu_ms"]
            cells += [f"{theirs} ({theirs / row['cpu_ms']:.1f}x)", f"{row['compile_s']:.1f}"]
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    report = {**_environment(), "blocks": config.blocks, "block_steps": config.block_steps, "rows": rows}
    config.out.parent.mkdir(parents=True, exist_ok=True)
    config.out.write_text(json.dumps(report, indent=1) + "\n")


def _measure(name: str, length: int, config: BenchmarkConfig) -> dict:
    """Measures one model at one length; blocks of ours and the peers' alternate."""
    ours = Ours(name, length)
    released, gathered = AUTHORS_CPU_MS[name, length]
    row = {"model": name, "length": length, "n_pairs": PAIRS[length]}
    row |= {"authors_cpu_ms": released, "authors_gathered_cpu_ms": gathered}
    with contextlib.ExitStack() as stack:
        peers = {}
        if config.peer:
            path = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            file = ours.file()
            for forms in FORMS:
                np.savez(path / f"{forms}.npz", **file, forms=forms)
                words = [config.peer, str(PEER), str(path / f"{forms}.npz")]
                settings = host_memory.ENVIRONMENT if forms == "lean" else {}
                peers[forms] = stack.enter_context(PeerProcess(words, settings))
            expected = Ours(name, length, dropout=False).losses(CHECKED_UPDATES)
            for forms, peer in peers.items():
                np.testing.assert_allclose(
                    peer.ask(f"check {CHECKED_UPDATES}"),
                    expected,
                    rtol=1e-4,
                    err_msg=f"{forms} {name} {length}: losses",
                )
            row["peer_torch"] = peers[FORMS[0]].first_answer
        runs = {"ours": ours.cpu_ms} | {f: lambda n, peer=peer: peer.ask(f"time {n}")[0] for f, peer in peers.items()}
        for run in runs.values():
            run(10)  # until memory has found its size
        blocks = {key: [] for key in runs}
        for _ in range(config.blocks):
            for key, run in runs.items():
                blocks[key].append(run(config.block_steps))
    medians = {key: statistics.median(times) for key, times in blocks.items()}
    row |= {"cpu_ms": medians.pop("ours"), "compile_s": ours.session.train_step.seconds}
    return row | ({"peer_cpu_ms": medians} if peers else {})


def _flat(tree: dict) -> dict:
    """Returns the leaves of nested dicts by path, with `stacks` and `blocks` of an unstacked model renamed to
    `layers`."""
    leaves = {"/".join(str(key.key) for key in path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
    return {name.replace("stacks/", "layers/").replace("/blocks/0", ""): leaf for name, leaf in leaves.items()}


def _environment() -> dict:
    return {
        "device": f"{machine()}, 1 thread",
        "load": os.getloadavg()[1],
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": versions(),
        "commit": commit(),
    }


if __name__ == "__main__":
    main(tyro.cli(BenchmarkConfig))
