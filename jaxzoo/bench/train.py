"""Training of a benchmark row. Every finished part is kept in a file, so that a stopped row continues after it."""

import dataclasses
import datetime
import functools
import inspect
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
from flax import nnx

from jaxzoo.bench.protocol import Protocol
from jaxzoo.bench.rows import BenchRow, Cell, MadeBy, Run, best_rate
from jaxzoo.bench.sizes import check_state, sized_mixers
from jaxzoo.config.config_io import to_json
from jaxzoo.evals.validation import Validation
from jaxzoo.mixers import Context, MixerConfig
from jaxzoo.sweep.lockstep import SequentialRuns
from jaxzoo.sweep.machine import commit, machine, versions
from jaxzoo.testing.mixer_inputs import build
from jaxzoo.train.session import Session
from jaxzoo.utils.checksums import add_checksum, file_sha256, json_sha256, read_checked
from jaxzoo.utils.whole_files import write_whole


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """Contents of the file of a part: runs of one cell."""

    runs: list[Run]
    cpu_seconds: float


def train_row(name: str, config: MixerConfig, protocol: Protocol, out: Path, say: Callable[[str], None]) -> BenchRow:
    """Checks the state of a mixer at all its sizes and trains all runs; returns its row.

    Args:
      name: name of the row.
      config: the mixer.
      protocol: sizes.
      out: folder; runs that an earlier call has finished are read from it.
      say: prints a line.

    Raises:
      ValueError: the mixer does not stream, or remembers by something else than its state.
    """
    mixers = sized_mixers(config, protocol)
    say(f"state: {', '.join(f'{mixer.state_bytes:,}' for mixer in mixers.values())} bytes")
    for mixer in mixers.values():
        check_state(mixer.config, protocol.model)
    source = file_sha256(Path(inspect.getfile(type(config))))
    trainer = functools.cache(lambda size: Trainer(mixers[size].config, protocol, say))
    parts: list[Part] = []

    def runs(task: str, size: int, rates: Sequence[float], seeds: Sequence[int]) -> list[Run]:
        key = [protocol.digest, source, to_json(mixers[size].config), task, rates, seeds]
        file = out / "runs" / f"{json_sha256(key)[:16]}.json"
        if not file.exists():
            say(f"{task}, {size:,} bytes: {len(rates) * len(seeds)} runs")
            begun = time.process_time()
            found = trainer(size).runs(task, rates, seeds)
            part = Part(runs=found, cpu_seconds=round(time.process_time() - begun, 1))
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, json.dumps(add_checksum(dataclasses.asdict(part))) + "\n")
        parts.append(read_checked(file, Part, remedy="remove it: the runs are trained again"))
        return parts[-1].runs

    best: dict[int, float] = {}
    cells: list[Cell] = []
    for task, size in protocol.cells(list(mixers)):
        compared: list[Run] = []
        if task == "capacity":
            compared = runs(task, size, protocol.rates, protocol.seeds[: protocol.rate_seeds])
            best[size] = best_rate(compared)
        found = [run for run in compared if run.learning_rate == best[size]]
        dropped = [run for run in compared if run.learning_rate != best[size]]
        if others := protocol.seeds[len(found) :]:
            found += runs(task, size, (best[size],), others)
        mixer = mixers[size]
        facts = {"state_bytes": mixer.state_bytes, "n_parameters": trainer(size).n_parameters}
        cells.append(Cell(task=task, size=size, mixer=to_json(mixer.config), dropped=dropped, runs=found, **facts))
    return BenchRow(
        name=name,
        protocol=protocol.name,
        digest=protocol.digest,
        grows=config.capabilities.growing_state,
        cells=cells,
        made_by=MadeBy(
            machine=machine(),
            versions=versions(),
            commit=commit(),
            date=datetime.date.today().isoformat(),
            source=source,
            cpu_seconds=sum(part.cpu_seconds for part in parts),
            tokens_per_second=round(layer_speed(mixers[protocol.tuned(list(mixers))].config, protocol)),
        ),
    )


class Trainer:
    """Trains models with a mixer. All runs share the compiled programs; the learning rate is an argument of them."""

    def __init__(self, mixer: MixerConfig, protocol: Protocol, say: Callable[[str], None]):
        self._protocol, self._say = protocol, say
        self._session = Session(protocol.run(mixer, "capacity"), devices=jax.devices()[:1])
        self._validation = Validation(self._session)
        self._models = SequentialRuns(self._session, (), ())
        self.n_parameters: int = self._session.blueprint.n_params

    def runs(self, task: str, rates: Sequence[float], seeds: Sequence[int]) -> list[Run]:
        """Trains a model per rate and seed on the same batches; after half of the steps only the best rate goes on."""
        protocol, session, models = self._protocol, self._session, self._models
        session.dataset = protocol.data(task).build(
            batch_size=protocol.batch_size, valid_batch_size=protocol.batch_size
        )
        blank = Run(learning_rate=1.0, seed=0, steps=1, half_loss=None, loss=None, accuracy={})
        runs = [dataclasses.replace(blank, learning_rate=rate, seed=seed) for rate in rates for seed in seeds]
        with jax.set_mesh(session.mesh):
            models.replace([session.init_state(run.seed) for run in runs], [run.learning_rate for run in runs])
            stream = session.stream()
            active = list(range(len(runs)))
            for step in range(1, protocol.steps + 1):
                models.update([next(stream)], active)
                if step % protocol.eval_every:
                    continue
                for i in active:
                    metrics = self._validation.evaluate(models.state(i).variables)
                    runs[i] = _validated(runs[i], step, metrics, task, protocol)
                scores = [protocol.score(task, runs[i].accuracy) for i in active]
                self._say(f"  step {step:,} of {protocol.steps:,}: {len(active)} runs, best score {max(scores):.2f}")
                if step == protocol.half:
                    best = best_rate(runs)
                    active = [i for i in active if runs[i].learning_rate == best]
                active = [i for i in active if runs[i].loss is not None and not protocol.is_solved(runs[i].accuracy)]
                if not active:
                    break
        return runs


def _validated(run: Run, step: int, metrics: dict[str, float], task: str, protocol: Protocol) -> Run:
    """Returns a run with its newest validation."""
    loss = metrics["valid/loss"] if math.isfinite(metrics["valid/loss"]) else None
    kind = "length" if task == "track" else "pairs"
    asked = () if loss is None else protocol.asked(task)
    accuracy = {str(n): metrics[f"valid/accuracy/{kind}={n}"] for n in asked}
    half_loss = loss if step <= protocol.half else run.half_loss
    return dataclasses.replace(run, steps=step, half_loss=half_loss, loss=loss, accuracy=accuracy)


def layer_speed(config: MixerConfig, protocol: Protocol, batch_size: int = 8, repeats: int = 5) -> float:
    """Measures tokens/s of one forward pass of the layer on this device (median)."""
    graph, variables = nnx.split(build(config.inherit(protocol.model)))
    x = jax.random.normal(jax.random.key(0), (batch_size, protocol.length, protocol.d_model))
    context = Context(tokens=jnp.zeros(x.shape[:2], jnp.int32))
    run = jax.jit(lambda variables, x: nnx.merge(graph, variables)(x, context))
    run(variables, x).block_until_ready()
    seconds = []
    for _ in range(repeats):
        begun = time.perf_counter()
        run(variables, x).block_until_ready()
        seconds.append(time.perf_counter() - begun)
    return batch_size * protocol.length / statistics.median(seconds)
