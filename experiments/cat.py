"""Shared parts of the CAT figures: models, tasks, and claims on all places of a figure."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxzoo.mixers import ConvolutionAugmentedAttentionConfig
from jaxzoo.models import LanguageModelConfig
from jaxzoo.models.presets import (
    mqar_attention,
    mqar_based,
    mqar_cat,
    mqar_lin_cat,
    mqar_linear_attention,
    mqar_mamba,
)
from jaxzoo.sweep import Finding, Missing, Results
from jaxzoo.tasks import mqar, ngram_recall
from jaxzoo.tasks.base import TaskConfig

CAT, TWO_HEADS, LIN_CAT = "CAT", "CAT, 2 heads", "LinCAT"
FORMS = (CAT, TWO_HEADS)
"""Forms of CAT on MQAR and MQNAR."""
PERFECT = 0.985
"""Accuracy that counts as 100 %: 0.99, at which runs end, to two digits."""
CLOSE = 0.01
"""Largest difference of accuracies that count as equal."""


def _two_heads(*, d_model: int, length: int) -> LanguageModelConfig:
    """CAT with two heads whose filters mix heads, so that each tap has its own projection."""
    mixer = ConvolutionAugmentedAttentionConfig(n_heads=2, n_taps=3, filters="mixing", qkv_bias=True, out_bias=True)
    return dataclasses.replace(mqar_cat(d_model=d_model, length=length), pattern=(mixer,))


MODELS: dict[str, Callable[..., LanguageModelConfig]] = {
    CAT: mqar_cat,
    TWO_HEADS: _two_heads,
    LIN_CAT: mqar_lin_cat,
    "attention": mqar_attention,
    "linear attention": mqar_linear_attention,
    "Based": mqar_based,
    "Mamba": mqar_mamba,
}
"""Models by the name of the curve, as functions of `d_model` and `length`. CAT and LinCAT have one layer, the others
two; the first layer of linear attention and of Based is a short convolution. The paper does not say how many heads CAT
has in its figures. Zoology's models have one head; but then filters have one number per tap, and two 2-grams of the
same letters are hard to tell apart without the normalization of Theorem 1. Both forms are shown, and a claim on CAT
holds if it holds for one of them."""

TASKS: dict[str, Callable[[int, int, int], TaskConfig]] = {
    "MQAR": lambda length, n_pairs, vocab: mqar.paper(length, n_pairs, vocab_size=vocab),
    "MQNAR": lambda length, n_pairs, vocab: ngram_recall.mqnar(length, n_pairs, vocab_size=vocab),
}
"""Tasks by name, as functions of length, number of pairs and vocabulary. Grams of MQNAR have 2 tokens; one query in
five has no match."""

WORDS = {"task": "{}", "d_model": "d = {}", "length": "N = {}", "signals": "{} signals"}


def perfect(results: Results, axes: Sequence[str], forms: Sequence[str] = FORMS, **where: Any) -> Finding:
    """Tests whether a form of CAT has an accuracy of 100 % at each combination of the axes."""
    return _of_a_form(results, _worst, axes, forms, where)


def on_par(results: Results, axes: Sequence[str], forms: Sequence[str] = FORMS, **where: Any) -> Finding:
    """Tests whether no other model is ahead of a form of CAT anywhere."""
    scores = _of_rivals(results, axes, where)
    return _of_a_form(results, lambda own: _ahead(own, scores, somewhere=False), axes, forms, where)


def leads(results: Results, axes: Sequence[str], **where: Any) -> Finding:
    """Tests `on_par`, and that each other model is worse somewhere."""
    scores = _of_rivals(results, axes, where)
    return _of_a_form(results, lambda own: _ahead(own, scores, somewhere=True), axes, FORMS, where)


def accuracies(results: Results, axes: Sequence[str], **where: Any) -> dict[str, float]:
    """Returns the best accuracies, by coordinates in words."""
    best: dict[str, float] = {}
    for row in results.select(**where):
        at = {axis: row["point"][axis] for axis in axes}
        if in_words(at) not in best:
            with contextlib.suppress(Missing):
                best[in_words(at)] = results.score(**{**where, **at})
    return best


def in_words(place: Mapping[str, Any]) -> str:
    """Formats coordinates: `MQAR, d = 32, N = 64`."""
    return ", ".join(WORDS[axis].format(value) for axis, value in place.items())


def _of_a_form(
    results: Results,
    judge: Callable[[dict[str, float]], Finding | None],
    axes: Sequence[str],
    forms: Sequence[str],
    where: Mapping[str, Any],
) -> Finding:
    """Tests whether one of the trained forms of CAT has a property."""
    own = {name: accuracies(results, axes, model=name, **where) for name in forms}
    found = {name: finding for name, scores in own.items() if scores and (finding := judge(scores))}
    if not found:
        raise Missing(f"no finished runs of {forms[0]}, or of what it is compared with, {in_words(where)}".rstrip(", "))
    numbers = ". ".join(f"{name}: {finding.numbers}" for name, finding in found.items())
    return Finding(any(finding.holds for finding in found.values()), numbers)


def _of_rivals(results: Results, axes: Sequence[str], where: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Returns the accuracies of all models other than CAT."""
    rivals = [name for name in results.values("model", **where) if CAT not in name]
    return {name: accuracies(results, axes, model=name, **where) for name in rivals}


def _worst(own: Mapping[str, float]) -> Finding:
    worst = min(own, key=own.__getitem__)
    return Finding(own[worst] >= PERFECT, f"{own[worst]:.2f} at least ({worst})")


def _ahead(own: Mapping[str, float], rivals: Mapping[str, Mapping[str, float]], *, somewhere: bool) -> Finding | None:
    """Returns the leads over each rival at shared coordinates, and whether one of them is clear."""
    holds, numbers = True, []
    for name, scores in rivals.items():
        ahead = {place: own[place] - score for place, score in scores.items() if place in own}
        if ahead:
            low, high = min(ahead, key=ahead.__getitem__), max(ahead, key=ahead.__getitem__)
            holds &= ahead[low] >= -CLOSE and (ahead[high] > CLOSE or not somewhere)
            numbers.append(f"ahead of {name} by {ahead[low]:.2f} ({low}) to {ahead[high]:.2f} ({high})")
    return Finding(holds, "; ".join(numbers)) if numbers else None
