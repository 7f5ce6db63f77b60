"""Accuracy of every mixer on a small MQAR, and the bytes of its state.

`jaxzoo sweep --experiment experiments/mqar_gallery.py --scale overnight --out sweeps/mqar_gallery`

The hybrid of `configs/mqar/zoo.py` (a short convolution, then the mixer): 64 tokens, 8 pairs, 256 token ids, width 64,
2,500 steps (`laptop`: 400). Every mixer has the same learning rates and seeds; its accuracy is the mean over the seeds
at the learning rate with the best mean. The state of the model for one sequence is counted from the arrays; mixers that
do not stream have none, and come last.
"""

import contextlib
import dataclasses
import functools
import math
import runpy
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.subjects import family, subjects
from experiments import recall
from experiments.protocol import LAPTOP, SEEDS
from jaxzoo.mixers import WindowedLinearAttentionConfig
from jaxzoo.mixers.names import title
from jaxzoo.sweep import Change, Claim, Experiment, Finding, Missing, Results, Scale, grid, learned
from jaxzoo.sweep.claims import CHANCE, chance
from jaxzoo.sweep.curves import guessing
from jaxzoo.sweep.results import SeedScore
from jaxzoo.tasks import mqar
from jaxzoo.train.config import RunConfig
from jaxzoo.utils.figure import PALETTE, Figure, add_legend, panels, plain_log_ticks

LENGTH, N_PAIRS, VOCAB_SIZE = 64, 8, 256
ATTENTION = "attention"
GATED = ("base_conv", "base_conv filter=implicit", "gated_short_conv", "hyena", "hyena form=release", "h3")
"""Gated convolutions and H3: input-independent filters, and products."""
FAMILIES = {
    "attention": "attention",
    "conv": "convolution",
    "linear": "linear attention, delta rule, RWKV",
    "ssm": "state space",
}
"""Words for the families, in the order of their styles."""
SOLVED = 0.9
"""Zoology, Sec. 4.3: the task is not solved at or below this accuracy."""


ADDED = {
    "comba", "forgetting_attention", "gated_delta_net2", "gated_delta_product", "gated_slot_attention", "hgrn",
    "latent_attention", "lightning_attention", "mamba3", "mesa_net", "mlstm", "moba", "native_sparse_attention",
    "path_attention", "ttt",
}  # fmt: skip
"""Mixers whose runs end at the first validation with an accuracy of 0.99; the runs of the others, which were made
before, go on to the last step."""


def shown() -> tuple[str, ...]:
    """Mixers and variants of the gallery."""
    return tuple(subjects())


class Score(NamedTuple):
    seeds: SeedScore
    """Runs at the learning rate that is best in the mean over the seeds; a diverged run counts as 0."""
    state_bytes: int | None
    """State bytes of one sequence; None if the mixer does not stream."""

    @property
    def accuracy(self) -> float:
        return self.seeds.mean


@functools.cache
def _zoo() -> Any:
    return runpy.run_path(str(Path(__file__).parents[1] / "configs/mqar/zoo.py"))["config"]


