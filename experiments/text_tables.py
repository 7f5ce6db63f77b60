"""Small models of text for the papers' tables: loss on tokens that can be recalled and on others, and questions.

`jaxzoo sweep --experiment experiments/text_tables.py --scale laptop --out sweeps/text_tables`

Rows of Zoology's Tables 2 to 5, of Based's Table 6 and of CAT's Table 2 (`experiments/text_models.py`), and text by
length as in CAT's Figure 1, right. All models have the same width, depth, MLPs, text, steps and learning rate; models
of one table do not have the same number of parameters. One learning rate and one seed rank nothing: there are no
claims, and the verdict of a table is "one seed, not tuned", or "not trained enough to recall" where its baseline's
perplexity on AR hits is more than half of that on equally rare bigrams that are new in their window.

Deviations: sizes and text; CAT's models have the frame of the others (SwiGLU, RMSNorm, whole heads rotate), and in
place of zero-shot tasks they get our questions, the share of the answer's tokens that are the likeliest. At scale
`laptop` the text is the source of the standard library and of `PACKAGES`; nothing in it is like the questions. At scale
`device` it is the files of TEXT_TABLES, a glob or directory; the path is part of the identity of a run.
"""

import dataclasses
import math
import os
from collections.abc import Sequence
from typing import Any, Literal

from experiments.text_models import ATTENTION, CAT, CAT_BARE, FEW, FIRST_BASED, TABLES, TRANSFORMER, Sizes
from experiments.text_slices import QUESTIONS, SLICES, SlicedTextConfig
from jaxzoo.layers.rotary_scaling import RotaryScaling
from jaxzoo.models import LanguageModelConfig
from jaxzoo.sweep import Experiment, Missing, Point, Results, Scale, grid
from jaxzoo.sweep.curves import marked_line
from jaxzoo.sweep.results import BITS, Row
from jaxzoo.train.config import OptimizerConfig, RunConfig, TrainConfig
from jaxzoo.utils.figure import TITLE_POINTS, Figure, add_legend, panels, plain_log_ticks, series_style

