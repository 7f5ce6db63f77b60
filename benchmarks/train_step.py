"""Kernels of a training step on this device: `python -m benchmarks.train_step`; see `--help`.

Based of 360M, the paper's recipe with 32 rows of 2,048 tokens in two parts, layers not scanned. Parameters are drawn on
the host and tokens are random: costs do not depend on them. The step compiles, and waits for its turn (`turns.py`).
"""

import collections
import dataclasses
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.turns import wait_for_turn
from jaxzoo.cli.runner import make_main
from jaxzoo.config.checked import Checked, PositiveInt


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(Checked):
    """Times a training step on the first device, and its kernels."""

    tiny: bool = False
    """A model of two layers, for a rehearsal."""
    rows: PositiveInt = 32
    """Rows of a batch."""
    accumulate: PositiveInt = 2
    """Parts of a batch, one after the other."""
    length: PositiveInt = 2048
    """Tokens of a row."""
    steps: PositiveInt = 5
    """Steps that are timed; two more are traced."""
    out: Path = Path("train_step.json")
    """File of the result."""


def _measure(command: Command) -> None:
    import jax

    from benchmarks import host_parameters
    from jaxzoo.data.base import Batch
    from jaxzoo.parallel.sharding import make_mesh
    from jaxzoo.train.session import Program

    config = _config(command)
    mesh = make_mesh(config.mesh, jax.devices()[:1])
    with jax.set_mesh(mesh):
        program = Program(config, mesh)
        shape = (command.rows, command.length)
        ids = jax.random.randint(jax.random.key(0), shape, 0, config.model.vocab_size)
        batch = jax.device_put(Batch(tokens=ids, targets=ids), program.row_sharding)
        step: Any = program.train_step.compile(program.abstract_state, batch)
        wait_for_turn()
        zeros = host_parameters.draw(program.abstract_state, std=0.0)
        variables = host_parameters.draw(program.abstract_state.variables)
        state = zeros._replace(params=variables.params, buffers=variables.buffers)
        state = jax.device_put(state, program.state_shardings)
        seconds = []
        for _ in range(1 + command.steps):
            start = time.perf_counter()
            state, metrics = step(state, batch)
            jax.block_until_ready((state, metrics))
            seconds.append(time.perf_counter() - start)
        with tempfile.TemporaryDirectory() as folder:
            with jax.profiler.trace(folder):
                for _ in range(2):
                    state, metrics = step(state, batch)
                jax.block_until_ready(state)
            kernels = traced_kernels(Path(folder), 2)
    median = statistics.median(seconds[1:])
    report = {
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "parameters": program.blueprint.n_params,
        "batch": f"{shape[0]} x {shape[1]} tokens in {command.accumulate} parts",
        "compile_s": round(program.train_step.seconds, 1),
        "step_ms": 1e3 * median,
        "tokens_per_s": ids.size / median,
        "temporary_bytes": step.memory_analysis().temp_size_in_bytes,
        "kernel_ms_per_step": sum(ms for ms, _ in kernels.values()),
        "launches_per_step": sum(launches for _, launches in kernels.values()),
        "kernels: ms per step, launches per step, name": [[*found, name] for name, found in kernels.items()][:100],
    }
    command.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))


def _config(command: Command) -> Any:
    from jaxzoo.models import presets
    from jaxzoo.train import recipes

    model = dataclasses.replace(presets.based_360m(), scan_layers=False)
    if command.tiny:
        model = dataclasses.replace(model, n_layers=2, d_model=64, vocab_size=256, max_length=command.length)
    config = recipes.based(model)
    train = dataclasses.replace(config.train, batch_size=command.rows, accumulate=command.accumulate)
    return dataclasses.replace(config, train=train)


def traced_kernels(folder: Path, steps: int) -> dict[str, tuple[float, float]]:
    """Milliseconds and launches per step by kernel, longest first, of the trace in a folder; {} on a CPU."""
    import jax

    times: collections.Counter[str] = collections.Counter()
    launches: collections.Counter[str] = collections.Counter()
    for file in folder.rglob("*.xplane.pb"):
        for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
            if plane.name.startswith("/device:"):
                for line in plane.lines:
                    if line.name.startswith(("Stream", "XLA Ops")):
                        for event in line.events:
                            times[event.name] += event.duration_ns
                            launches[event.name] += 1
    return {name: (round(1e-6 * ns / steps, 4), launches[name] / steps) for name, ns in times.most_common()}


main = make_main(Command, _measure, prog="python -m benchmarks.train_step")

if __name__ == "__main__":
    raise SystemExit(main())
