"""CPU cost of an MQAR training step: `python benchmarks/mqar_cpu.py`.

Trains the released Zoology figure models (2 layers, d 64, vocabulary 8192, batch 64) for a few steps each on one
thread, making the data included, and writes a table and `benchmarks/results/mqar_cpu.json`. CPU-ms is the process's
own time over all its threads, which a busy machine disturbs less than wall time. The columns beside it are the
authors' PyTorch code (HazyResearch/zoology d88d6f5) on such a machine, one thread, data not counted.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import dataclasses
import datetime
import json
import platform
import subprocess
import time
from pathlib import Path

import jax
import tyro

from jaxzoo.config import ExperimentConfig, TrainConfig
from jaxzoo.models import presets
from jaxzoo.tasks import mqar
from jaxzoo.tasks.recall_data import Examples, RecallDataConfig
from jaxzoo.train.session import Session

MODELS = {
    "attention": presets.mqar_attention,
    "base_conv": presets.mqar_base_conv,
    "based": presets.mqar_based,
}
PAIRS = {64: 4, 256: 16}
AUTHORS_CPU_MS = {
    ("attention", 64): 520,
    ("base_conv", 64): 690,
    ("based", 64): 560,
    ("attention", 256): 3300,
    ("base_conv", 256): 2200,
    ("based", 256): 3700,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchmarkConfig:
    """How long to measure, and where the result goes."""

    steps: int = 30
    """Steps that are timed, after three that are not."""
    out: Path = Path("benchmarks/results/mqar_cpu.json")
    """File of the result."""


def main(config: BenchmarkConfig) -> None:
    """Measures every model at both lengths, prints the table and writes the file."""
    print("| model | N | CPU-ms a step | steps/s | compile s | authors' CPU-ms | ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    rows = []
    for length in PAIRS:
        for name in MODELS:
            row = _measure(name, length, config.steps)
            rows.append(row)
            theirs = row["authors_cpu_ms"]
            print(
                f"| {name} | {length} | {row['cpu_ms']:.0f} | {row['steps_per_s']:.1f} | {row['compile_s']:.1f} "
                f"| {theirs} | {theirs / row['cpu_ms']:.1f} |",
                flush=True,
            )
    config.out.parent.mkdir(parents=True, exist_ok=True)
    config.out.write_text(json.dumps({**_environment(), "steps": config.steps, "rows": rows}, indent=1) + "\n")


def _measure(name: str, length: int, steps: int) -> dict:
    """One model at one length; batch 64, the pairs of the released Figure 2."""
    examples = Examples(task=mqar.release(length, PAIRS[length]), n_examples=100_000)
    experiment = ExperimentConfig(
        model=MODELS[name](length=length, variant="release"),
        data=RecallDataConfig(train=(examples,), valid=(examples,)),
        train=TrainConfig(steps=steps, batch_size=64),
    )
    session = Session(experiment)
    with jax.set_mesh(session.mesh):
        state, stream = session.init_state(), session.dataset.train()
        for _ in range(3):
            state, _ = session.update(state, next(stream))
        jax.block_until_ready(state)
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(steps):
            state, _ = session.update(state, next(stream))
        jax.block_until_ready(state)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return {
        "model": name,
        "length": length,
        "n_pairs": PAIRS[length],
        "cpu_ms": 1e3 * cpu / steps,
        "steps_per_s": steps / wall,
        "compile_s": session.train_step.seconds,
        "authors_cpu_ms": AUTHORS_CPU_MS[name, length],
    }


def _environment() -> dict:
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return {
        "device": f"{platform.machine()} CPU, 1 thread of {os.cpu_count()} cores",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": {"jax": jax.__version__, "python": platform.python_version()},
        "commit": commit.stdout.strip(),
    }


if __name__ == "__main__":
    main(tyro.cli(BenchmarkConfig))
