"""A sweep: an experiment at a scale, in a directory."""

import dataclasses
import functools
import math
from typing import Any

from jaxzoo.config.json_files import read_json_lines
from jaxzoo.sweep.directory import About, SweepDirectory, checked_result
from jaxzoo.sweep.experiment import Experiment, Point, Scale, coordinates
from jaxzoo.sweep.results import BITS, RATE, SCORE, SEED, Row, place_of
from jaxzoo.sweep.run_spec import RunSpec
from jaxzoo.train.config import RunConfig
from jaxzoo.utils.whole_files import write_rows

N_RATES, N_SEEDS = 4, 3
"""Fewest learning rates and seeds per model on which a verdict may rest."""


@dataclasses.dataclass(frozen=True)
class Sweep:
    """An experiment at a scale, with the directory of its results."""

    experiment: Experiment
    scale: Scale
    directory: SweepDirectory

    @functools.cached_property
    def points(self) -> list[tuple[Point, RunSpec]]:
        """Every point with its run. Raises `ValueError`, with the point, if a point has no valid config."""
        found: list[tuple[Point, RunSpec]] = []
        for point in self.scale.points:
            for axis, value in point.items():
                if not isinstance(value, str | int | float | None):
                    rule = "must be text, a number, a flag or None"
                    raise ValueError(f"point {coordinates(point)}: {axis}={value!r} {rule}")
            try:
                found.append((point, RunSpec.of(self.scale, point)))
            except ValueError as error:
                raise ValueError(f"point {coordinates(point)}: {error}") from error
            except Exception as error:  # of the user's own function
                raise ValueError(f"point {coordinates(point)}: {type(error).__name__}: {error}") from error
        return found

    @functools.cached_property
    def specs(self) -> list[RunSpec]:
        """Every run once, in the order of the points."""
        return list({spec.id: spec for _, spec in self.points}.values())

    def about(self, file: str, scale: str) -> About:
        """Contents of `sweep.json`, given the path of the experiment's file and the name of the scale."""
        axes = tuple(dict.fromkeys(axis for point in self.scale.points for axis in point))
        experiment = self.experiment
        missing = tuple(self.experiment.missing)
        texts = (experiment.title, experiment.about, self.scale.about)
        return About(file, scale, *texts, missing, axes, self.n_runs, self.untuned)

    @property
    def n_runs(self) -> int:
        """Number of points with a result once the sweep is finished; with `Scale.all_seeds` fewer than all points."""
        total = 0
        most = self.scale.all_seeds
        for rates in self.places:
            seeds = [len(runs) for runs in rates.values()]
            total += sum(seeds) if most is None else len(rates) + min(most, len(rates)) * (max(seeds) - 1)
        return total

    @property
    def untuned(self) -> str:
        """What the verdicts of this scale lack, such as `2 learning rates, 1 seed`; empty if they are tuned, or if
        nothing is trained."""
        trained = [rates for rates in self.places if _is_trained(rates)]
        n_rates = min(map(len, trained), default=N_RATES)
        n_seeds = min((max(map(len, rates.values())) for rates in trained), default=N_SEEDS)
        lacks = [(n_rates, "learning rate")] * (n_rates < N_RATES and not self.scale.few_rates)
        lacks += [(n_seeds, "seed")] * (n_seeds < N_SEEDS)
        return ", ".join(f"{n} {word}{'s' * (n > 1)}" for n, word in lacks)

    def left(self) -> tuple[list[RunSpec], list[RunSpec]]:
        """Runs without a result or a failure: those to train now, and those that may follow.

        With `Scale.all_seeds`, the other seeds of a learning rate wait until all rates have run with the first seed;
        they are dropped if the rate is not among the best.
        """
        settled = self.directory.done() | self.directory.failed()
        if self.scale.all_seeds is None:
            return [spec for spec in self.specs if spec.id not in settled], []
        now: set[str] = set()
        later: set[str] = set()
        for rates in self.places:
            searched = {rate: next(iter(seeds.values())) for rate, seeds in rates.items()}
            now |= {spec.id for spec in searched.values()}
            decided = len(rates) <= self.scale.all_seeds or all(spec.id in settled for spec in searched.values())
            best = sorted(rates, key=lambda rate: self._score(searched[rate]) if decided else 0, reverse=True)
            chosen = now if decided else later
            for rate in best[: self.scale.all_seeds] if decided else best:
                chosen |= {spec.id for spec in rates[rate].values()}
        open_specs = [spec for spec in self.specs if spec.id not in settled]
        return [t for t in open_specs if t.id in now], [t for t in open_specs if t.id in later - now]

    @functools.cached_property
    def places(self) -> list[dict[Any, dict[Any, RunSpec]]]:
        """Runs by learning rate and seed, for each point without its rate and seed."""
        found: dict[Any, dict[Any, dict[Any, RunSpec]]] = {}
        for point, spec in self.points:
            found.setdefault(place_of(point), {}).setdefault(point.get(RATE), {})[point.get(SEED)] = spec
        return list(found.values())

    def _score(self, spec: RunSpec) -> float:
        """The metric that also chooses the best run in reports, with the sign for which more is better."""
        if not self.directory.has_result(spec.id):
            return -math.inf
        if spec.id not in self._scores:
            metrics = self.directory.result(spec.id)["metrics"]
            self._scores[spec.id] = -metrics[BITS] if BITS in metrics else metrics.get(SCORE, -math.inf)
        return self._scores[spec.id]

    @functools.cached_property
    def _scores(self) -> dict[str, float]:
        """Cache of the results read so far, by run; results never change."""
        return {}

    def rows(self) -> list[Row]:
        """The results by point. Raises `ValueError` where `results.jsonl` of a reported sweep is damaged."""
        if not self.directory.has_runs:
            return reported(self.directory)
        done = self.directory.done()
        return [{"point": dict(point), **self.directory.result(t.id)} for point, t in self.points if t.id in done]

    def reuse(self, other: SweepDirectory) -> int:
        """Copies results of another sweep for missing runs, except measurements (times); returns their number."""
        if other.has_runs:
            found = {run: other.result(run) for run in other.done()}
        else:
            found = {row["id"]: {name: row[name] for name in row if name != "point"} for row in reported(other)}
        trained = {spec.id for spec in self.specs if isinstance(spec.config, RunConfig)}
        taken = (trained & found.keys()) - self.directory.done()
        for run in taken:
            self.directory.write_result(run, found[run])
        return len(taken)

    def failures(self) -> list[dict[str, Any]]:
        """`point`, `id` and stored failure, by point."""
        failed = self.directory.failed() - self.directory.done()
        known = {run: {"id": run, **self.directory.failure(run)} for run in failed}
        return [{"point": dict(point), **known[spec.id]} for point, spec in self.points if spec.id in known]

    def write_rows(self) -> None:
        """Writes `results.jsonl` again, whole or not at all."""
        write_rows(self.directory.rows, self.rows())


def _is_trained(rates: dict[Any, dict[Any, RunSpec]]) -> bool:
    return any(isinstance(spec.config, RunConfig) for seeds in rates.values() for spec in seeds.values())


def reported(directory: SweepDirectory) -> list[Row]:
    """The results by point of a report without runs. Raises `ValueError` if they are missing or damaged."""
    directory.check_rows()
    try:
        rows: list[Row] = list(read_json_lines(directory.rows, dict[str, Any]))
    except OSError as error:
        raise ValueError(f"{directory.rows} must hold a result in every line: {error}") from error
    for number, row in enumerate(rows, 1):
        if not isinstance(row.get("point"), dict):
            raise ValueError(f"{directory.rows}:{number}: point must be an object")
        checked_result(dict(row), f"{directory.rows}:{number}")
    return rows
