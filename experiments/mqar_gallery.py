"""Accuracy of every mixer on a small MQAR over the bytes of its state.

`python -m jaxzoo.sweep --experiment experiments/mqar_gallery.py --scale laptop --out sweeps/mqar_gallery`

The hybrid of `configs/mqar/zoo.py` (a short convolution, then the mixer): 64 tokens, 8 pairs, 256 token ids, width 64,
400 steps. Every mixer has the same learning rates and seeds; its accuracy is the mean over the seeds at the learning
rate that is best in this mean. The state is that of the model for one sequence, counted from the arrays; a mixer that
does not stream has none, and stands at the right edge.
"""

import contextlib
import dataclasses
import functools
import runpy
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.subjects import family, subjects
from experiments import recall
from experiments.protocol import LAPTOP, SEEDS
from jaxzoo.config import ExperimentConfig
from jaxzoo.mixers import WindowedLinearAttentionConfig
from jaxzoo.sweep import Change, Claim, Experiment, Finding, Missing, Results, Scale, grid, learned
from jaxzoo.sweep.claims import CHANCE, chance
from jaxzoo.sweep.figure import Mark, guessing, label_marks, marked_line
from jaxzoo.sweep.results import SeedScore
from jaxzoo.tasks import mqar
from pallas_kernels.figure import TITLE_POINTS, add_legend, panels, plain_log_ticks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LENGTH, N_PAIRS, VOCAB_SIZE = 64, 8, 256
AXES = ("mixer", "d_model")
ATTENTION = "attention"
GATED = ("base_conv", "base_conv filter=implicit", "gated_short_conv", "hyena", "hyena form=release", "h3")
"""Gated convolutions and, of state spaces, H3: filters that do not depend on the input, and products."""
SOLVED = 0.9
"""Zoology, Sec. 4.3: at most this is not solved."""


class Score(NamedTuple):
    """A mixer at a width."""

    seeds: SeedScore
    """Its runs at the learning rate that is best in the mean over the seeds; a run that diverged counts as 0."""
    state_bytes: int | None
    """Bytes of the state of one sequence; None: the mixer does not stream."""
    runs: Mark
    """All its runs, as a mark of the figure."""

    @property
    def accuracy(self) -> float:
        """Mean over the seeds."""
        return self.seeds.mean


@functools.cache
def _zoo() -> Any:
    return runpy.run_path(str(Path(__file__).parents[1] / "configs/mqar/zoo.py"))["config"]


