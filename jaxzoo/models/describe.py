"""A language model as a table: its layers, and what each costs in parameters, state and FLOPs."""

import dataclasses
import textwrap
from collections.abc import Iterator
from typing import Any

from jaxzoo.mixers.base import MixerConfig, state_bytes as mixer_state_bytes
from jaxzoo.models.accounting import (
    abstract_model,
    count_parameters,
    flops_per_token,
    head_flops,
    layer_flops_per_token,
    outer_flops,
    papers_flops_per_token,
    state_bytes,
)
from jaxzoo.models.language_model import LanguageModel
from jaxzoo.models.layout import Fold
from jaxzoo.models.model_config import LanguageModelConfig

WIDTHS = (48, 16, 16, 16)
"""Columns of the table: name, parameters, state bytes, FLOPs per token; 99 characters with the gaps."""


def describe(config: LanguageModelConfig, length: int | None = None) -> str:
    """Returns the model as a plain-text table of at most 100 columns, without allocating arrays: a row per block of
    each scanned period (all repeats: mixer, norms and MLP), embedding, final norm, head, totals, and the papers'
    formulas. FLOPs and states are for `length` tokens; None: `max_length`. Raises `ValueError` if `length` is not
    positive."""
    length = config.max_length if length is None else length
    if length < 1:
        raise ValueError(f"describe: length={length} must be positive")
    model = abstract_model(config)
    mlp = f"{config.mlp} {config.hidden_width}" if config.hidden_width else f"{config.mlp} as MLP"
    mlp += " in parallel" if config.parallel_residual else ""
    after = " after attention" if config.attention_post_norm else ""
    lines = [
        f"{config.n_layers} layers of width {config.d_model}, {mlp}, {config.norm} norm{after}, "
        f"{config.vocab_size} tokens ({config.padded_vocab_size} rows), {config.dtype}",
        f"State of one sequence and forward FLOPs per token at length {length}.",
        "",
        _row("layers", "parameters", "state bytes", "FLOPs/token"),
        "-" * (sum(WIDTHS) + len(WIDTHS) - 1),
        *_layer_lines(config, model, length),
        *_total_lines(config, model, length),
        *_formula_lines(config, length),
    ]
    return "\n".join(line.rstrip() for line in lines)


def _layer_lines(config: LanguageModelConfig, model: LanguageModel, length: int) -> Iterator[str]:
    start = 0
    for fold, stack in zip(config.folds, model.stacks, strict=True):
        width = len(fold.period)
        if fold.repeats > 1:
            layers = f"{width} layer" + "s" * (width > 1)
            yield f"{_span(start, width * fold.repeats)}: {layers} scanned {fold.repeats} times"
        for i, (mixer, block) in enumerate(zip(fold.period, stack.blocks, strict=True)):
            state = "no stream"
            if mixer.capabilities.streams:
                bytes_of_one = mixer_state_bytes(block.mixer, capacity=length, dtype=config.compute_dtype)
                state = f"{fold.repeats * bytes_of_one:,}"
            flops = fold.repeats * layer_flops_per_token(config, mixer, length)
            indent = "  " * (fold.repeats > 1)
            name, *rest = textwrap.wrap(
                f"{_places(start + i, fold)} {_settings(mixer)}",
                WIDTHS[0],
                initial_indent=indent,
                subsequent_indent=indent + " " * 4,
                break_on_hyphens=False,
            )
            yield _row(name, f"{count_parameters(block):,}", state, f"{flops:,.0f}")
            yield from rest
        start += width * fold.repeats


def _span(start: int, count: int) -> str:
    return f"{start}-{start + count - 1}" if count > 1 else f"{start}"


def _places(first: int, fold: Fold) -> str:
    """Formats the layers of one block of a period: `3`, `25-26`, `1,6` or `1,6..21`."""
    width, repeats = len(fold.period), fold.repeats
    if repeats == 1 or width == 1:
        return _span(first, repeats)
    last = first + width * (repeats - 1)
    return f"{first},{first + width}" + (f"..{last}" if repeats > 2 else "")


def _settings(mixer: MixerConfig) -> str:
    """Formats the mixer's name and its fields: counts, enabled choices, changed numbers."""
    shared = {field.name for field in dataclasses.fields(MixerConfig)}
    own = [word for field in dataclasses.fields(mixer) if field.name not in shared for word in _words(mixer, field)]
    return " ".join([type(mixer).__name__.removesuffix("Config"), *own])


def _words(config: Any, field: dataclasses.Field, prefix: str = "") -> Iterator[str]:
    """Formats `name=value` of a field that is shown; of a nested config, the changed fields."""
    value, name = getattr(config, field.name), prefix + field.name
    if dataclasses.is_dataclass(value):
        for inner in dataclasses.fields(value):
            if getattr(value, inner.name) != inner.default:
                yield from _words(value, inner, f"{name}.")
    elif value != field.default if isinstance(value, bool | float) else value not in (0, None, "none"):
        yield f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"


def _row(*cells: str) -> str:
    first, *numbers = cells
    columns = [f"{first:<{WIDTHS[0]}}"]
    columns += [f"{cell:>{width}}" for cell, width in zip(numbers, WIDTHS[1:], strict=True)]
    return " ".join(columns)


def _total_lines(config: LanguageModelConfig, model: LanguageModel, length: int) -> Iterator[str]:
    yield "-" * (sum(WIDTHS) + len(WIDTHS) - 1)
    layers = count_parameters(model.stacks)
    outer, logits = outer_flops(config), head_flops(config)
    yield _row("all layers", f"{layers:,}", "", f"{flops_per_token(config, length) - outer - logits:,.0f}")
    head = 0 if config.tie_embeddings else config.padded_vocab_size * config.d_model
    norm = count_parameters(model.final_norm)
    decoder = count_parameters(model.decoder) if config.decode_last else 0
    embedding = count_parameters(model) - layers - norm - head - decoder
    name = "pair projections, frozen tables" if config.pair_values else "embedding"
    name += ", learned positions" if config.max_positions is not None else ""
    yield _row(name, f"{embedding:,}", "", f"{outer:,.0f}" if config.pair_values else "0")
    if config.decode_last:
        yield _row("decoder of the last token", f"{decoder:,}", "", f"{outer:,.0f}")
    yield _row("final norm", f"{norm:,}", "", "")
    kind = " (frozen values)" if config.pair_values else " (tied)" if config.tie_embeddings else ""
    yield _row(f"head{kind}", f"{head:,}", "", f"{logits:,.0f}")
    state = f"{state_bytes(model, length):,}" if config.streams else "no stream"
    yield _row("model", f"{count_parameters(model):,}", state, f"{flops_per_token(config, length):,.0f}")


def _formula_lines(config: LanguageModelConfig, length: int) -> Iterator[str]:
    """Returns lines of the papers' own numbers, which count other things than ours; see `accounting`."""
    sizes = [layer.papers_state_size(length) for layer in config.layers]
    known = [size for size in sizes if size is not None]
    yield ""
    if known:
        yield (
            f"state by Based, App. E.2: {sum(known):,} elements in {len(known)} of {len(sizes)} layers "
            "(it has no formula for others)"
        )
    flops = papers_flops_per_token(config, length)
    if flops is None:
        yield "FLOPs/token by Zoology, App. C.2: no formula for this kind of model"
    else:
        yield f"FLOPs/token by Zoology, App. C.2: {flops:,.0f} (a multiply-add counts once)"
