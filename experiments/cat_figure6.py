"""Accuracy at lengths that were not trained: CAT, Figure 6, at a laptop's scale: `python -m experiments.cat_figure6`.

The models of `configs/cat/length.py`, trained on examples of 128 tokens and asked at 32 to 1,024: MQAR with a sixteenth
of the tokens as pairs, and MQNAR of 2-grams with an eighth and a quarter as many queries without a match. Vocabulary
2048, width 64, 600 steps, one seed; of the learning rates each model shows the one that is best at 128 tokens. The
paper has widths 32, 64 and 128, vocabulary 8192, more steps and a denser grid.

YaRN is no training of its own: it is the model with rotary positions, its frequencies slowed by length / 128 where that
is above 1. Based is a short convolution and Taylor linear attention, a layer each.

In these few steps attention of two layers and Mamba have not learned to recall at 128 tokens either: they guess among
the values of the example, and on MQNAR say "no match", which is right for a fifth of the queries. Their curves speak of
that, and not of other lengths.

A run that is done stands in the file of the result, and is not made again.
"""

import dataclasses
import runpy
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.grid import Fitted, Row, fit, one_thread_each, run_grid
from jaxzoo.checked import Checked, PositiveFloat, PositiveInt
from jaxzoo.cli.flags import UsageError, flags_of, parse_flags
from jaxzoo.cli.runner import run
from jaxzoo.config_io import nearest
from jaxzoo.screen import Screen
from pallas_kernels.figure import TITLE_POINTS, add_legend, bound_style, panels, plain_log_ticks, save, series_style

if TYPE_CHECKING:
    from jaxzoo.config import ExperimentConfig

PROGRAM = "python -m experiments.cat_figure6"
ROOT = Path(__file__).parents[1]

MODELS = ("CAT", "LinCAT", "attention, learned", "attention, RoPE", "attention, NoPE", "Based", "Mamba")
YARN = "attention, YaRN"
TASKS = ("mqar", "mqnar")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(Checked):
    """Trains the grid, goes on where it was stopped, and draws the picture."""

    models: tuple[str, ...] = MODELS
    """Those to train."""
    tasks: tuple[str, ...] = TASKS
    """What they are to recall."""
    learning_rates: tuple[PositiveFloat, ...] = (3e-3, 1e-2)
    """Peak learning rates."""
    steps: PositiveInt = 600
    """Steps of a run."""
    workers: PositiveInt = 2
    """Runs at once, each on a thread."""
    out: Path = ROOT / "benchmarks/results/cat_figure6.json"
    """File of the result."""
    picture: Path = ROOT / "docs/images/cat_figure6.png"
    """File of the picture."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (None: the process's own); returns the exit status."""
    return run(_experiment, argv, interrupted="interrupted; the runs that are done are kept")


def _experiment(argv: Sequence[str]) -> None:
    command = parse_flags(Command, argv, prog=PROGRAM, known=flags_of(Command()))
    for flag, names, known in (("--models", command.models, MODELS), ("--tasks", command.tasks, TASKS)):
        for name in names:
            if name not in known:
                raise UsageError(f"{flag}: unknown name {name!r}{nearest(name, known)}")
    one_thread_each()
    screen = Screen(sys.stdout)
    rows = run_grid(
        list(_grid(command)),
        train,
        command.out,
        workers=command.workers,
        screen=screen,
        in_short=_in_short,
        keep=lambda row: row["steps"] == command.steps,
    )
    screen.say(table(rows))
    draw(rows, command.picture)
    screen.say(f"{command.out} and {command.picture}")


def _grid(command: Command) -> Iterator[Row]:
    for task in command.tasks:
        for model in command.models:
            for rate in command.learning_rates:
                yield {"task": task, "model": model, "learning_rate": rate, "steps": command.steps}