def config(point: Any, *, steps: int = 400) -> ExperimentConfig:
    """`configs/mqar/zoo.py` with the mixer, the sizes and the seed of a point."""
    base = _zoo()(subjects()[point["mixer"]])
    task = mqar.paper(length=LENGTH, n_pairs=N_PAIRS, vocab_size=VOCAB_SIZE)
    sizes = {"d_model": point["d_model"], "vocab_size": VOCAB_SIZE, "max_length": LENGTH}
    rate, seed = point["learning_rate"], point["seed"]
    often: Any = {"eval_every": max(1, steps // 4), "checkpoint_every": max(1, steps // 2)}
    return dataclasses.replace(
        base,
        model=dataclasses.replace(base.model, **sizes),
        data=recall.data(task, train=max(100_000, 64 * steps), valid=1_000),
        optimizer=dataclasses.replace(base.optimizer, learning_rate=rate),
        train=dataclasses.replace(base.train, steps=steps, seed=seed, **often),
    )


def _laptop() -> Scale:
    return Scale(
        about=f"{LENGTH} tokens, {N_PAIRS} pairs, {VOCAB_SIZE} token ids, width 64, 400 steps of batch 64, two "
        "learning rates, two seeds; no paper shows this figure.",
        points=grid(mixer=tuple(subjects()), d_model=(64,), learning_rate=LAPTOP.learning_rates, seed=(0, 1)),
        config=config,
    )


def _overnight() -> Scale:
    return Scale(
        about=f"{LENGTH} tokens, {N_PAIRS} pairs, {VOCAB_SIZE} token ids, width 64, 2,500 steps of batch 64, two "
        "learning rates, three seeds; no paper shows this figure.",
        points=grid(mixer=tuple(subjects()), d_model=(64,), learning_rate=LAPTOP.learning_rates, seed=SEEDS),
        config=lambda point: config(point, steps=2_500),
        all_seeds=2,
    )


def _smoke() -> Scale:
    return Scale(
        about="Two steps of two mixers: that all of it runs.",
        points=grid(mixer=(ATTENTION, "nystromformer"), d_model=(16,), learning_rate=(1e-2,), seed=(0,)),
        config=lambda point: config(point, steps=2),
    )


def scores(results: Results, **where: Any) -> dict[str, dict[int, Score]]:
    """Scores by mixer and width, in order."""
    found: dict[str, dict[int, Score]] = {}
    places = {tuple(row["point"][axis] for axis in AXES) for row in results.select(**where)}
    for name, width in sorted(places):
        at = results.select(**{**where, "mixer": name, "d_model": width})
        state = next((row["state_bytes"] for row in at if row["state_bytes"] is not None), None)
        with contextlib.suppress(Missing):
            found.setdefault(name, {})[width] = Score(Results(at).seeds(), state, Mark.of(at))
    return {name: widths for name, widths in found.items() if widths}


def _of(results: Results, names: Sequence[str]) -> dict[str, Score]:
    """The scores of some mixers at the largest width."""
    found = scores(results, mixer=tuple(names))
    if not found:
        raise Missing(f"no run of {', '.join(names)}")
    return {name: widths[max(widths)] for name, widths in found.items()}


def _attention_solves(results: Results) -> Finding:
    (score,) = _of(results, (ATTENTION,)).values()
    return Finding(score.accuracy > SOLVED, f"attention {score.accuracy:.2f}")


def _gated_do_not(results: Results) -> Finding:
    found = _of(results, GATED)
    best = max(found, key=lambda name: found[name].accuracy)
    return Finding(found[best].accuracy <= SOLVED, f"{found[best].accuracy:.2f} at most ({best})")


def _more_state(results: Results) -> Finding:
    """Whether the ranks of state and accuracy go together."""
    streaming = {name: each for name, each in _of(results, results.values("mixer")).items() if each.state_bytes}
    mixers = subjects()
    others = {
        name: each
        for name, each in streaming.items()
        if family(mixers[name]) != "attention"
        and not isinstance(mixers[name], WindowedLinearAttentionConfig)  # its window holds all tokens
    }
    from scipy.stats import rankdata  # takes a second to import

    holds, words = True, []
    for label, group in (("mixers that stream", streaming), ("of them that are no attention", others)):
        states = rankdata([each.state_bytes for each in group.values()]).tolist()
        accuracies = rankdata([each.accuracy for each in group.values()]).tolist()
        if len(set(states)) < 2 or len(set(accuracies)) < 2:
            raise Missing("fewer than two mixers that stream and have learned, or all alike")
        rho = statistics.correlation(states, accuracies)
        p = chance(rho, [accuracies], lambda orders, states=states: statistics.correlation(states, orders[0]))
        holds &= p <= CHANCE
        words.append(f"rank correlation {rho:.2f} over {len(group)} {label}, by chance with p = {p:.2g}")
    return Finding(holds, "; ".join(words))


def draw(results: Results) -> "Figure":
    """Accuracy against state bytes, a panel and a colour a family; a line joins the widths of a mixer."""
    found = scores(results)
    families = {name: family(subjects()[name]) for name in found}
    columns = sorted(set(families.values()))
    edge = 2 * max((each.state_bytes or 0 for widths in found.values() for each in widths.values()), default=1)
    title = f"MQAR, {LENGTH} tokens, {N_PAIRS} pairs: a short convolution, then the mixer"
    figure, (axes,) = panels(1, len(columns), size=(3.8 * len(columns), 5.2), title=title, sharex=True, sharey=True)
    marks: dict[str, list[tuple[str, float, float]]] = {name: [] for name in columns}
    for name, widths in found.items():
        column, each = columns.index(families[name]), list(widths.values())
        states, accuracies = [score.state_bytes or edge for score in each], [score.accuracy for score in each]
        spread, runs = [(score.seeds.low, score.seeds.high) for score in each], [score.runs for score in each]
        marked_line(axes[column], states, accuracies, runs, label=f"_{name}", series=column, spread=spread)
        marks[families[name]].append((name, states[-1], accuracies[-1]))
    for place, name in zip(axes, columns, strict=True):
        guessing(place, results.rows)
        place.set_title(name, fontsize=TITLE_POINTS)
        place.set(xlabel=f"state of a sequence, bytes\n(at {edge:,}: no stream)", ylim=(-0.03, 1.03))
        plain_log_ticks(place, "x")
    for place, name in zip(axes, columns, strict=True):  # when the shared axes have their limits
        label_marks(place, marks[name])
    axes[0].set(ylabel="accuracy, mean of the seeds, best learning rate")
    add_legend(figure)
    return figure


def _made_up(point: Any) -> dict[str, Any]:
    """Attention solves the task, gated convolutions do not, and every mixer recalls by its state."""
    name, names = point["mixer"], list(subjects())
    if name == ATTENTION:
        return {"valid/accuracy": 0.99, "state_bytes": 10**6}
    size = names.index(name)
    return {"valid/accuracy": 0.2 + 0.6 * size / len(names), "state_bytes": 1000 + size}


def _every(*names: str) -> Any:
    return learned(mixer=names or tuple(subjects()), each=("mixer",))


experiment = Experiment(
    title="All mixers on MQAR",
    about="Accuracy of every mixer after a short convolution over the bytes of its state, a panel a family.",
    scales={"smoke": _smoke, "laptop": _laptop, "overnight": _overnight},
    claims=(
        Claim(
            name="attention",
            text="Attention exceeds 0.9.",
            quote="attention models can solve it with near-constant dimensionality",
            source="Zoology, Sec. 4.3, Claim 1",
            rule="0.9 is the paper's line of a solved task.",
            controls=(_every(ATTENTION),),
            holds=_attention_solves,
            broken_by=(Change({"mixer": ATTENTION}, 0.8),),
        ),
        Claim(
            name="gated",
            text="No gated convolution exceeds 0.9 with a width of the length at most.",
            quote="MQAR does not achieve accuracy > 0.9 unless d >= N",
            source="Zoology, Sec. 4.3, Claim 1",
            rule="0.9 is the paper's line; the width here is the length, at which the paper has the first that "
            "solve it.",
            controls=(_every(*GATED),),
            holds=_gated_do_not,
            broken_by=(Change({"mixer": GATED}, 0.95),),
        ),
        Claim(
            name="state",
            text="The ranks of state and accuracy correlate over all mixers, and over those that are no attention.",
            quote="the larger the recurrent state size, the better recall",
            source="Based, Sec. 3",
            rule="Chance fails both correlations (permutation test, p = 0.05); attention alone cannot make the second.",
            controls=(_every(),),
            holds=_more_state,
            broken_by=(Change({}, lambda at: 0.2 + 0.001 * (sum(map(ord, at["mixer"])) * 7919 % 101)),),
        ),
    ),
    made_up=_made_up,
    draw=draw,
)
