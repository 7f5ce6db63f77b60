"""What a run is known by: all that its config says, in the words of the version that first made such runs.

Configs are given new fields, and results that are kept must be found again: a field that holds what older versions did
without being told is left out.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxzoo.config import LanguageModelConfig, OptimizerConfig
from jaxzoo.config_io import Json, to_json

UNSAID: Mapping[str, Mapping[str, Json]] = {
    "BaseConvConfig": {"filter_decay": True},
    "MeshConfig": {"sequence": 1},
    "OptimizerConfig": {"name": "adamw"},
    "TrainConfig": {"accumulate": 1, "best_metric": "valid/loss", "keep_best": 0, "loss_chunk": 0, "z_loss": 0.0},
}
"""Class -> fields of which kept results know nothing, and the values that those runs had without them."""

REMAT_BEFORE: Mapping[Json, Json] = {"nothing": False, "period": True}
"""Policies, as `remat` named them when it was no more than on or off."""


def identity(config: Any) -> Json:
    """A config as JSON, without what `UNSAID` says."""
    return _pruned(config, to_json(config))


def _pruned(value: Any, stored: Any) -> Json:
    """`stored`, the JSON of `value`, without the fields of the table, at any depth."""
    if isinstance(value, tuple):
        return [_pruned(each, text) for each, text in zip(value, stored, strict=True)]
    if not dataclasses.is_dataclass(value):
        return stored
    unsaid = UNSAID.get(type(value).__name__, {})
    fields = {name: _pruned(getattr(value, name, None), text) for name, text in stored.items()}
    if isinstance(value, OptimizerConfig):
        fields |= value.constants
    if isinstance(value, LanguageModelConfig):
        fields["remat"] = REMAT_BEFORE.get(value.remat, value.remat)
    return {name: text for name, text in fields.items() if name not in unsaid or text != unsaid[name]}
