"""Accuracy of every mixer on a small MQAR against the bytes of its state: `python -m experiments.mqar_gallery`.

The hybrid of `configs/mqar/zoo.py` (a short convolution, then the mixer): 64 tokens, 8 pairs, 256 token ids, width 64,
400 steps. Every mixer has the same learning rates and seeds; its accuracy at a width is the mean over the seeds at the
learning rate that is best in this mean. The state is that of the mixer's layer for one sequence, counted from the
arrays; a mixer that does not stream has none, and stands at the right edge.

A run that is done stands in the file of the result, and is not made again. `--workers` says how many are made at once,
each on a thread of its own.
"""

import dataclasses
import runpy
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.grid import Row, fit, one_thread_each, run_grid
from jaxzoo.checked import Checked, PositiveFloat, PositiveInt
from jaxzoo.cli.flags import UsageError, flags_of, parse_flags
from jaxzoo.cli.runner import run
from jaxzoo.config_io import nearest
from jaxzoo.screen import Screen
from pallas_kernels.figure import TITLE_POINTS, add_legend, panels, plain_log_ticks, save, series_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from jaxzoo.config import ExperimentConfig

PROGRAM = "python -m experiments.mqar_gallery"
ROOT = Path(__file__).parents[1]
LENGTH, N_PAIRS, VOCAB_SIZE = 64, 8, 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(Checked):
    """Trains the grid, goes on where it was stopped, and draws the picture."""

    only: tuple[str, ...] = ()
    """Names of the mixers to train; empty: all."""
    widths: tuple[PositiveInt, ...] = (64,)
    """d_model."""
    learning_rates: tuple[PositiveFloat, ...] = (1e-3, 3e-3, 1e-2)
    """Peak learning rates."""
    seeds: PositiveInt = 3
    """Seeds 0, 1, ..: of parameters."""
    steps: PositiveInt = 400
    """Steps of a run."""
    workers: PositiveInt = 2
    """Runs at once, each on a thread."""
    out: Path = ROOT / "benchmarks/results/mqar_gallery.json"
    """File of the result."""
    picture: Path = ROOT / "docs/images/mqar_gallery.png"
    """File of the picture."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (None: the process's own); returns the exit status."""
    return run(_experiment, argv, interrupted="interrupted; the runs that are done are kept")


def _experiment(argv: Sequence[str]) -> None:
    command = parse_flags(Command, argv, prog=PROGRAM, known=flags_of(Command()))
    one_thread_each()

    from benchmarks.subjects import subjects

    known = list(subjects())
    for name in command.only:
        if name not in known:
            raise UsageError(f"--only: unknown mixer {name!r}{nearest(name, known)}")
    screen = Screen(sys.stdout)
    rows = run_grid(
        list(_grid(command, command.only or known)),
        train,
        command.out,
        workers=command.workers,
        screen=screen,
        in_short=_in_short,
        keep=lambda row: row["mixer"] in known and row["steps"] == command.steps,
    )
    screen.say(table(rows))
    draw(rows, command.picture)
    screen.say(f"{command.out} and {command.picture}")


def _grid(command: Command, names: Sequence[str]) -> Iterator[Row]:
    """The tasks, a mixer after the other: what stands in the row of a run beside its result."""
    for name in names:
        for width in command.widths:
            for rate in command.learning_rates:
                for seed in range(command.seeds):
                    facts = {"mixer": name, "width": width, "learning_rate": rate}
                    yield {**facts, "seed": seed, "steps": command.steps}


def train(task: Row) -> Row:
    """Makes one run; a run that diverges has accuracy 0."""
    import jax.numpy as jnp

    from benchmarks.subjects import family, subjects
    from jaxzoo.models.accounting import mixer_state_bytes

    started = time.process_time()
    fitted = fit(experiment(task))
    mixer = fitted.session.config.model.layers[1]
    streams = mixer.capabilities.streams
    return {
        **task,
        "family": family(subjects()[task["mixer"]]),
        "accuracy": 0.0 if fitted.last_loss is None else fitted.metrics()["valid/accuracy"],
        "first_loss": fitted.first_loss,
        "last_loss": fitted.last_loss,
        "state_bytes": mixer_state_bytes(mixer, LENGTH, jnp.float32) if streams else None,
        "cpu_seconds": time.process_time() - started,
    }


