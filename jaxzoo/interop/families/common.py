"""Parts that several families share."""

from collections.abc import Iterable, Mapping
from typing import Any

from jaxzoo.interop.fields import Fields
from jaxzoo.layers.mlp import MLPKind
from jaxzoo.mixers import AttentionConfig, GatedDeltaNetConfig, MixerConfig, SlidingWindowAttentionConfig
from jaxzoo.mixers.attention.multi_head import MultiHeadConfig
from jaxzoo.models.model_config import LanguageModelConfig

GATED: Mapping[str, MLPKind] = {"silu": "swiglu", "gelu": "geglu", "gelu_pytorch_tanh": "geglu_tanh"}

MLP = ("gate_proj", "up_proj", "down_proj")

QKV = ("q_proj", "k_proj", "v_proj")
"""Linear layers before attention."""

ALIKE = (
    "n_heads", "kv_heads", "head_width", "qkv_bias", "out_bias", "qk_norm", "qk_norm_eps", "positions", "rotary_base",
    "rotary_fraction", "rotary_scaling", "rotary_interleaved",
)  # fmt: skip
"""Fields that all attention layers of a model share."""


def read_model(fields: Fields, pattern: Iterable[MixerConfig], *, tied: bool, **others: Any) -> LanguageModelConfig:
    """Reads the sizes that folders of transformers name alike. `pattern` holds the mixers of the layers; `tied` is the
    default for tied embeddings; `others` are further fields, with priority over those that are read here."""
    names = {"d_model": "hidden_size", "n_layers": "num_hidden_layers", "vocab_size": "vocab_size"}
    fields.ignore(*names.values())
    sizes: dict[str, Any] = {ours: fields.integer(name) for ours, name in names.items() if ours not in others}
    sizes |= {"pad_vocab_multiple": 1, "tie_embeddings": fields.flag("tie_word_embeddings", tied)}
    return LanguageModelConfig(pattern=tuple(pattern), **{**sizes, **others})


def matrix_shape(fields: Fields, shapes: Mapping[str, tuple[int, ...]], name: str) -> tuple[int, ...]:
    """Returns the shape of a tensor. Raises `ValueError` if it is missing, or no matrix."""
    if len(shapes.get(name, ())) != 2:
        raise ValueError(f"{fields.where}: tensor {name} is missing, or no matrix")
    return shapes[name]


def written(config: LanguageModelConfig, architecture: str, kind: str, eps: str, **others: Any) -> dict[str, Any]:
    """Returns the config.json of a model with the fields that folders of transformers share; `eps` names that of
    norms."""
    return {
        "architectures": [architecture],
        "model_type": kind,
        "vocab_size": config.padded_vocab_size,
        "hidden_size": config.d_model,
        "num_hidden_layers": config.n_layers,
        eps: config.norm_eps,
        "tie_word_embeddings": config.tie_embeddings,
        **others,
    }


def only(config: LanguageModelConfig, family: str, *kinds: Any, **expected: Any) -> None:
    """Refuses to write a model that differs from the family's in a field, or whose layers are not of alternating
    `kinds`. Raises `ValueError` with field, value and the family's value; or the layer."""
    plain = {"parallel_residual": False, "max_positions": None, "embed_norm": False}
    plain |= {"attention_post_norm": False, "embed_scale": 1.0, "logit_soft_cap": 0.0}
    for name, value in (plain | expected).items():
        found, known = getattr(config, name), f"a model of family {family} has {value!r}"
        if found not in (value if isinstance(value, tuple) else (value,)):
            raise ValueError(f"{name}={found!r}: {known}; no such folder can be written")
    for index, layer in enumerate(config.layers if kinds else ()):
        if not isinstance(layer, kinds[index % len(kinds)]) or config.n_layers % len(kinds):
            raise ValueError(f"layer {index}: {type(layer).__name__} has no place there in a model of family {family}")


def attention_layers(config: LanguageModelConfig, family: str, **expected: Any) -> list[MultiHeadConfig]:
    """Returns the attention of every layer, equal except for windows; `expected` as in `only`. Raises `ValueError` if
    the model differs from the family's, or a layer has other heads than the first."""
    only(config, family, AttentionConfig | SlidingWindowAttentionConfig, **expected)
    return alike(config, family)


def alike(config: LanguageModelConfig, family: str) -> list[MultiHeadConfig]:
    """Returns the attention layers of a model, equal except for windows. Raises `ValueError` if one has other heads, or
    other positions, than the first."""
    found = {i: layer for i, layer in enumerate(config.layers) if isinstance(layer, MultiHeadConfig)}
    first = min(found, default=0)
    for index, layer in found.items():
        for name in ALIKE:
            value, wanted = getattr(layer, name), getattr(found[first], name)
            if value != wanted:
                raise ValueError(
                    f"layer {index}: {name}={value!r} must be that of layer {first} in {family}, {wanted!r}"
                )
    return list(found.values())


def delta_and_attention(config: LanguageModelConfig, family: str) -> tuple[GatedDeltaNetConfig, AttentionConfig]:
    """Returns the two mixers of a hybrid. Raises `ValueError` if a kind is missing, or its layers differ."""
    deltas = {layer for layer in config.layers if isinstance(layer, GatedDeltaNetConfig)}
    attentions = {layer for layer in config.layers if isinstance(layer, AttentionConfig)}
    if len(deltas) != 1 or len(attentions) != 1:
        raise ValueError(f"layers of family {family} are Gated DeltaNet of one config and attention of one")
    return deltas.pop(), attentions.pop()
