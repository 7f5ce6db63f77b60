"""Kernels of a training step on this device: `python -m benchmarks.train_step`; see `--help`.

Based of 360M, the paper's recipe with 32 rows of 2,048 tokens in two parts, layers not scanned. Parameters are drawn on
the host and tokens are random: costs do not depend on them. The step compiles, and waits for its turn (`turns.py`).
"""

import argparse
import collections
import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from benchmarks import host_parameters
from benchmarks.turns import wait_for_turn
from jaxzoo.data.base import Batch
from jaxzoo.models import presets
from jaxzoo.parallel.sharding import make_mesh
from jaxzoo.train import recipes
from jaxzoo.train.session import Program
from pallas_kernels.benchmark import timing

KEPT_KERNELS = 100
"""Number of kernels in the result, longest first."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.train_step", description=__doc__)
    add = parser.add_argument
    add("--tiny", action="store_true", help="a model of two layers, for a rehearsal")
    add("--rows", type=int, default=32, help="rows of a batch; default: 32")
    add("--length", type=int, default=2048, help="tokens of a row; default: 2048")
    add("--seconds", type=float, default=3.0, help="time of the timed steps, three at least; default: 3")
    add("--out", type=Path, default=Path("train_step.json"), metavar="FILE", help="result")
    options = parser.parse_args(argv)
    model = dataclasses.replace(presets.based_360m(), scan_layers=False)
    if options.tiny:
        model = dataclasses.replace(model, n_layers=2, d_model=64, vocab_size=256, max_length=options.length)
    config = recipes.based(model)
    train = dataclasses.replace(config.train, batch_size=options.rows, accumulate=2)
    mesh = make_mesh(config.mesh, jax.devices()[:1])
    with jax.set_mesh(mesh):
        report = measure(Program(dataclasses.replace(config, train=train), mesh), options.length, options.seconds)
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report)[:2000])
    return 0


def measure(program: Program, length: int, seconds: float) -> dict[str, Any]:
    shape = (program.config.train.batch_size, length)
    ids = jax.random.randint(jax.random.key(0), shape, 0, program.config.model.vocab_size)
    batch = jax.device_put(Batch(tokens=ids, targets=ids), program.row_sharding)
    step: Any = program.train_step.compile(program.abstract_state, batch)
    wait_for_turn()
    zeros = host_parameters.draw(program.abstract_state, std=0.0)
    variables = host_parameters.draw(program.abstract_state.variables)
    first = zeros._replace(params=variables.params, buffers=variables.buffers)
    states = [jax.device_put(first, program.state_shardings)]

    def run(n: int) -> float:
        start = time.perf_counter()
        for _ in range(n):
            states.append(step(states.pop(), batch)[0])
        jax.block_until_ready(states)
        return time.perf_counter() - start

    run(1)
    step_s = timing.measure(run, seconds=seconds, repeats=10).median
    times: collections.Counter[str] = collections.Counter()
    launches: collections.Counter[str] = collections.Counter()
    for name, ns in timing.launches(run):
        times[name] += ns
        launches[name] += 1
    n, ms = timing.TRACED, 1e-6 / timing.TRACED
    return {
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "batch": f"{shape[0]} x {shape[1]} tokens in {program.config.train.accumulate} parts",
        "parameters": program.blueprint.n_params,
        "compile_s": round(program.train_step.seconds, 1),
        "step_ms": 1e3 * step_s,
        "tokens_per_s": ids.size / step_s,
        "temporary_bytes": step.memory_analysis().temp_size_in_bytes,
        "kernel_ms_per_step": ms * sum(times.values()),
        "launches_per_step": sum(launches.values()) / n,
        "kernels: ms per step, launches per step, name": [
            [round(ms * ns, 4), round(launches[name] / n, 2), name] for name, ns in times.most_common(KEPT_KERNELS)
        ],
    }


if __name__ == "__main__":
    raise SystemExit(main())