ASKED, AT, SLOWED = "asked", "at {}", "YaRN {}"
"""Names of further validations: on questions, on windows of a length, and the same with slower rotary positions."""
BY_LENGTH = (TRANSFORMER, CAT, CAT_BARE)
"""Models of CAT's Figure 1, right; rotary ones are asked with YaRN at longer windows, as there."""
RECALLS = math.log(2)
"""Nats that AR hits must be better than equally rare new bigrams: half of their perplexity."""
ONE_SEED, UNTRAINED = "one seed, not tuned", "not trained enough to recall"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    sizes: Sizes
    d_model: int
    text: SlicedTextConfig
    steps: int
    batch_size: int
    rate: float
    lengths: tuple[int, ...]
    """Lengths of validation windows in CAT's Figure 1, beginning with the trained one."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Dtype of activations; on a CPU small models are faster in float32 (measured)."""

    def config(self, point: Point) -> RunConfig:
        layers, length = self.sizes.layers(str(point["model"])), self.sizes.length
        model = LanguageModelConfig(
            pattern=layers,
            d_model=self.d_model,
            n_layers=len(layers),
            vocab_size=self.text.bpe_size,
            max_length=max(self.lengths) if point["model"] in BY_LENGTH else length,
            mlp_width=2 * self.d_model,
            norm="rms",
            dtype=self.dtype,
        )
        train = TrainConfig(
            steps=self.steps,
            batch_size=self.batch_size,
            valid_batch_size=max(1, 8192 // length),
            seed=int(point["seed"] or 0),
            eval_every=self.steps,
            checkpoint_every=max(1, self.steps // 10),
            keep_checkpoints=1,
        )
        optimizer = OptimizerConfig(learning_rate=self.rate, b2=0.95, final_fraction=0.1, decay_embeddings=False)
        return RunConfig(model=model, data=self._data(), optimizer=optimizer, train=train)

    def also(self, point: Point) -> dict[str, RunConfig]:
        """Returns the questions, and for `BY_LENGTH` windows of all lengths."""
        config = self.config(point)
        found = {ASKED: dataclasses.replace(config, data=self._data(asked=True))}
        for length in self.lengths if point["model"] in BY_LENGTH else ():
            found[AT.format(length)] = self._longer(config, length)
            if length > self.sizes.length and point["model"] != CAT_BARE:
                scaling = RotaryScaling(
                    kind="yarn", factor=length / self.sizes.length, original_length=self.sizes.length
                )
                slower = tuple(dataclasses.replace(mixer, rotary_scaling=scaling) for mixer in config.model.pattern)
                model = dataclasses.replace(config.model, pattern=slower)
                found[SLOWED.format(length)] = self._longer(dataclasses.replace(config, model=model), length)
        return found

    def _longer(self, config: RunConfig, length: int) -> RunConfig:
        """Returns the validation on windows of a length; all lengths score the same targets."""
        tokens = self.text.valid_tokens // max(self.lengths) * max(self.lengths)
        data = self._data(length=length, valid_lengths=(length,), valid_tokens=tokens)
        train = dataclasses.replace(config.train, valid_batch_size=max(1, 8192 // length))
        return dataclasses.replace(config, data=data, train=train)

    def _data(self, **fields: Any) -> SlicedTextConfig:
        return dataclasses.replace(self.text, **{"length": self.sizes.length, **fields})

    def scale(self, about: str, models: Sequence[str]) -> Scale:
        points = grid(model=models, learning_rate=(self.rate,), seed=(0,))
        return Scale(about=about, points=points, config=self.config, also=self.also)


def nats(row: Row, number: int) -> float:
    """Returns the mean nats per token of a slice, by its number. Raises `Missing` if the run diverged."""
    metrics = row["metrics"]
    if f"{BITS}/slice={number}" not in metrics:
        raise Missing(f"diverged: {row['point']['model']}")
    return metrics[f"{BITS}/slice={number}"] * metrics["valid/loss"] / metrics[BITS]


def recalls(row: Row) -> bool:
    """Returns whether AR hits are clearly easier than equally rare bigrams that are new in their window."""
    return nats(row, 1) - nats(row, 0) > RECALLS


def verdict(results: Results, name: str) -> str:
    """Returns the verdict of a table, whose first model is its baseline. Raises `Missing` if that has no run."""
    rows = _rows(results, TABLES[name][:1])
    if not rows:
        raise Missing(f"no finished run of {TABLES[name][0]}")
    return ONE_SEED if recalls(rows[0]) else UNTRAINED


def _rows(results: Results, models: Sequence[str]) -> list[Row]:
    """Returns the finished runs, in the order of the models."""
    found = [row for name in models for row in results.select(model=name)]
    return [row for row in found if f"{BITS}/slice=0" in row["metrics"]]


def _compared(results: Results) -> dict[str, list[Row]]:
    """Returns the finished runs of each table that has more than its baseline."""
    return {name: rows for name, models in TABLES.items() if len(rows := _rows(results, models)) > 1}


def table(results: Results) -> list[list[str]]:
    """Returns all tables: perplexities, training FLOPs and the share of right answers. Raises `Missing`."""
    lines = [["table", "model", "PFLOPs", "perplexity", *SLICES, *QUESTIONS, "recalls", "verdict"]]
    for name, rows in _compared(results).items():
        for row in rows:
            metrics = row["metrics"]
            perplexities = [metrics["valid/loss"], *(nats(row, i) for i in range(len(SLICES)))]
            asked = [metrics.get(f"{ASKED}/valid/accuracy/question={i}") for i in range(len(QUESTIONS))]
            line = [name, row["point"]["model"], f"{row['flops'] / 1e15:.3g}"]
            line += [f"{math.exp(each):.2f}" for each in perplexities]
            line += ["-" if share is None else f"{share:.0%}" for share in asked]
            lines.append([*line, "yes" if recalls(row) else "no", verdict(results, name)])
    return [*lines, *_lengths_in_words(results)]


def _lengths_in_words(results: Results) -> list[list[str]]:
    """Returns lines of CAT's Figure 1, right: perplexity at all lengths in the column of the whole."""
    lines = []
    for curve, found in by_length(results).items():
        words = ", ".join(f"{math.exp(loss):.2f} at {length}" for length, loss in found.items())
        blank = ["-"] * (len(SLICES) + len(QUESTIONS) + 1)
        lines.append(["CAT, Figure 1, right", curve, "-", words, *blank, verdict(results, "CAT, Table 2")])
    return lines


def by_length(results: Results) -> dict[str, dict[int, float]]:
    """Returns nats per token by curve and length of the window; with YaRN beyond the trained length."""
    curves: dict[str, dict[int, float]] = {}
    for row in _rows(results, BY_LENGTH):
        model, metrics = row["point"]["model"], row["metrics"]
        for kind, label in ((AT, model), (SLOWED, f"{model}, YaRN")):
            before, after = kind.format("|").split("|")[0], "/valid/loss"
            names = [name for name in metrics if name.startswith(before) and name.endswith(after)]
            found = {int(name.removeprefix(before).removesuffix(after)): metrics[name] for name in names}
            if found:
                curves[label] = dict(sorted(found.items()))
    return curves


def draw(results: Results) -> Figure:
    """Draws nats by slice and model, a panel per table, and nats by length."""
    shown = _compared(results)
    if not shown:
        raise Missing("no table with two finished runs")
    columns = len(shown) // 2 + 1
    figure, axes = panels(2, columns, size=(4.2 * columns, 8.5), title="The papers' tables of text, by small models")
    places = list(axes.flat)
    for panel, (name, rows) in zip(places, shown.items(), strict=False):
        for series, part in enumerate(SLICES):
            heights = [nats(row, series) for row in rows]
            panel.plot(range(len(rows)), heights, **series_style(series) | {"linestyle": "none"}, label=part)
        names = [row["point"]["model"] for row in rows]
        panel.set_xticks(range(len(rows)), names, rotation=35, ha="right", fontsize=7)
        panel.set_title(f"{name}: {verdict(results, name)}", fontsize=TITLE_POINTS)
    curves = by_length(results)
    for series, (label, found) in enumerate(curves.items()):
        marked_line(places[-1], list(found), list(found.values()), label=label, series=len(SLICES) + series)
    plain_log_ticks(places[-1], "x", sorted({length for found in curves.values() for length in found}))
    for panel in places[len(shown) : -1]:
        panel.set_visible(False)
    places[-1].set_title("CAT, Figure 1, right: length of the window", fontsize=TITLE_POINTS)
    for panel in axes[:, 0]:
        panel.set(ylabel="nats per token")
    add_legend(figure)
    return figure


def _made_up(point: Point) -> dict[str, float]:
    """Made-up values of a model that recalls."""
    slices = {f"{BITS}/slice={i}": value for i, value in enumerate((2.0, 4.0, 1.5))}
    return {BITS: 2.0, "valid/loss": 2.0 * math.log(2), **slices}


MODELS = tuple(dict.fromkeys(name for names in TABLES.values() for name in names))
PACKAGES = ("jax", "jaxlib", "scipy", "numpy", "flax", "optax", "orbax-checkpoint", "grain", "matplotlib")
"""Packages that an installation of jaxzoo with its extra `dev` has."""
LAPTOPS = Setting(
    sizes=Sizes(n_layers=4, n_heads=2, length=256, window=32, feature_dim=16, n_taps=9),
    d_model=128,
    text=SlicedTextConfig(packages=PACKAGES, bpe_size=2048, rare=10, valid_tokens=262_144),
    steps=2_500,
    batch_size=16,
    rate=4e-3,
    lengths=(256, 1024),
    dtype="float32",
)
DEVICES = Setting(
    sizes=Sizes(n_layers=12, n_heads=8, length=1024, window=64, feature_dim=16, n_taps=21, init_std=0.02),
    d_model=512,
    text=SlicedTextConfig(
        path=os.environ.get("TEXT_TABLES", "corpora/text"), bpe_size=16_384, rare=100, valid_tokens=524_288
    ),
    steps=2_500,
    batch_size=32,
    rate=1e-3,
    lengths=(1024, 2048, 4096, 8192),
)
SMOKES = Setting(
    sizes=Sizes(n_layers=2, n_heads=2, length=128, window=16, feature_dim=8, n_taps=5),
    d_model=16,
    text=SlicedTextConfig(records=60, bpe_size=300, rare=30, valid_tokens=1024),
    steps=2,
    batch_size=2,
    rate=5e-3,
    lengths=(128, 256),
    dtype="float32",
)


def _laptop() -> Scale:
    about = (
        "0.7 to 1 million parameters of width 128 in four layers; 2,500 steps of 16 windows of 256 tokens (10 "
        "million) of source code, a BPE of 2,048 ids; rare: at most 10 times in 20 million tokens; one learning "
        "rate, one seed; Zoology's Table 2 and some models of the others."
    )
    return LAPTOPS.scale(about, FEW)


def _device() -> Scale:
    about = (
        "31 to 44 million parameters of width 512 in twelve layers; 2,500 steps of 32 windows of 1,024 tokens (82 "
        "million) of files, a BPE of 16,384 ids; rare: at most 100 times in training; one learning rate, one seed."
    )
    return DEVICES.scale(about, MODELS)


def _smoke() -> Scale:
    return SMOKES.scale("A few steps of three models: that all of it runs.", (ATTENTION, FIRST_BASED, TRANSFORMER))


experiment = Experiment(
    title="Tables of text, small models",
    about="Perplexity of small models in the papers' tables of text: on AR hits, on equally rare bigrams that are new "
    "in their window, and on other tokens; training FLOPs; and the share of tokens of answers to questions.",
    scales={"smoke": _smoke, "laptop": _laptop, "device": _device},
    claims=(),
    made_up=_made_up,
    draw=draw,
    table=table,
    missing=("the papers' sizes, data, several seeds and learning rates; CAT's zero-shot tasks",),
)