def config(point: Any, *, steps: int = 400) -> RunConfig:
    """Returns the run of `configs/mqar/zoo.py` with the mixer, sizes and seed of a point."""
    base = _zoo()(subjects()[point["mixer"]])
    task = mqar.paper(length=LENGTH, n_pairs=N_PAIRS, vocab_size=VOCAB_SIZE)
    sizes = {"d_model": point["d_model"], "vocab_size": VOCAB_SIZE, "max_length": LENGTH}
    rate, seed = point["learning_rate"], point["seed"]
    often: Any = {"eval_every": max(1, steps // 4), "checkpoint_every": max(1, steps // 2)}
    if point["mixer"] in ADDED:
        often |= {"eval_every": max(1, steps // 20), "stop_at_accuracy": 0.99}
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
        points=grid(mixer=shown(), d_model=(64,), learning_rate=LAPTOP.learning_rates, seed=(0, 1)),
        config=config,
    )


def _overnight() -> Scale:
    return Scale(
        about=f"{LENGTH} tokens, {N_PAIRS} pairs, {VOCAB_SIZE} token ids, width 64, 2,500 steps of batch 64, two "
        "learning rates, three seeds; no paper shows this figure.",
        points=grid(mixer=shown(), d_model=(64,), learning_rate=LAPTOP.learning_rates, seed=SEEDS),
        config=lambda point: config(point, steps=2_500),
        all_seeds=2,
    )


def _smoke() -> Scale:
    return Scale(
        about="Two steps of two mixers: that all of it runs.",
        points=grid(mixer=(ATTENTION, "nystromformer"), d_model=(16,), learning_rate=(1e-2,), seed=(0,)),
        config=lambda point: config(point, steps=2),
    )


def scores(results: Results, **where: Any) -> dict[str, Score]:
    """Returns scores by mixer, in alphabetical order."""
    found: dict[str, Score] = {}
    for name in sorted({row["point"]["mixer"] for row in results.select(**where)}):
        at = results.select(**{**where, "mixer": name})
        state = next((row["state_bytes"] for row in at if row["state_bytes"] is not None), None)
        with contextlib.suppress(Missing):
            found[name] = Score(Results(at).seeds(), state)
    return found


def _of(results: Results, names: Sequence[str]) -> dict[str, Score]:
    found = scores(results, mixer=tuple(names))
    if not found:
        raise Missing(f"no run of {', '.join(names)}")
    return found


def _attention_solves(results: Results) -> Finding:
    (score,) = _of(results, (ATTENTION,)).values()
    return Finding(score.accuracy > SOLVED, f"attention {score.accuracy:.2f}")


def _gated_do_not(results: Results) -> Finding:
    found = _of(results, GATED)
    best = max(found, key=lambda name: found[name].accuracy)
    return Finding(found[best].accuracy <= SOLVED, f"{found[best].accuracy:.2f} at most ({best})")


def _more_state(results: Results) -> Finding:
    """Tests whether the ranks of state and accuracy correlate."""
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


def draw(results: Results) -> Figure:
    """Draws one line per mixer, sorted by state bytes: accuracy with the range of its seeds, and state."""
    found = sorted(scores(results).items(), key=lambda item: (item[1].state_bytes or math.inf, -item[1].accuracy))
    words = f"MQAR, {LENGTH} tokens, {N_PAIRS} pairs, a short convolution, then the mixer: recall and state"
    size = (8.5, 1.5 + 0.17 * len(found))
    figure, ((recall, state),) = panels(1, 2, size=size, title=words, sharey=True, width_ratios=(3, 2))
    figure.set_layout_engine("constrained", w_pad=0.12)  # long names at the left
    for place, (name, score) in enumerate(found):
        kind = family(subjects()[name])
        style = PALETTE[list(FAMILIES).index(kind)]._asdict()
        if score.seeds.high > score.seeds.low:
            recall.hlines([place], [score.seeds.low], [score.seeds.high], color=style["color"], linewidth=0.9, zorder=1)
        recall.scatter([score.accuracy], [place], s=20, zorder=2, label=FAMILIES[kind], **style)
        if score.state_bytes is None:
            state.annotate(
                "does not stream", (0.02, place), xycoords=("axes fraction", "data"), va="center", fontsize=8
            )
        else:
            state.scatter([score.state_bytes], [place], s=20, **style)
    recall.set(xlim=(-0.03, 1.03), xlabel="accuracy, mean of the seeds, best learning rate")
    recall.set(yticks=range(len(found)), yticklabels=[title(name) for name, _ in found], ylim=(len(found) - 0.4, -0.6))
    state.set(xlabel="state of a sequence, bytes")
    guessing(recall, results.rows, vertical=True)
    plain_log_ticks(state, "x", (1_000, 3_000, 10_000, 30_000, 100_000))
    add_legend(figure)
    return figure


def _made_up(point: Any) -> dict[str, Any]:
    """Made-up values: attention solves the task, gated convolutions do not, accuracy grows with the state."""
    name, names = point["mixer"], list(shown())
    if name == ATTENTION:
        return {"valid/accuracy": 0.99, "state_bytes": 10**6}
    size = names.index(name)
    return {"valid/accuracy": 0.2 + 0.6 * size / len(names), "state_bytes": 1000 + size}


def _every(*names: str) -> Any:
    return learned(mixer=names or shown(), each=("mixer",))


experiment = Experiment(
    title="All mixers on MQAR",
    about="Accuracy of every mixer after a short convolution, and the bytes of its state.",
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
