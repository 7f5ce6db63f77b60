"""Recall and bits per byte by the share of full attention layers in a hybrid.

`jaxzoo sweep --experiment experiments/hybrid_ratio.py --scale laptop --out sweeps/hybrid_ratio`

A short convolution, as in `configs/mqar/zoo.py`, and four layers, of which zero, one, two or four are full attention
and the others a linear mixer; Qwen3-Next has a ratio of 3:1. The same models learn MQAR, and bytes of text (the source
of Python's standard library). Sizes are ours at every scale; the paper (Wang et al. 2025, arXiv 2507.06457) compares
models of 340M and 1.3B parameters.
"""

import dataclasses
import itertools
from typing import Any

from experiments import recall
from experiments.delta_mqar import FEWER, GUESS, LENGTH, N_PAIRS, mqar_task
from experiments.protocol import LAPTOP
from jaxzoo.data.text_data import TextDataConfig
from jaxzoo.mixers import (
    AttentionConfig,
    BaseConvConfig,
    GatedDeltaNetConfig,
    HGRN2Config,
    Mamba2Config,
    MixerConfig,
    TaylorLinearAttentionConfig,
)
from jaxzoo.models import LanguageModelConfig
from jaxzoo.sweep import Change, Claim, Experiment, Finding, Missing, Results, Scale, grid, learned
from jaxzoo.sweep.curves import marked_line
from jaxzoo.sweep.results import SCORE
from jaxzoo.train.config import OptimizerConfig, RunConfig, TrainConfig
from jaxzoo.utils.figure import TITLE_POINTS, Figure, add_legend, panels

N_LAYERS = 4
SHARES = (0, 1, 2, 4)
"""Number of full attention layers, of four."""
BITS = "valid/bits_per_byte"
METRICS = {"recall": SCORE, "text": BITS}


def linear_mixers(heads: int) -> dict[str, MixerConfig]:
    return {
        "Based": TaylorLinearAttentionConfig(n_heads=heads, feature_dim=3),
        "Gated DeltaNet": GatedDeltaNetConfig(n_heads=heads),
        "Mamba-2": Mamba2Config(d_state=16, head_dim=16),
        "HGRN2": HGRN2Config(n_heads=heads),
    }