def experiment(task: Row) -> "ExperimentConfig":
    """`configs/mqar/zoo.py` at the sizes of the task."""
    from benchmarks.subjects import subjects
    from jaxzoo.tasks import mqar
    from jaxzoo.tasks.recall_data import Examples, RecallDataConfig

    config = runpy.run_path(str(ROOT / "configs/mqar/zoo.py"))["config"](subjects()[task["mixer"]])
    examples = mqar.paper(length=LENGTH, n_pairs=N_PAIRS, vocab_size=VOCAB_SIZE)
    data = RecallDataConfig(
        train=(Examples(task=examples, n_examples=100_000),), valid=(Examples(task=examples, n_examples=1_000),)
    )
    sizes = {"d_model": task["width"], "vocab_size": VOCAB_SIZE, "max_length": LENGTH}
    return dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, **sizes),
        data=data,
        optimizer=dataclasses.replace(config.optimizer, learning_rate=task["learning_rate"]),
        train=dataclasses.replace(config.train, steps=task["steps"], seed=task["seed"]),
    )


def scores(rows: Sequence[Row]) -> dict[str, dict[int, Row]]:
    """By mixer and width, in order: `accuracy`, the best learning rate's mean over the seeds, with the row of a run."""
    found: dict[str, dict[int, Row]] = {}
    for name, width in sorted({(row["mixer"], row["width"]) for row in rows}):
        runs = [row for row in rows if (row["mixer"], row["width"]) == (name, width)]
        means = {
            rate: statistics.mean(row["accuracy"] for row in runs if row["learning_rate"] == rate)
            for rate in {row["learning_rate"] for row in runs}
        }
        best = max(means, key=lambda rate: means[rate])
        found.setdefault(name, {})[width] = {**runs[0], "learning_rate": best, "accuracy": means[best]}
    return found


def table(rows: Sequence[Row]) -> str:
    """The scores as a table of Markdown."""
    lines = ["| mixer | width | state, bytes | accuracy | learning rate |", "| --- " * 5 + "|"]
    for name, widths in scores(rows).items():
        for width, row in widths.items():
            size = "no stream" if row["state_bytes"] is None else f"{row['state_bytes']:,}"
            lines.append(f"| {name} | {width} | {size} | {row['accuracy']:.3f} | {row['learning_rate']:g} |")
    return "\n".join(lines)


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draws accuracy against state bytes, a panel a family; a line joins the widths of a mixer."""
    found = scores(rows)
    family = {row["mixer"]: row["family"] for row in rows}
    families = sorted(set(family.values()))
    edge = 2 * max((row["state_bytes"] or 0 for row in rows), default=1)
    title = f"MQAR, {LENGTH} tokens, {N_PAIRS} pairs: a short convolution, then the mixer; width {_all(rows, 'width')}"
    title += f", {_all(rows, 'steps')} steps"
    figure, (axes,) = panels(1, len(families), size=(3.6 * len(families), 4.8), title=title, sharex=True, sharey=True)
    for i, name in enumerate(sorted(found, key=lambda name: (family[name], name))):
        points = [(row["state_bytes"] or edge, row["accuracy"]) for row in found[name].values()]
        axes[families.index(family[name])].plot(*zip(*points, strict=True), **series_style(i), label=name)
    for panel, name in zip(axes, families, strict=True):
        _finish(panel, name, edge)
    axes[0].set(ylabel="accuracy, mean of the seeds, best learning rate")
    add_legend(figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    save(figure, path)


def _finish(panel: "Axes", family: str, edge: float) -> None:
    panel.set_title(family, fontsize=TITLE_POINTS)
    panel.set(xlabel=f"state of a sequence, bytes\n(at {edge:,}: no stream)", ylim=(-0.02, 1.02))
    plain_log_ticks(panel, "x")


def _all(rows: Sequence[Row], name: str) -> str:
    return ", ".join(map(str, sorted({row[name] for row in rows})))


def _in_short(row: Row) -> str:
    loss = "diverged" if row["last_loss"] is None else f"loss {row['last_loss']:.3f}"
    return (
        f"{row['mixer']:28} d {row['width']:<3} lr {row['learning_rate']:<6g} seed {row['seed']}  {loss}  "
        f"accuracy {row['accuracy']:.3f}  {row['cpu_seconds']:.0f} CPU-s"
    )


if __name__ == "__main__":
    raise SystemExit(main())
