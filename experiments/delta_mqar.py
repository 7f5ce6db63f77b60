"""Recall against the bytes of the state: the delta rule, decays, and plain sums.

`jaxzoo sweep --experiment experiments/delta_mqar.py --scale laptop --out sweeps/delta_mqar`

MQAR by a short convolution and one layer of each mixer, as in `configs/mqar/zoo.py`. The state of a mixer grows with
the width of its heads, at the same width of the model; `state` is for one row, counted from the arrays. Attention
is the positive control. Sizes are ours at every scale; no paper shows this figure.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from experiments import recall
from experiments.frontier import by_state
from experiments.protocol import LAPTOP, Protocol
from jaxzoo.mixers import (
    AttentionConfig,
    BaseConvConfig,
    DeltaNetConfig,
    GatedDeltaNetConfig,
    GatedLinearAttentionConfig,
    KimiDeltaAttentionConfig,
    Mamba2Config,
    MixerConfig,
    RWKV7TimeMixConfig,
    TaylorLinearAttentionConfig,
)
from jaxzoo.sweep import Change, Claim, Experiment, Finding, Missing, Results, Scale, learned
from jaxzoo.sweep.curves import marked_line
from jaxzoo.tasks import mqar
from jaxzoo.tasks.base import TaskConfig
from jaxzoo.train.config import RunConfig
from jaxzoo.utils.figure import Figure, add_legend, panels, plain_log_ticks

LENGTH, N_PAIRS, VOCAB_SIZE = 64, 16, 128
FEWER = (N_PAIRS // 4, N_PAIRS // 2)
"""Numbers of pairs of the first parts of the training examples, a third each."""
GUESS = 1 / 16
"""Accuracy of an answer drawn from the values of the example."""
SOLVED = 0.9
"""Zoology, Sec. 4.3: the task is not solved at or below this accuracy."""
NEAR = 0.02
"""Largest difference of accuracies that count as equal (ours)."""
CONTROL = "attention"
DELTA = ("DeltaNet", "Gated DeltaNet", "KDA", "RWKV-7")


def _rwkv7(heads: int) -> RWKV7TimeMixConfig:
    return RWKV7TimeMixConfig(n_heads=heads, decay_rank=8, rate_rank=8, gate_rank=8)


MODELS: dict[str, Callable[[int], MixerConfig]] = {
    CONTROL: lambda size: AttentionConfig(),
    "Based": lambda size: TaylorLinearAttentionConfig(feature_dim=size),
    "GLA": lambda heads: GatedLinearAttentionConfig(n_heads=heads),
    "Mamba-2": lambda size: Mamba2Config(d_state=size, head_dim=16),
    "DeltaNet": lambda heads: DeltaNetConfig(n_heads=heads),
    "Gated DeltaNet": lambda heads: GatedDeltaNetConfig(n_heads=heads),
    "KDA": lambda heads: KimiDeltaAttentionConfig(n_heads=heads),
    "RWKV-7": _rwkv7,
}
"""Mixers as functions of the size: heads; for Based the width of queries and keys, for Mamba-2 the width of B, C."""
SIZES: dict[str, Sequence[int]] = {CONTROL: (1,), "Based": (3, 7), "Mamba-2": (4, 16)}
"""Sizes at width 32 of models without `HEADS`."""
HEADS = (4, 1)
"""Fewer heads at one width have a larger state: d^2 / heads."""


def mqar_task(n_pairs: int) -> TaskConfig:
    return mqar.paper(length=LENGTH, n_pairs=n_pairs, vocab_size=VOCAB_SIZE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    d_model: int
    examples: tuple[int, int]
    """Numbers of examples: training and validation."""
    protocol: Protocol
    scaling: int = 1
    """Factor of `SIZES` of Based and Mamba-2."""

    def config(self, point: Any) -> RunConfig:
        size = point["size"] * (self.scaling if point["model"] in SIZES else 1)
        train, valid = self.examples
        return self.protocol.run(
            (BaseConvConfig(n_taps=3), MODELS[point["model"]](size)),
            recall.mixture(mqar_task, (*FEWER, N_PAIRS), train=train, valid=valid),
            d_model=self.d_model,
            learning_rate=point["learning_rate"],
            seed=point["seed"],
        )

    def points(self, models: Sequence[str], rates: Sequence[float], seeds: Sequence[int]) -> list[dict[str, Any]]:
        return [
            {"model": name, "size": size, "learning_rate": rate, "seed": seed}
            for name in models
            for size in SIZES.get(name, HEADS)
            for rate in rates
            for seed in seeds
        ]


LAPTOPS = Setting(d_model=32, examples=(64 * 1_500, 512), protocol=dataclasses.replace(LAPTOP, evals=6))
LARGE = Setting(d_model=128, examples=(64 * 8_000, 1_000), protocol=LAPTOP, scaling=2)
SMOKES = dataclasses.replace(LAPTOPS, examples=(3 * 64, 64))


def _laptop() -> Scale:
    return Scale(
        about=f"{LENGTH} tokens, {N_PAIRS} pairs, {VOCAB_SIZE} token ids, width 32, 1,500 steps of batch 64, "
        "two learning rates, one seed.",
        points=LAPTOPS.points(tuple(MODELS), LAPTOP.learning_rates, (0,)),
        config=LAPTOPS.config,
        remarks={
            "gated": "With four heads (2,436 B) Gated DeltaNet and KDA are still on the way after 1,500 steps, and "
            "below GLA of one head, where DeltaNet, which has no decay to learn, has 0.90. With one head all three "
            "have 0.95 or more.",
            "delta-mamba2": "Mamba-2 stays at the guessing line at both rates.",
            "gated-mamba2": "Mamba-2 stays at the guessing line at both rates.",
        },
    )


def _large() -> Scale:
    return Scale(
        about=f"{LENGTH} tokens, {N_PAIRS} pairs, {VOCAB_SIZE} token ids, width 128, 8,000 steps of batch 64, three "
        "learning rates, three seeds.",
        points=LARGE.points(tuple(MODELS), (1e-3, 3e-3, 1e-2), (0, 1, 2)),
        config=LARGE.config,
    )


def _smoke() -> Scale:
    return Scale(
        about="Three steps of two models: that all of it runs.",
        points=SMOKES.points((CONTROL, "KDA"), (1e-2,), (0,)),
        config=SMOKES.config,
    )


def _in_words(found: dict[str, dict[int, float]]) -> str:
    return "; ".join(
        f"{name} {', '.join(f'{score:.2f} ({state:,} B)' for state, score in sorted(scores.items()))}"
        for name, scores in found.items()
    )


def _recalls_more(results: Results, model: str, than: Sequence[str]) -> Finding:
    """Tests whether a model is within `NEAR` of all others with at most the same state, at every size, and somewhere
    better."""
    found = {name: by_state(results, model=name) for name in (model, *than)}
    pairs = [
        (max(own), score)
        for name in than
        for state, score in found[name].items()
        if (own := [mine for bytes_, mine in found[model].items() if bytes_ <= 1.1 * state])
    ]
    if not pairs:
        raise Missing(f"no state of {model} that is at most as large as one of {', '.join(than)}")
    holds = all(own >= other - NEAR for own, other in pairs) and any(own > other + NEAR for own, other in pairs)
    return Finding(holds, _in_words(found))


def _control(results: Results) -> Finding:
    score = results.score(model=CONTROL)
    return Finding(score > SOLVED, f"attention {score:.2f}, guessing {GUESS:.2f}")


def _more_state(results: Results) -> Finding:
    """Tests whether each mixer recalls at least as much with its larger state, and some more."""
    found = {name: by_state(results, model=name) for name in MODELS if name != CONTROL and results.select(model=name)}
    grown = [scores[max(scores)] - scores[min(scores)] for scores in found.values() if len(scores) > 1]
    if not grown:
        raise Missing("no mixer with two states")
    return Finding(min(grown) >= -NEAR and max(grown) > NEAR, _in_words(found))


def draw(results: Results) -> Figure:
    """Draws accuracy over state bytes."""
    title = f"MQAR, {LENGTH} tokens, {N_PAIRS} pairs: recall by the size of the state"
    figure, ((panel,),) = panels(1, 1, size=(7.2, 4.6), title=title)
    for series, name in enumerate(MODELS):
        if not results.select(model=name):
            continue
        found = by_state(results, model=name)
        states = sorted(found)
        marked_line(panel, states, [found[state] for state in states], label=name, series=series)
    panel.axhline(GUESS, color="0.6", linestyle=":", label="guessing a value of the example")
    panel.set(xlabel="state of a sequence, bytes", ylabel="accuracy, best learning rate", ylim=(-0.03, 1.03))
    plain_log_ticks(panel, "x")
    add_legend(figure)
    return figure


def _made_up(point: Any) -> dict[str, Any]:
    """Made-up values: more state recalls more, and delta rules more than sums and decays of the same state."""
    name, size = point["model"], point["size"]
    if name == CONTROL:
        return {"valid/accuracy": 0.99, "state_bytes": 100_000}
    large = size == max(SIZES[name]) if name in SIZES else size == min(HEADS)
    score = 0.3 + 0.3 * large + (0.2 if name in DELTA else 0.0)
    return {"valid/accuracy": score, "state_bytes": 4000 if large else 1000}


def _learned(*names: str) -> Any:
    return tuple(learned(model=name) for name in names)


experiment = Experiment(
    title="Delta rules on MQAR",
    about="Recall of Based, decays (GLA, Mamba-2) and delta rules (DeltaNet, Gated DeltaNet, KDA, RWKV-7) after a "
    "short convolution, against the bytes of the state.",
    scales={"smoke": _smoke, "laptop": _laptop, "large": _large},
    claims=(
        Claim(
            name="control",
            text="Attention solves the task (for us: more than 0.9).",
            quote="attention models can solve it with near-constant dimensionality",
            source="Zoology, Sec. 4.3, Claim 1",
            rule="0.9 is Zoology's line of a solved task.",
            controls=_learned(CONTROL),
            holds=_control,
            broken_by=(Change({"model": CONTROL}, 0.8),),
        ),
        Claim(
            name="delta",
            text="Replacing what a key returns recalls more than adding to it, at equal state: DeltaNet against Based "
            "and GLA (nowhere 0.02 less, somewhere 0.02 more).",
            quote="(in our words) DeltaNet, which replaces the additive update in linear transformers with the "
            "delta rule",
            source="DeltaNet, arXiv 2406.06484, abstract",
            rule="0.02 of accuracy counts as alike; states within 10 % count as equal.",
            controls=_learned("DeltaNet", "Based", "GLA"),
            holds=lambda results: _recalls_more(results, "DeltaNet", ("Based", "GLA")),
            broken_by=(Change({"model": "DeltaNet"}, 0.2),),
        ),
        Claim(
            name="delta-mamba2",
            text="The same against Mamba-2.",
            quote="(in our words) DeltaNet, which replaces the additive update in linear transformers with the "
            "delta rule",
            source="DeltaNet, arXiv 2406.06484, abstract",
            rule="0.02 of accuracy counts as alike; states within 10 % count as equal.",
            controls=_learned("DeltaNet", "Mamba-2"),
            holds=lambda results: _recalls_more(results, "DeltaNet", ("Mamba-2",)),
            broken_by=(Change({"model": "DeltaNet"}, 0.2),),
        ),
        Claim(
            name="gated",
            text="The delta rule with a decay recalls more than the decay alone: Gated DeltaNet against GLA.",
            quote="(in our words) gating enables rapid memory erasure while the delta rule facilitates targeted "
            "updates",
            source="Gated DeltaNet, arXiv 2412.06464, abstract",
            rule="0.02 of accuracy counts as alike; states within 10 % count as equal.",
            controls=_learned("Gated DeltaNet", "GLA"),
            holds=lambda results: _recalls_more(results, "Gated DeltaNet", ("GLA",)),
            broken_by=(Change({"model": "Gated DeltaNet"}, 0.2),),
        ),
        Claim(
            name="gated-mamba2",
            text="The same against Mamba-2.",
            quote="(in our words) Gated DeltaNet consistently surpasses Mamba2 and DeltaNet, in retrieval too",
            source="Gated DeltaNet, arXiv 2412.06464, abstract",
            rule="0.02 of accuracy counts as alike; states within 10 % count as equal.",
            controls=_learned("Gated DeltaNet", "Mamba-2"),
            holds=lambda results: _recalls_more(results, "Gated DeltaNet", ("Mamba-2",)),
            broken_by=(Change({"model": "Gated DeltaNet"}, 0.2),),
        ),
        Claim(
            name="state",
            text="Whatever the mixer, a larger state recalls more (no mixer less, some more).",
            quote="the larger the recurrent state size, the better recall",
            source="Based, Sec. 3",
            rule="0.02 of accuracy counts as alike; mixers that have not learned are left out.",
            controls=(learned(model=tuple(name for name in MODELS if name != CONTROL)),),
            holds=_more_state,
            broken_by=(Change({"model": "KDA"}, lambda at: 0.3 if at["size"] == min(HEADS) else 0.6),),
        ),
    ),
    made_up=_made_up,
    draw=draw,
)