def hybrid(linear: MixerConfig, n_attention: int, heads: int) -> tuple[MixerConfig, ...]:
    """Returns four layers, with attention at the end of each part: LLLA, LALA, AAAA."""
    attention = AttentionConfig(n_heads=heads, positions="rotary")
    period = N_LAYERS // n_attention if n_attention else N_LAYERS + 1
    return tuple(attention if (i + 1) % period == 0 else linear for i in range(N_LAYERS))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    d_model: int
    heads: int
    recall_steps: int
    """Steps of batch 64 on MQAR."""
    text_steps: int
    """Steps of batch 16 on text."""
    text_length: int
    """Tokens per window of text."""

    def config(self, point: Any) -> RunConfig:
        layers = hybrid(linear_mixers(self.heads)[point["linear"]], point["attention"], self.heads)
        pattern = (BaseConvConfig(n_taps=3), *layers)
        if point["task"] == "recall":
            protocol = dataclasses.replace(LAPTOP, mlp="swiglu", evals=10)
            data = recall.mixture(mqar_task, (*FEWER, N_PAIRS), train=64 * self.recall_steps, valid=512)
            rate, seed = point["learning_rate"], point["seed"]
            run = protocol.run(
                pattern, data, d_model=self.d_model, learning_rate=rate, seed=seed, n_layers=len(pattern)
            )
            return dataclasses.replace(run, model=dataclasses.replace(run.model, mlp_width=2 * self.d_model))
        steps = self.text_steps
        model = LanguageModelConfig(
            pattern=pattern,
            d_model=self.d_model,
            n_layers=len(pattern),
            vocab_size=257,
            max_length=self.text_length,
            mlp_width=2 * self.d_model,
            norm="rms",
        )
        return RunConfig(
            model=model,
            data=TextDataConfig(length=self.text_length, valid_tokens=64 * self.text_length),
            optimizer=OptimizerConfig(learning_rate=point["learning_rate"], b2=0.95, final_fraction=0.1),
            train=TrainConfig(
                steps=steps,
                batch_size=16,
                valid_batch_size=32,
                seed=point["seed"],
                eval_every=steps,
                checkpoint_every=max(1, steps // 2),
                keep_checkpoints=1,
            ),
        )


LAPTOPS = Setting(d_model=32, heads=2, recall_steps=1_500, text_steps=300, text_length=128)
LARGE = Setting(d_model=256, heads=4, recall_steps=8_000, text_steps=20_000, text_length=1024)
SMOKES = dataclasses.replace(LAPTOPS, recall_steps=3, text_steps=2)


def _laptop() -> Scale:
    return Scale(
        about=f"Width 32; MQAR of {LENGTH} tokens and {N_PAIRS} pairs, 1,500 steps of batch 64; text in windows of 128 "
        "bytes, 300 steps of batch 16; one learning rate, one seed.",
        points=grid(task=tuple(METRICS), linear=("Based", "HGRN2"), attention=SHARES, learning_rate=(5e-3,), seed=(0,)),
        config=LAPTOPS.config,
    )


def _large() -> Scale:
    return Scale(
        about=f"Width 256; MQAR of {LENGTH} tokens and {N_PAIRS} pairs, 8,000 steps; text in windows of 1,024 bytes, "
        "20,000 steps; two learning rates, three seeds.",
        points=grid(
            task=tuple(METRICS),
            linear=tuple(linear_mixers(4)),
            attention=SHARES,
            learning_rate=(1e-3, 3e-3),
            seed=(0, 1, 2),
        ),
        config=LARGE.config,
    )


def _smoke() -> Scale:
    return Scale(
        about="A few steps of two models: that all of it runs.",
        points=grid(task=tuple(METRICS), linear=("Based",), attention=(1,), learning_rate=(1e-2,), seed=(0,)),
        config=SMOKES.config,
    )


def score(results: Results, task: str, linear: str, n_attention: int) -> float:
    """Returns accuracy or bits per byte, mean over the seeds at the best learning rate. Raises `Missing`."""
    return results.score(METRICS[task], task=task, linear=linear, attention=n_attention)


def scores(results: Results, task: str, linear: str) -> list[float]:
    """Returns metrics of `task` at `SHARES`. Raises `Missing`."""
    return [score(results, task, linear, share) for share in SHARES]


def _by_mixer(results: Results, task: str) -> dict[str, list[float]]:
    found = {name: scores(results, task, name) for name in results.values("linear", task=task)}
    if not found:
        raise Missing(f"no runs of {task}")
    return found


def _in_words(task: str, found: dict[str, list[float]]) -> str:
    shown = "; ".join(f"{name} {', '.join(f'{value:.2f}' for value in each)}" for name, each in found.items())
    return f"{task} with {', '.join(map(str, SHARES))} of {N_LAYERS} layers of attention: {shown}"


def _attention_recalls(results: Results) -> Finding:
    found = _by_mixer(results, "recall")
    most = max(each[-1] for each in found.values())
    return Finding(most > recall.SOLVED, f"attention alone {most:.2f}, guessing {GUESS:.2f}")


def _recall_grows(results: Results) -> Finding:
    """Tests whether more attention recalls no less anywhere, and 0.02 more somewhere."""
    found = _by_mixer(results, "recall")
    steps = [later - earlier for each in found.values() for earlier, later in itertools.pairwise(each)]
    return Finding(min(steps) > -0.02 and max(steps) > 0.02, _in_words("recall", found))


def _text_is_stable(results: Results) -> Finding:
    """Tests whether bits per byte of all shares are within 5 % of each other, for each mixer."""
    found = _by_mixer(results, "text")
    spread = max(max(each) / min(each) for each in found.values())
    return Finding(spread < 1.05, _in_words("bits per byte", found))


def draw(results: Results) -> Figure:
    """Draws recall and bits per byte over the share of attention layers."""
    title = "Hybrids, a convolution and four layers: recall and text by the share of full attention"
    figure, (axes,) = panels(1, 2, size=(8.6, 4.4), title=title, sharex=True)
    for panel, task in zip(axes, METRICS, strict=True):
        for series, name in enumerate(results.values("linear", task=task)):
            shares = [n for n in SHARES if results.select(task=task, linear=name, attention=n)]
            heights = [score(results, task, name, n) for n in shares]
            marked_line(panel, [n / N_LAYERS for n in shares], heights, label=name, series=series)
        panel.set_title(task, fontsize=TITLE_POINTS)
        panel.set(xlabel="share of full attention layers")
    axes[0].axhline(GUESS, color="0.6", linestyle=":", label="guessing a value of the example")
    axes[0].set(ylabel="accuracy on MQAR", ylim=(-0.03, 1.03))
    axes[1].set(ylabel="bits per byte")
    add_legend(figure)
    return figure


def _made_up(point: Any) -> dict[str, float]:
    """Made-up values: more attention recalls more; bits per byte of text do not depend on the share."""
    if point["task"] == "text":
        return {BITS: 2.0}
    return {SCORE: 0.6 + 0.09 * point["attention"]}


CONTROL = learned(each=("linear",), task="recall", attention=N_LAYERS)
experiment = Experiment(
    title="Full attention in hybrids",
    about="Recall, and bits per byte of text, of models whose layers are a linear mixer and full attention in several "
    "ratios.",
    scales={"smoke": _smoke, "laptop": _laptop, "large": _large},
    claims=(
        Claim(
            name="control",
            text="Full attention alone solves the recall task (for us: more than 0.9).",
            quote="attention models can solve it with near-constant dimensionality",
            source="Zoology, Sec. 4.3, Claim 1",
            rule="0.9 is Zoology's line of a solved task.",
            controls=(CONTROL,),
            holds=_attention_recalls,
            broken_by=(Change({"task": "recall"}, 0.7),),
        ),
        Claim(
            name="recall",
            text="Recall improves with more full attention layers (for us: nowhere 0.02 less, somewhere 0.02 more).",
            quote="(in our words) recall significantly improves with increased full attention layers",
            source="arXiv 2507.06457, abstract",
            rule="0.02 of accuracy counts as alike.",
            controls=(CONTROL,),
            holds=_recall_grows,
            broken_by=(Change({"task": "recall", "attention": 2}, 0.3),),
        ),
        Claim(
            name="text",
            text="Language modeling is stable across the ratios (for us: bits per byte within 5 % of each other).",
            quote="(in our words) language modeling is stable across linear-to-full attention ratios",
            source="arXiv 2507.06457, abstract",
            rule="5 % stand for stable; bits per byte have no guessing line, hence no control.",
            controls=(),
            holds=_text_is_stable,
            broken_by=(Change({"task": "text", "attention": 0}, {BITS: 2.5}),),
        ),
    ),
    made_up=_made_up,
    draw=draw,
)
