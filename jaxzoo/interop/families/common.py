"""Parts that several families share."""

from collections.abc import Iterable, Mapping
from typing import Any

from jaxzoo.interop.fields import Fields
from jaxzoo.layers.mlp import MLPKind
from jaxzoo.mixers import AttentionConfig, MixerConfig, SlidingWindowAttentionConfig
from jaxzoo.mixers.attention.multi_head import MultiHeadConfig
from jaxzoo.models.config import LanguageModelConfig

GATED: Mapping[str, MLPKind] = {"silu": "swiglu", "gelu": "geglu", "gelu_pytorch_tanh": "geglu_tanh"}
"""Our gated MLPs by the name of their activation."""

WINDOWS = {"full_attention": False, "sliding_attention": True}
"""Whether a layer has a window, by theirs `layer_types`."""


def attentions(common: dict[str, Any], windows: Iterable[int | None]) -> tuple[MixerConfig, ...]:
    """The attention of every layer: with a window, or with all of the past (None). Equal ones are one pattern.

    Args:
      common: fields of all of them.
      windows: keys that a token of a layer sees, itself included.
    """
    layers: list[MixerConfig] = [
        AttentionConfig(**common) if window is None else SlidingWindowAttentionConfig(**common, window=window)
        for window in windows
    ]
    return (layers[0],) if len(set(layers)) == 1 else tuple(layers)


def windows_of(fields: Fields, n_layers: int, *, default: int | None) -> list[int | None]:
    """The window of every layer by the fields of Qwen: `use_sliding_window`, `max_window_layers`, `layer_types`."""
    window, first = (
        fields.optional_integer("sliding_window", default),
        fields.integer("max_window_layers", default=28, low=0),
    )
    used = fields.flag("use_sliding_window", False)
    kinds = fields.words("layer_types", n_layers, WINDOWS)
    if kinds is None:
        kinds = tuple(used and i >= first for i in range(n_layers))
    if any(kinds) and window is None:
        fields.refuse("sliding_window", "must be given where layers have a window")
    return [window if kind else None for kind in kinds]


def only(config: LanguageModelConfig, family: str, **expected: Any) -> None:
    """Refuses to write a model that differs from the family's in a field.

    Raises:
      ValueError: field, value and what the family has.
    """
    plain = {
        "parallel_residual": False,
        "max_positions": None,
        "embed_norm": False,
        "embed_scale": 1.0,
        "logit_soft_cap": 0.0,
    }
    for name, value in (plain | expected).items():
        found = getattr(config, name)
        if found not in (value if isinstance(value, tuple) else (value,)):
            raise ValueError(
                f"{name}={found!r}: a model of family {family} has {value!r}; no such folder can be written"
            )


def attention_layers(config: LanguageModelConfig, family: str) -> list[MultiHeadConfig]:
    """The attention of every layer, alike but for windows.

    Raises:
      ValueError: a layer has another mixer, or other heads than the first.
    """
    found: list[MultiHeadConfig] = []
    for index, layer in enumerate(config.layers):
        if not isinstance(layer, AttentionConfig | SlidingWindowAttentionConfig):
            raise ValueError(f"layer {index}: {type(layer).__name__} has no place in a model of family {family}")
        found.append(layer)
        for name in (
            "n_heads",
            "kv_heads",
            "head_width",
            "qkv_bias",
            "out_bias",
            "qk_norm",
            "rotary_base",
            "positions",
        ):
            if getattr(layer, name) != getattr(found[0], name):
                raise ValueError(f"layer {index}: {name}={getattr(layer, name)!r} must be that of layer 0 in {family}")
    return found
