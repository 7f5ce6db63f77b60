"""Shared parts of Based's recall figures: data, protocols, and the models by their names in the figures."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.protocol import LAPTOP, OVERNIGHT, PAPER, RELEASE, SEEDS, Protocol
from jaxzoo.mixers.linear.feature_map import FeatureMap
from jaxzoo.models import LanguageModelConfig
from jaxzoo.models.presets import (
    mqar_based,
    mqar_big_bird,
    mqar_h3,
    mqar_hybrid_attention,
    mqar_hyena,
    mqar_linear_attention,
    mqar_mamba,
    mqar_nystromformer,
    mqar_scatter_brain,
    mqar_sliding_window,
)
from jaxzoo.models.presets.preset_parts import Variant
from jaxzoo.sweep import Point, Scale, Value, grid
from jaxzoo.tasks import mqar
from jaxzoo.tasks.presets import based_figure2
from jaxzoo.tasks.recall_data import Examples, RecallDataConfig
from jaxzoo.train.config import RunConfig

Model = Callable[[dict[str, Any], Variant], LanguageModelConfig]
Sizes = Mapping[str, Mapping[str, Sequence[Value]]]
"""Axes that set the size of each model."""

_BASED: dict[str, Any] = {
    "learning_rates": (1e-3, 10**-2.5, 1e-2, 10**-1.5),
    "epochs": 32,
    "batch_size": lambda length, d_model: 256,
    "stop_at_accuracy": 0.99,
}
BASED_RELEASE = dataclasses.replace(RELEASE, **_BASED)
"""The released configurations of Based's figures (HazyResearch/zoology): four rates, 32 epochs, batches of 256, early
stop; otherwise as Zoology's."""
BASED_PAPER = dataclasses.replace(PAPER, **_BASED)
"""Based prints no protocol. This is Zoology's (App. E.2: MLPs, warmup) with rates, epochs, batches and early stop of
the release."""
SMOKE = dataclasses.replace(LAPTOP, learning_rates=(1e-2,), epochs=0.5, batch_size=lambda length, d_model: 16, evals=1)


def mixture(
    train: tuple[tuple[int, int, int], ...], valid: tuple[tuple[int, int], ...], *, vocab_size: int, n_valid: int
) -> RecallDataConfig:
    """Makes recall data with fillers from the whole vocabulary, as in Based's figures. `train` holds length, pairs and
    number of examples of each part; `valid` length and pairs of each validation set."""

    def examples(length: int, n_pairs: int, n_examples: int) -> Examples:
        return Examples(task=mqar.release(length, n_pairs, vocab_size=vocab_size, fillers="any"), n_examples=n_examples)

    return RecallDataConfig(
        train=tuple(examples(*part) for part in train), valid=tuple(examples(*part, n_valid) for part in valid)
    )


PAPER_DATA = mixture(
    tuple((256, pairs, 36_000) for pairs in (4, 8, 16, 32, 64)),
    tuple((1024, pairs) for pairs in (4, 8, 16, 32, 64, 128, 256)),
    vocab_size=8192,
    n_valid=1_000,
)
"""Sec. 3.1: 256 tokens with 4 to 64 pairs, validation at 1,024 tokens with 4 to 256 pairs. Not printed, and as in the
release: doublings between these ends, 180,000 examples, 1,000 per validation set, vocabulary, task."""
RELEASE_DATA = based_figure2()
LAPTOP_DATA = mixture(
    ((16, 2, 80_000), (32, 8, 80_000)), ((16, 2), (32, 8), (64, 16), (128, 32)), vocab_size=256, n_valid=250
)
"""Mixture for two cores. In probes with a long part alone Mamba of width 32 stayed near chance in so few steps."""
LAPTOP_ABOUT = (
    "Trained on 16 tokens with 2 pairs and 32 with 8, in equal parts; asked at these, 64 with 16, and 128 with 32; "
    "vocabulary 256, widths of 16 to 64, 2500 steps of batch 64, two rates, no MLP, one seed. The paper: 1,024 tokens "
    "with 256 pairs at most, vocabulary 8192, widths of 48 to 256, four rates."
)
OVERNIGHT_PROTOCOL = dataclasses.replace(OVERNIGHT, learning_rates=LAPTOP.learning_rates, evals=20)
"""Two rates, since these figures have many models."""
OVERNIGHT_DATA = mixture(
    ((16, 2, 320_000), (32, 8, 320_000)), ((16, 2), (32, 8), (64, 16), (128, 32)), vocab_size=256, n_valid=250
)
"""`LAPTOP_DATA` with four times the examples, each seen once."""
OVERNIGHT_ABOUT = (
    "Trained on 16 tokens with 2 pairs and 32 with 8, in equal parts; asked at these, 64 with 16, and 128 with 32; "
    "vocabulary 256, widths of 16 to 64, 10,000 steps of batch 64 at most, two rates, three seeds, no MLP. The paper: "
    "1,024 tokens with 256 pairs at most, vocabulary 8192, widths of 48 to 256, four rates."
)
SMOKE_DATA = mixture(((16, 2, 64),), ((32, 8),), vocab_size=64, n_valid=16)


