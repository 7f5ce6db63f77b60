"""Accuracy on MQAR over the model's width, one panel per length: Zoology, Figure 2, top, with RetNet and LongConv.

`jaxzoo sweep --experiment experiments/zoology_figure2.py --scale laptop --out sweeps/zoology_figure2`

The paper prints no number of pairs; `jaxzoo.tasks.presets` has ours. A layer of RWKV-4 is a time mix and the MLP of all
models, as in the released code, without a channel mix, whose token shift would give RWKV-4 alone a second look back.
RetNet and LongConv, which the paper evaluates in other figures, are the layers of their own papers.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

from experiments import recall
from experiments.protocol import LAPTOP, LUCKY_SEEDS, OVERNIGHT, PAPER, RELEASE, SEEDS, TUNED, Protocol
from jaxzoo.mixers import LongConvConfig, RetNetConfig
from jaxzoo.models import LanguageModelConfig
from jaxzoo.models.presets import (
    Variant,
    mqar_attention,
    mqar_base_conv,
    mqar_based,
    mqar_h3,
    mqar_hybrid_attention,
    mqar_hyena,
    mqar_mamba,
    mqar_rwkv,
)
from jaxzoo.models.presets.preset_parts import mqar_model
from jaxzoo.sweep import Change, Claim, Experiment, Finding, Missing, Point, Results, Scale, grid, learned, solved
from jaxzoo.tasks import mqar, presets
from jaxzoo.tasks.recall_data import RecallDataConfig
from jaxzoo.train.config import RunConfig
from jaxzoo.utils.figure import Figure

TITLE = "Zoology, Figure 2 (top)"
ATTENTION = "attention"
HYBRID = "hybrid attention"
GATED = ("BaseConv", "Hyena", "H3", "RWKV-4")
"""Gated convolutions in the sense of the paper."""
PERFECT = 0.985
"""Accuracy that counts as perfect: 0.99, at which runs end, to two digits."""


def _ret_net(*, d_model: int, length: int, variant: Variant = "paper") -> LanguageModelConfig:
    return mqar_model((RetNetConfig(),), d_model, length, variant)


def _long_conv(*, d_model: int, length: int, variant: Variant = "paper") -> LanguageModelConfig:
    return mqar_model((LongConvConfig(),), d_model, length, variant)


MODELS: dict[str, Callable[..., LanguageModelConfig]] = {
    ATTENTION: mqar_attention,
    "BaseConv": mqar_base_conv,
    "Hyena": mqar_hyena,
    "H3": mqar_h3,
    "RWKV-4": mqar_rwkv,
    "RetNet": _ret_net,
    "LongConv": _long_conv,
    "Based": lambda *, variant, **sizes: mqar_based(**sizes, feature_dim=8, variant=variant),
    "Mamba": lambda *, variant, **sizes: mqar_mamba(**sizes),
    HYBRID: lambda *, variant, **sizes: mqar_hybrid_attention(**sizes, variant=variant),
}
"""Models by the name of the curve."""
OF_THE_PAPER = (ATTENTION, *GATED, "RetNet", "LongConv")
OF_THE_RELEASE = (ATTENTION, *GATED, "Based", "Mamba")
OVERNIGHT_MODELS = (ATTENTION, *GATED, "Based", HYBRID)
OVERNIGHT_WIDTHS = {8: (8, 16), 16: (8, 16, 32, 64), 32: (16, 32, 64)}
"""Widths by length, from half the length to two or four times the length."""
OVERNIGHT_STEPS = 9_000
TUNED_STEPS = 10_000


def laptop_data(length: int) -> RecallDataConfig:
    """1,500 training batches of 64. With N / 8 = 2 pairs at the shortest length even attention does not learn so
    soon."""
    return recall.data(mqar.paper(length, max(4, length // 8), vocab_size=128), train=96_000, valid=512)


def overnight_data(length: int) -> RecallDataConfig:
    """9,000 training batches of 64; a pair for every four tokens, the most that fit, at every length."""
    task = mqar.paper(length, length // 4, vocab_size=128)
    return recall.data(task, train=64 * OVERNIGHT_STEPS, valid=512)


def smoke_data(length: int) -> RecallDataConfig:
    return recall.data(mqar.paper(length, length // 8, vocab_size=64), train=192, valid=64)


def _runs(
    protocol: Protocol, data: Callable[[int], RecallDataConfig], variant: Variant = "paper"
) -> Callable[[Point], RunConfig]:
    """Returns the run of a point, for a protocol, the data of a length, and a set of models."""

    def run(point: Any) -> RunConfig:
        model = MODELS[point["model"]](d_model=point["d_model"], length=point["length"], variant=variant)
        return protocol.run_preset(
            model, data(point["length"]), learning_rate=point["learning_rate"], seed=point.get("seed", 0)
        )

    return run


def _paper() -> Scale:
    return Scale(
        about="As in App. E.2 and F.1. Not printed there, and ours: 4, 8, 16 and 64 pairs at N = 64, 128, 256 and 512, "
        "as in the released code.",
        points=grid(
            length=(64, 128, 256, 512),
            d_model=(64, 128, 256, 512),
            model=OF_THE_PAPER,
            learning_rate=PAPER.learning_rates,
        ),
        config=_runs(PAPER, presets.zoology_figure2),
    )


def _release() -> Scale:
    return Scale(
        about="The released configurations: no MLP, early stop, N up to 256, keys a power law of 0.01 away, distinct "
        "values, and Based and Mamba in place of RetNet and LongConv. There attention has dropout, here it has none.",
        points=grid(
            length=(64, 128, 256),
            d_model=(64, 128, 256, 512),
            model=OF_THE_RELEASE,
            learning_rate=RELEASE.learning_rates,
        ),
        config=_runs(RELEASE, lambda n: recall.data(mqar.release(n, n // 16), train=100_000, valid=3_000), "release"),
    )


def _laptop() -> Scale:
    return Scale(
        about="N = 16, 32 and 64 with 4, 4 and 8 pairs and 128 token ids, where the paper has 64 to 512 and 8,192; "
        "1,500 steps of batch 64, widths of 16 to 128, three learning rates, and no MLPs.",
        points=grid(
            length=(16, 32, 64),
            d_model=(16, 32, 64, 128),
            model=OF_THE_PAPER,
            learning_rate=(1e-3, *LAPTOP.learning_rates),  # at width 128 attention fails with the others
        ),
        config=_runs(LAPTOP, laptop_data),
    )


def _overnight() -> Scale:
    return Scale(
        about="N = 8, 16 and 32 with N / 4 pairs and 128 token ids, where the paper has 64 to 512 and 8,192; 9,000 "
        "steps of batch 64 at most, widths from N / 2 to 2 N, or 4 N, two learning rates, three seeds, and no MLPs.",
        points=[
            point
            for length, widths in OVERNIGHT_WIDTHS.items()
            for point in grid(
                length=(length,),
                d_model=widths,
                model=OVERNIGHT_MODELS,
                learning_rate=LAPTOP.learning_rates,
                seed=SEEDS,
            )
        ],
        config=_runs(OVERNIGHT, overnight_data),
        all_seeds=2,
    )


def tuned_data(length: int) -> RecallDataConfig:
    """The data of the released code (a pair for every 16 tokens, 8,192 token ids), and 10,000 batches of 64."""
    return recall.data(mqar.release(length, length // 16), train=64 * TUNED_STEPS, valid=1_000)


def _tuned() -> Scale:
    lucky = ("Mamba", "H3", "RWKV-4")
    models = (*OF_THE_RELEASE, "RetNet")
    sizes: dict[str, Any] = {"length": (64,), "d_model": (16, 32, 64, 128), "learning_rate": TUNED.learning_rates}
    return Scale(
        about="The released panel N = 64 with its data (4 pairs, 8,192 token ids), trained by our recipe: 10,000 steps "
        "of batch 64 at most, where the release has 12,500 of 512; four learning rates with one seed, the best with "
        f"three, of {', '.join(lucky)} with five.",
        points=[
            *grid(model=tuple(name for name in models if name not in lucky), **sizes, seed=SEEDS),
            *grid(model=lucky, **sizes, seed=LUCKY_SEEDS),
        ],
        config=_runs(TUNED, tuned_data, "release"),
        all_seeds=1,
    )


def _smoke() -> Scale:
    return Scale(
        about="Three steps of two models: that all of it runs.",
        points=grid(length=(16,), d_model=(16,), model=(ATTENTION, "BaseConv"), learning_rate=(1e-2,)),
        config=_runs(LAPTOP, smoke_data),
    )


def _not_below_the_length(results: Results) -> Finding:
    rows = [row for row in results.select(model=GATED) if row["point"]["d_model"] < row["point"]["length"]]
    if not rows:
        raise Missing("no run of a gated convolution with d < N")
    best = Results(rows).seeds()
    score, point = best.mean, best.rows[0]["point"]
    where = f"{point['model']} with d = {point['d_model']} at N = {point['length']}"
    return Finding(score <= recall.SOLVED, f"{score:.2f} at most where d < N: {where}")


def _grows_with_the_length(results: Results) -> Finding:
    """Compares each length with the next, unless both have the smallest tried width, or none suffices."""
    holds, seen = True, []
    lengths = recall.at_least_two(results, "length", model=GATED)
    for name in results.values("model", model=GATED):
        widths = [recall.least_width(results, model=name, length=n) for n in lengths]
        smallest = min(results.values("d_model", model=name))
        for (n, width), (longer, wider) in itertools.pairwise(zip(lengths, widths, strict=True)):
            both = (smallest, smallest), (math.inf, math.inf)
            if (width, wider) not in both:
                holds &= wider >= width * longer / n
                seen.append(name)
    if not seen:
        raise Missing(f"no gated convolution exceeds {recall.SOLVED:g} at one length and not at another")
    numbers = recall.least_widths_in_words(results, list(dict.fromkeys(seen)), "length", lengths)
    return Finding(holds, numbers)


def draw(results: Results) -> Figure:
    """Draws one panel per length."""
    models = tuple(name for name in MODELS if results.select(model=name))
    return recall.draw_over_width(results, title=f"{TITLE}: attention and gated convolutions", models=(models,))


def _made_up(point: Any) -> float:
    """Values of the paper's figure: a gated convolution solves the task if it is as wide as the sequence is long."""
    return 0.5 if point["model"] in GATED and point["d_model"] < point["length"] else 0.995