def experiment(task: Row) -> "ExperimentConfig":
    """`configs/cat/length.py` with the model, the task and the learning rate that are asked for."""
    from jaxzoo.mixers import AttentionConfig, BaseConvConfig, LinCATConfig, MambaConfig, TaylorLinearAttentionConfig
    from jaxzoo.tasks import ngram_recall

    file = runpy.run_path(str(ROOT / "configs/cat/length.py"))
    chosen: dict[str, Any] = {}
    if task["task"] == "mqnar":
        chosen["examples"] = lambda length: ngram_recall.mqnar(length, length // 8, vocab_size=file["VOCAB_SIZE"])
    mixers = {
        "CAT": file["DEFAULT"],
        "LinCAT": LinCATConfig(n_heads=2, n_taps=3, filters="mixing"),
        "attention, learned": AttentionConfig(),
        "attention, RoPE": AttentionConfig(positions="rotary"),
        "attention, NoPE": AttentionConfig(),
        "Based": TaylorLinearAttentionConfig(),
        "Mamba": MambaConfig(),
    }
    config = file["config"](mixers[task["model"]], **chosen)
    model = config.model
    if task["model"] == "Based":
        model = dataclasses.replace(model, pattern=(BaseConvConfig(n_taps=3), *model.pattern))
    if task["model"] == "attention, learned":
        model = dataclasses.replace(model, max_positions=model.max_length)
    optimizer = dataclasses.replace(config.optimizer, learning_rate=task["learning_rate"])
    train = dataclasses.replace(config.train, steps=task["steps"])
    return dataclasses.replace(config, model=model, optimizer=optimizer, train=train)


def train(task: Row) -> Row:
    """Makes one run: the accuracy at every length, by model; a run that diverges has accuracy 0."""
    started = time.process_time()
    fitted = fit(experiment(task))
    curves = {task["model"]: by_length(fitted.metrics())}
    if task["model"] == "attention, RoPE":
        curves[YARN] = _with_yarn(fitted)
    if fitted.last_loss is None:
        curves = {name: dict.fromkeys(curve, 0.0) for name, curve in curves.items()}
    return {**task, "curves": curves, "last_loss": fitted.last_loss, "cpu_seconds": time.process_time() - started}


def by_length(metrics: dict[str, float]) -> dict[str, float]:
    """Accuracy by number of tokens."""
    prefix = "valid/accuracy/length="
    return {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}


def _with_yarn(fitted: Fitted) -> dict[str, float]:
    """The same model at each length with a rotation that is slower by as much."""
    from jaxzoo.layers.rotary_scaling import RotaryScaling
    from jaxzoo.train.session import Session

    found, config = {}, fitted.session.config
    trained = config.data.train[0].task.length
    for examples in config.data.valid:
        factor = max(examples.task.length / trained, 1.0)
        scaling = RotaryScaling(kind="yarn", factor=factor, original_length=trained)
        pattern = tuple(dataclasses.replace(mixer, rotary_scaling=scaling) for mixer in config.model.pattern)
        asked = dataclasses.replace(
            config,
            model=dataclasses.replace(config.model, pattern=pattern),
            data=dataclasses.replace(config.data, valid=(examples,)),
        )
        found |= by_length(fitted._replace(session=Session(asked)).metrics())
    return found


def best(rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
    """By task and model: the accuracies by length of the learning rate that is best at the trained length."""
    found: dict[str, dict[str, Row]] = {}
    for row in sorted(rows, key=lambda row: row["learning_rate"]):
        for name, curve in row["curves"].items():
            models = found.setdefault(row["task"], {})
            trained = str(_trained_length())
            if name not in models or curve[trained] > models[name]["curve"][trained]:
                models[name] = {"curve": curve, "learning_rate": row["learning_rate"]}
    return found


def _trained_length() -> int:
    return runpy.run_path(str(ROOT / "configs/cat/length.py"))["TRAINED"]


def table(rows: Sequence[Row]) -> str:
    """The best curves as a table of Markdown."""
    found = best(rows)
    lengths = sorted({int(n) for row in rows for curve in row["curves"].values() for n in curve})
    lines = [f"| task | model | learning rate | {' | '.join(map(str, lengths))} |", "| --- " * (3 + len(lengths)) + "|"]
    for task, models in found.items():
        for name, row in models.items():
            cells = " | ".join(f"{row['curve'][str(length)]:.3f}" for length in lengths)
            lines.append(f"| {task} | {name} | {row['learning_rate']:g} | {cells} |")
    return "\n".join(lines)


def draw(rows: Sequence[Row], path: Path) -> None:
    """Accuracy over length, a panel a task; a line marks the length of training."""
    found = best(rows)
    figure, (axes,) = panels(
        1, len(found), size=(4.6 * len(found), 4.4), title="Trained at one length, asked at others", sharey=True
    )
    names = [*MODELS, YARN]
    for panel, (task, models) in zip(axes, found.items(), strict=True):
        for name, row in sorted(models.items(), key=lambda item: names.index(item[0])):
            lengths = sorted(map(int, row["curve"]))
            accuracies = [row["curve"][str(length)] for length in lengths]
            panel.plot(lengths, accuracies, **series_style(names.index(name)), label=name)
            plain_log_ticks(panel, "x", lengths)
        panel.axvline(_trained_length(), **bound_style(), label="trained")
        panel.set_title(task.upper(), fontsize=TITLE_POINTS)
        panel.set(xlabel="tokens", ylim=(-0.02, 1.02))
    axes[0].set(ylabel="accuracy")
    add_legend(figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    save(figure, path)


def _in_short(row: Row) -> str:
    curve = "  ".join(f"{length} {accuracy:.3f}" for length, accuracy in next(iter(row["curves"].values())).items())
    return f"{row['task']:5} {row['model']:18} lr {row['learning_rate']:<6g} {curve}  {row['cpu_seconds']:.0f} CPU-s"


if __name__ == "__main__":
    raise SystemExit(main())