def points(sizes: Sizes, learning_rates: Sequence[float], seeds: Sequence[int] = ()) -> list[Point]:
    """Returns the grid of each model at each rate, with the axes of all models at every point (None if it has no such
    axis). Several seeds are an axis as well."""
    absent = {axis: (None,) for axes in sizes.values() for axis in axes}
    seeded = {"seed": seeds} if seeds else {}
    return [
        point
        for model, axes in sizes.items()
        for point in grid(**{"model": (model,), **absent, **axes, "learning_rate": learning_rates, **seeded})
    ]


def run(point: Point, protocol: Protocol, data: RecallDataConfig, *, variant: Variant = "paper") -> RunConfig:
    """Returns the run of a point with the axes `model`, `d_model`, `learning_rate`, and those that size the model's
    mixer."""
    at: dict[str, Any] = dict(point)
    model = MODELS[at["model"]](at, variant)
    return protocol.run_preset(model, data, learning_rate=at["learning_rate"], seed=at.get("seed", 0))


def _sized(preset: Callable[..., LanguageModelConfig], *axes: str) -> Model:
    """Makes a preset that takes the width and some other axes of a point."""

    def model(at: dict[str, Any], variant: Variant) -> LanguageModelConfig:
        return preset(**{axis: at[axis] for axis in ("d_model", *axes)}, variant=variant)

    return model


def _linear(feature_map: FeatureMap) -> Model:
    """Linear attention whose queries and keys have as many channels as the model."""

    def model(at: dict[str, Any], variant: Variant) -> LanguageModelConfig:
        return mqar_linear_attention(d_model=at["d_model"], feature_map=feature_map, variant=variant)

    return model


FEATURE_MAPS: Mapping[str, Model] = {
    "Taylor": _sized(mqar_based, "feature_dim"),
    "PosELU": _linear("pos_elu"),
    "ReLU": _linear("relu"),
    "Square": _linear("square"),
    "Identity": _linear("identity"),
    "CosFormer": _linear("cosformer"),
    "Performer": _linear("performer"),
}
"""Based with these feature maps, by their names in Figure 3."""
MODELS: Mapping[str, Model] = {
    **FEATURE_MAPS,
    "Attention": _sized(mqar_hybrid_attention),
    "Sliding window": _sized(mqar_sliding_window, "window"),
    "Mamba": lambda at, variant: mqar_mamba(d_model=at["d_model"], d_state=at["d_state"]),
    "H3": lambda at, variant: mqar_h3(d_model=at["d_model"], d_state=at["d_model"] // 4, variant=variant),
    "Hyena": _sized(mqar_hyena),
    "Based": _sized(mqar_based, "feature_dim"),
    "ScatterBrain": _sized(mqar_scatter_brain, "window", "n_features"),
    "BigBird": _sized(mqar_big_bird, "block_size"),
    # The paper's form sees the future, which would make the comparison with causal models unfair.
    "NystromFormer": lambda at, variant: mqar_nystromformer(
        d_model=at["d_model"], n_landmarks=at["n_landmarks"], variant="release"
    ),
}
"""Models by their names in the figures. Most are a gated convolution of three taps and the named mixer; Mamba, H3 and
Hyena have two layers of the mixer. H3 has a state of size d / 4."""


SETTINGS: dict[str, tuple[Protocol, RecallDataConfig, Variant]] = {
    "smoke": (SMOKE, SMOKE_DATA, "paper"),
    "laptop": (LAPTOP, LAPTOP_DATA, "paper"),
    "overnight": (OVERNIGHT_PROTOCOL, OVERNIGHT_DATA, "paper"),
    "paper": (BASED_PAPER, PAPER_DATA, "paper"),
    "release": (BASED_RELEASE, RELEASE_DATA, "release"),
}
"""Protocol, data and variant of the models of each scale."""


def scales(
    sizes: Mapping[str, Sizes],
    about: Mapping[str, str],
    *,
    keep: Callable[[Point], bool] = lambda point: True,
) -> dict[str, Callable[[], Scale]]:
    """Returns the scales of a figure. `sizes` gives the models' sizes by scale, `about` the description of `paper` and
    `release`, `keep` the points of the grids that run."""
    told = {"smoke": "Two models of width 16, a few steps: nothing can be learned.", "laptop": LAPTOP_ABOUT, **about}
    told.setdefault("overnight", OVERNIGHT_ABOUT)
    return {name: functools.partial(_scale, name, sizes[name], told[name], keep) for name in sizes}


def _scale(name: str, sizes: Sizes, about: str, keep: Callable[[Point], bool]) -> Scale:
    protocol, data, variant = SETTINGS[name]
    seeds = SEEDS if name == "overnight" else ()
    return Scale(
        about=about,
        points=[point for point in points(sizes, protocol.learning_rates, seeds) if keep(point)],
        all_seeds=2 if seeds else None,
        config=lambda point: run(point, protocol, data, variant=variant),
    )
