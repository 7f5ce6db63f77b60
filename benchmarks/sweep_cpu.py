"""One sweep compared with separate commands on a CPU: `python -m benchmarks.sweep_cpu`; see `--help`.

Sixteen runs of one small model on MQAR, 4 rates x 4 seeds (`sweep_cpu_runs.py`), run as sixteen commands
`jaxzoo train` (as many at once as the sweep has workers), and as one `jaxzoo sweep` with
`--parallel processes` or `vmap`. Each process has one thread. Each way runs twice: with an empty cache of compiled
programs, and with the cache of its first run. CPU seconds are of all processes, including their start. The validations
of the runs must equal those of the separate commands: with `processes` exactly; with `vmap`, whose rounding differs,
the first of each run up to `MOST_APART`.
"""

import dataclasses
import datetime
import functools
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

from jaxzoo.cli.flags import flags_of, parse_flags
from jaxzoo.cli.runner import Failure, run
from jaxzoo.config.checked import Checked, PositiveInt
from jaxzoo.utils.screen import Screen

PROGRAM = "python -m benchmarks.sweep_cpu"
RUNS = Path(__file__).with_name("sweep_cpu_runs.py")
SCORE = "valid/accuracy"
MOST_APART = 0.01
"""Largest accepted difference of the first accuracies of a run if rounding differs."""
DIGITS = 5
"""Digits of the accuracies in a learning curve (`jaxzoo.sweep.train.curve`)."""
WAYS = {
    "commands": "separate commands",
    "processes": "one sweep, `--parallel processes`",
    "vmap": "one sweep, `--parallel vmap`",
}

Accuracies = dict[tuple[Any, ...], list[float]]
"""Accuracies of all validations, by learning rate and seed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(Checked):
    """Times sixteen runs as separate commands and as one sweep."""

    scale: Literal["benchmark", "smoke"] = "benchmark"
    """16 runs of 500 steps, or 4 of 20 to see that all works."""
    workers: PositiveInt = 2
    """Processes at once, one thread each."""
    out: Path = Path("benchmarks/results/sweep_cpu.json")
    """File of the result."""


def main(argv: Sequence[str] | None = None) -> int:
    return run(_measure, argv)


def _measure(argv: Sequence[str]) -> None:
    command = parse_flags(Command, argv, prog=PROGRAM, known=flags_of(Command()))
    os.environ |= {"JAX_PLATFORMS": "cpu", "NPROC": "1"}

    from benchmarks.sweep_cpu_runs import STEPS
    from jaxzoo.sweep.machine import commit, machine, versions

    screen = Screen(sys.stdout)
    ways: dict[str, list[dict[str, float]]] = {}
    expected: Accuracies = {}
    apart: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        for way in WAYS:
            cache = Path(name, "cache", way)
            for start in range(2):
                folder = Path(name, "runs")
                make = _by_commands if way == "commands" else _by_sweep
                accuracies, cost = _timed(functools.partial(make, way, command, folder, cache))
                shutil.rmtree(folder)
                screen.say(f"{way}, start {start + 1}: {cost['seconds']:.0f} s, {cost['cpu_seconds']:.0f} CPU-s")
                expected = expected or accuracies
                apart[way] = _held_against(expected, accuracies, way)
                ways.setdefault(way, []).append(cost)
    report = {
        "benchmark": "sweep_cpu",
        "machine": machine(),
        "date": datetime.date.today().isoformat(),
        "versions": versions(),
        "commit": commit(),
        "command": " ".join([PROGRAM, *argv]),
        "load": os.getloadavg()[2],
        "workers": command.workers,
        "steps": STEPS[command.scale],
        "runs": len(expected),
        "ways": {way: dict(zip(("empty_cache", "warm_cache"), costs, strict=True)) for way, costs in ways.items()},
        "accuracies": [[*point, accuracies[-1]] for point, accuracies in expected.items()],
        "largest_difference_at_the_end": apart,
    }
    command.out.parent.mkdir(parents=True, exist_ok=True)
    command.out.write_text(json.dumps(report, indent=1) + "\n")
    screen.say(table(report))


def table(report: Mapping[str, Any]) -> str:
    """Returns the times as a Markdown table, with their ratio to those of the separate commands."""
    lines = [
        f"| {report['runs']} runs of {report['steps']} steps | seconds | CPU-s | seconds, programs cached | CPU-s |",
        "| --- | --- | --- | --- | --- |",
    ]
    base = report["ways"]["commands"]
    for way, costs in report["ways"].items():
        cells = []
        for start in ("empty_cache", "warm_cache"):
            for unit in ("seconds", "cpu_seconds"):
                less = f" ({base[start][unit] / costs[start][unit]:.1f}x)" if way != "commands" else ""
                cells.append(f"{costs[start][unit]:.0f}{less}")
        lines.append(f"| {WAYS[way]} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _timed(make: Callable[[], Accuracies]) -> tuple[Accuracies, dict[str, float]]:
    """Makes the runs; returns accuracies, seconds, and CPU seconds of all processes."""
    clock, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    made = make()
    seconds, after = time.perf_counter() - clock, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return made, {"seconds": round(seconds, 2), "cpu_seconds": round(cpu_seconds, 2)}


def _by_commands(_: str, command: Command, folder: Path, cache: Path) -> Accuracies:
    from benchmarks.sweep_cpu_runs import POINTS, flags

    points = POINTS[command.scale]

    def train(i: int) -> list[float]:
        place = folder / str(i)
        _call(["jaxzoo.train", "--config", str(RUNS), "--run-dir", str(place), *flags(command.scale, points[i])], cache)
        return [round(row[SCORE], DIGITS) for row in _rows(place / "metrics.jsonl") if SCORE in row]

    with ThreadPoolExecutor(command.workers) as pool:
        accuracies = list(pool.map(train, range(len(points))))
    return {tuple(point.values()): accuracy for point, accuracy in zip(points, accuracies, strict=True)}


def _by_sweep(parallel: str, command: Command, folder: Path, cache: Path) -> Accuracies:
    options = ["--scale", command.scale, "--parallel", parallel, "--workers", str(command.workers)]
    _call(["jaxzoo.sweep", "--experiment", str(RUNS), "--out", str(folder), *options], cache)
    rows = _rows(folder / "results.jsonl")
    return {tuple(row["point"].values()): [score for _, score in row["curve"]["valid"]] for row in rows}


def _call(words: Sequence[str], cache: Path) -> None:
    """Runs a module with its own cache of compiled programs, kept as long as a user's."""
    env = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-m", *words], env=env | {"XDG_CACHE_HOME": str(cache)}, capture_output=True, text=True
    )
    if done.returncode:
        line = ([*done.stdout.splitlines(), *done.stderr.splitlines()] or ["no word"])[-1]
        raise Failure(f"{' '.join(words)} ended with status {done.returncode}: {line}")


def _rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def _held_against(expected: Accuracies, accuracies: Accuracies, way: str) -> float:
    """Returns the largest difference of the last accuracies of a run. Raises `Failure` if a run is missing or
    differs."""
    if expected.keys() != accuracies.keys():
        raise Failure(f"{way} made {len(accuracies)} runs, not the {len(expected)} of the separate commands")
    for point, wanted in expected.items():
        found = accuracies[point]
        equal = abs(found[0] - wanted[0]) <= MOST_APART if way == "vmap" else found == wanted
        if not equal:
            raise Failure(f"{way}: accuracies at {point} are {found}, but {wanted} by themselves")
    return max(abs(accuracies[point][-1] - expected[point][-1]) for point in expected)


if __name__ == "__main__":
    raise SystemExit(main())