def _is_gated(point: Any) -> bool:
    return point["model"] in GATED


SOURCE = "Zoology, Sec. 4.3, Claim 1"
CONSTANT = "attention solves MQAR perfectly at all sequence lengths using a constant model dimension of 64"
experiment = Experiment(
    title=TITLE,
    about="Accuracy on MQAR over the model's width at several lengths: attention, gated convolutions, and beside them "
    "RetNet and a long convolution without gate.",
    scales={
        "smoke": _smoke,
        "laptop": _laptop,
        "overnight": _overnight,
        "tuned": _tuned,
        "paper": _paper,
        "release": _release,
    },
    claims=(
        Claim(
            name="attention-constant",
            text="One width below the longest length is enough for attention at all lengths (accuracy above 0.9).",
            quote="attention models can solve it with near-constant dimensionality",
            source=SOURCE,
            rule="0.9 is the paper's line; a width as large as the longest length would be no evidence.",
            controls=(learned(model=ATTENTION),),
            holds=lambda results: recall.constant_width(results, model=ATTENTION),
            broken_by=(Change(lambda at: at["model"] == ATTENTION and at["d_model"] < at["length"], 0.5),),
        ),
        Claim(
            name="attention-perfect",
            text="The same with an accuracy of 0.985.",
            quote=CONSTANT,
            source=SOURCE,
            rule="Runs end at 0.99, which is 0.985 to two digits.",
            controls=(learned(model=ATTENTION),),
            holds=lambda results: recall.constant_width(results, model=ATTENTION, above=PERFECT),
            broken_by=(Change({"model": ATTENTION}, 0.95),),
        ),
        Claim(
            name="d-below-N",
            text="No gated convolution with d < N exceeds an accuracy of 0.9.",
            quote="In contrast, MQAR does not achieve accuracy > 0.9 unless d >= N.",
            source=SOURCE,
            rule="The paper's own numbers; only models that exceed 0.9 somewhere count, so that more width is "
            "seen to help.",
            controls=(solved(model=GATED),),
            holds=_not_below_the_length,
            broken_by=(Change(lambda at: _is_gated(at) and at["d_model"] < at["length"], 0.95),),
        ),
        Claim(
            name="linear",
            text="The least width for 0.9 grows at least as fast as the length, from each length to the next.",
            quote="Gated-convolution models with two layers require model dimension to scale at least linearly in "
            "sequence length in order to solve associative recall",
            source=SOURCE,
            rule="No tolerance: widths are powers of two, as lengths are; a length that no width solves counts "
            "as wider.",
            controls=(solved(model=GATED),),
            holds=_grows_with_the_length,
            broken_by=(Change(_is_gated, lambda at: 0.995 if at["d_model"] >= 32 else 0.5),),
        ),
        Claim(
            name="wider-than-attention",
            text="Attention needs no more width than each gated convolution at any length, and less at the longest.",
            quote="We observe the gated convolutions require larger dimensionality than attention to solve the task.",
            source="Zoology, caption of Figure 2",
            rule="Ties at short lengths are allowed, where the smallest width of the grid may be enough for both.",
            controls=(solved(model=ATTENTION), solved(model=GATED)),
            holds=lambda results: recall.needs_less(results, model=ATTENTION, than=GATED),
            broken_by=(Change(_is_gated, 0.995),),
        ),
    ),
    made_up=_made_up,
    draw=draw,
)
