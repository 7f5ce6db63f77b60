"""Rows of the benchmark: one JSON file per mixer with a checksum, and the rules that a row must follow.

A row holds what was measured. Scores, solved runs and the best learning rate are computed from it.
"""

import dataclasses
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxzoo.bench.protocol import Protocol, find_protocol
from jaxzoo.config.checked import Fraction, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from jaxzoo.utils.checksums import add_checksum, read_checked
from jaxzoo.utils.whole_files import write_whole

REMEDY = "run the mixer again"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """Outcome of a training run; without losses and accuracies if it has diverged."""

    learning_rate: PositiveFloat
    seed: NonNegativeInt
    steps: PositiveInt
    """Steps to the last validation."""
    half_loss: NonNegativeFloat | None
    """Validation loss after half of the steps, or at an earlier end."""
    loss: NonNegativeFloat | None
    accuracy: dict[str, Fraction]
    """Accuracy by number of pairs, or by length."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """Runs of all seeds on a task at a size."""

    task: str
    size: PositiveInt
    """Size of the protocol, or the mixer's own."""
    state_bytes: PositiveInt
    """Measured size."""
    n_parameters: PositiveInt
    """Parameters of the model."""
    mixer: dict[str, Any]
    """Config of the mixer."""
    dropped: list[Run]
    """Runs of the learning rates that were dropped after half of the steps; capacity alone compares rates."""
    runs: list[Run]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MadeBy:
    """Facts about the computer and the code."""

    machine: str
    versions: dict[str, str]
    commit: str | None
    date: str
    source: str
    """SHA-256 of the mixer's module."""
    cpu_seconds: NonNegativeFloat
    """CPU time of the training."""
    tokens_per_second: PositiveFloat
    """Speed of a forward pass of the layer at the tuned size."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchRow:
    """Results of a mixer."""

    name: str
    protocol: str
    digest: str
    """SHA-256 of the protocol."""
    grows: bool
    """Whether the state grows with the text."""
    cells: list[Cell]
    made_by: MadeBy

    def of(self, task: str) -> list[Cell]:
        """Cells of a task, the smallest state first."""
        return sorted((cell for cell in self.cells if cell.task == task), key=lambda cell: cell.state_bytes)


def write_row(file: Path, row: BenchRow) -> None:
    """Writes a row with its checksum."""
    write_whole(file, json.dumps(add_checksum(dataclasses.asdict(row)), indent=1) + "\n")


def read_row(file: Path, protocol: Protocol | None = None) -> BenchRow:
    """Reads a row. Raises `ValueError` if it is damaged or does not follow its protocol (None: the one it names)."""
    row = read_checked(file, BenchRow, remedy=REMEDY)
    try:
        check_row(row, protocol or find_protocol(row.protocol))
    except ValueError as error:
        raise ValueError(f"{file}: {error}; {REMEDY}") from None
    return row


def read_rows(folder: Path, protocol: Protocol) -> list[BenchRow]:
    """Reads the rows of a folder that belong to a protocol, by name."""
    return [row for file in sorted(folder.glob("*.json")) if (row := read_row(file)).protocol == protocol.name]


def best_rate(runs: Sequence[Run]) -> float:
    """Returns the rate with the smallest mean loss after half of the steps; of equal ones the smaller rate."""
    losses: dict[float, list[float]] = {}
    for run in runs:
        losses.setdefault(run.learning_rate, []).append(math.inf if run.half_loss is None else run.half_loss)
    return min(losses, key=lambda rate: (statistics.mean(losses[rate]), rate))


def check_row(row: BenchRow, protocol: Protocol) -> None:
    """Checks a row against its protocol. Raises `ValueError` with field, value and rule."""
    _require(row.protocol == protocol.name, f"protocol={row.protocol!r} must be {protocol.name!r}")
    _require(row.digest == protocol.digest, f"digest={row.digest} must be {protocol.digest}: the protocol has changed")
    sizes = [cell.size for cell in row.cells if cell.task == "capacity"]
    is_own = len(sizes) == 1 and not any(protocol.fits(sizes[0], size) for size in protocol.sizes)
    known = [size for size in protocol.sizes if size in sizes]
    _require(bool(sizes) and (is_own or sizes == known), f"sizes={sizes} must be of {protocol.sizes}, or one other")
    cells = [(cell.task, cell.size) for cell in row.cells]
    _require(cells == protocol.cells(sizes), f"cells={cells} must be {protocol.cells(sizes)}")
    for cell in row.cells:
        rule = f"must be within {protocol.tolerance:.0%} of size={cell.size}"
        _require(protocol.fits(cell.state_bytes, cell.size), f"state_bytes={cell.state_bytes} {rule}")
        _require(bool(cell.mixer), "mixer={} must be a config")
    _check_rates(row, protocol)
    for cell in row.cells:
        for run in cell.dropped:
            _check_run(run, cell.task, protocol, protocol.half)
        for run in cell.runs:
            _check_run(run, cell.task, protocol, protocol.steps)


def _check_rates(row: BenchRow, protocol: Protocol) -> None:
    """Checks that capacity compares all rates at each size, and that all cells of a size have its best one with all
    seeds."""
    best: dict[int, float] = {}
    for cell in row.cells:
        compared = [*cell.dropped, *cell.runs[: protocol.rate_seeds]] if cell.task == "capacity" else cell.dropped
        found = sorted((run.learning_rate, run.seed) for run in compared)
        rates = protocol.rates if cell.task == "capacity" else ()
        wanted = [(rate, seed) for rate in rates for seed in protocol.seeds[: protocol.rate_seeds]]
        _require(found == wanted, f"{cell.task}: compared rates and seeds={found} must be {wanted}")
        if compared:
            best[cell.size] = best_rate(compared)
        found = [(run.learning_rate, run.seed) for run in cell.runs]
        wanted = [(best[cell.size], seed) for seed in protocol.seeds]
        _require(found == wanted, f"{cell.task}: rates and seeds={found} must be {wanted}")


def _check_run(run: Run, task: str, protocol: Protocol, last: int) -> None:
    """Checks that a run has gone on to the step `last`, has solved its task, or has diverged."""
    has_diverged = run.loss is None
    asked = () if has_diverged else protocol.asked(task)
    _require(sorted(run.accuracy) == sorted(map(str, asked)), f"accuracy={run.accuracy} must be of {asked}")
    for number, value in run.accuracy.items():
        answers = value * protocol.valid_examples * protocol.n_asked(int(number))
        _require(abs(answers - round(answers)) < 0.05, f"accuracy.{number}={value} must be a share of all answers")
    is_validated = run.steps == last or (run.steps < last and run.steps % protocol.eval_every == 0)
    _require(is_validated, f"steps={run.steps} must be {last}, or a smaller multiple of {protocol.eval_every}")
    has_ended = run.steps == last or has_diverged or protocol.is_solved(run.accuracy)
    _require(has_ended, f"{task}: steps={run.steps} must be {last}: the run was not solved")
    if run.steps <= protocol.half:
        _require(run.half_loss == run.loss, f"half_loss={run.half_loss} must be loss={run.loss}: the run has ended")
    _require(has_diverged or run.half_loss is not None, "half_loss=None must be a number")


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)
