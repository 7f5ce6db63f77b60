"""Configs and first variables of a model whose attention layers are replaced by mixers with a state of fixed size."""

import dataclasses
import re
from collections.abc import Collection
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxzoo.interop.mapping import Slot, slots
from jaxzoo.mixers import AttentionConfig, GatedDeltaNetConfig, MixerConfig, WindowedLinearAttentionConfig
from jaxzoo.mixers.attention.multi_head import MultiHeadConfig
from jaxzoo.models.blueprint import Variables, make_blueprint, names_of, split_variables
from jaxzoo.models.language_model import LanguageModel
from jaxzoo.models.model_config import LanguageModelConfig

WINDOWS = {"based": 64, "hedgehog": 0}
"""Default number of recent tokens that keep softmax attention."""


class Converted(NamedTuple):
    """Variables of a converted model before training."""

    variables: Variables
    copied: tuple[str, ...]
    """Names, such as `layers.0.mixer.q_proj.kernel`, of the variables copied from the old model."""
    new: tuple[str, ...]
    """Names of the other variables, with initial values of the new mixers."""


def attention_layers(config: LanguageModelConfig, keep: Collection[int] = ()) -> list[int]:
    """Returns the layers of softmax attention, except those to keep.

    Raises `ValueError` if there is none, or a layer to keep does not exist.
    """
    for layer in keep:
        if not 0 <= layer < config.n_layers:
            raise ValueError(f"--keep {layer} must be a layer of the model, in [0, {config.n_layers})")
    found = [i for i, mixer in enumerate(config.layers) if isinstance(mixer, AttentionConfig)]
    if not found:
        kinds = sorted({type(mixer).__name__.removesuffix("Config") for mixer in config.layers})
        raise ValueError(f"the model has no layer of softmax attention, only {', '.join(kinds)}; nothing is to convert")
    chosen = [i for i in found if i not in keep]
    if not chosen:
        numbers = ", ".join(map(str, found))
        raise ValueError(f"--keep leaves no layer to convert; softmax attention are layers {numbers}")
    return chosen


def converted_config(
    config: LanguageModelConfig,
    layers: Collection[int],
    mixer: str,
    *,
    window: int | None = None,
    feature_dim: int | None = None,
) -> LanguageModelConfig:
    """Returns the config of a model with new mixers in some of its attention layers.

    Args:
      config: config of the old model.
      layers: indices of the layers, from `attention_layers`.
      mixer: one of `jaxzoo.linearization.MIXERS`.
      window: tokens that keep softmax attention; None: `WINDOWS`.
      feature_dim: columns of the learned map of queries and keys; None: at most 16 (based), head width (hedgehog).

    Raises:
      ValueError: the new mixer does not support an option of a layer.
    """
    if config.attention_post_norm and mixer == "gated-delta-net":
        raise ValueError(
            "the model has attention_post_norm=True, and gated-delta-net would get its norms before the mixer; choose "
            "another --mixer"
        )
    pattern = [config.pattern[i % len(config.pattern)] for i in range(config.n_layers)]
    for i in layers:
        old = config.layers[i]
        assert isinstance(old, AttentionConfig)
        pattern[i] = _counterpart(old, mixer, i, window=window, feature_dim=feature_dim)
    return dataclasses.replace(config, pattern=tuple(pattern))


def convert(config: LanguageModelConfig, old: Variables, new: LanguageModelConfig, *, seed: int = 0) -> Converted:
    """Returns the variables of the new model: the old ones if name and shape agree, otherwise initial values.

    Keys and values of grouped heads are repeated for a mixer without groups; its short convolutions begin as the
    identity. `config` and `old` are the old model, `new` is the result of `converted_config`.
    """
    before, after = make_blueprint(config), make_blueprint(new)
    if before.shapes.buffers or after.shapes.buffers:
        raise ValueError("a mixer of the model holds buffers (random features), which cannot be taken over")
    source, target = slots(config, before), slots(new, after)
    theirs = {path: np.asarray(x) for path, x in names_of(old.params).items()}
    fresh = split_variables(LanguageModel(new, rngs=nnx.Rngs(seed))).params
    ours = {path: np.array(x) for path, x in names_of(fresh).items()}
    copied, initial = list[str](), list[str]()
    for name, place in target.items():
        value, there = None, source.get(name)
        if there is not None:
            value = _at(theirs, there)
            layer = layer_of_mixer(name)
            if layer is not None and value.shape != place.shape:
                value = _repeated_heads(value, config.layers[layer], place.shape)
        (initial if value is None else copied).append(name)
        if value is None and name.endswith(".mixer.conv.taps"):
            value = np.zeros(place.shape)
            value[0] = 1
        if value is not None:
            _at(ours, place)[...] = value
    params = jax.tree.unflatten(jax.tree.structure(fresh), [jnp.asarray(x) for x in ours.values()])
    return Converted(Variables(params, {}), tuple(copied), tuple(initial))


def layer_of_mixer(name: str) -> int | None:
    """Index of the layer whose mixer holds a variable; None: not in a mixer."""
    found = re.match(r"layers\.(\d+)\.mixer\.", name)
    return int(found[1]) if found else None


def _counterpart(
    old: AttentionConfig, mixer: str, layer: int, *, window: int | None, feature_dim: int | None
) -> MixerConfig:
    """Returns the new mixer of a layer. Raises `ValueError` if it lacks a feature of the attention."""
    width = old.head_width
    missing = ["output_gate"] if old.output_gate else []
    if mixer == "gated-delta-net":
        missing += [name for name in ("qkv_bias", "out_bias") if getattr(old, name)]
        missing += ["qk_norm"] if old.qk_norm != "none" else []
    elif old.positions in ("alibi", "xpos"):
        missing += ["positions"]
    if missing:
        value = getattr(old, missing[0])
        raise ValueError(
            f"layer {layer}: attention has {missing[0]}={value!r}, which {mixer} cannot take over; leave it by --keep "
            f"{layer}, or choose another --mixer"
        )
    if mixer == "gated-delta-net":
        all_heads = old.n_heads * width
        return GatedDeltaNetConfig(n_heads=old.n_heads, key_width=all_heads, value_width=all_heads)
    shared = {field.name: getattr(old, field.name) for field in dataclasses.fields(MultiHeadConfig)}
    return WindowedLinearAttentionConfig(
        **shared,
        window=WINDOWS[mixer] if window is None else window,
        feature_map="taylor" if mixer == "based" else "hedgehog",
        feature_dim=min(16, width) if mixer == "based" and feature_dim is None else feature_dim,
    )


def _repeated_heads(kernel: np.ndarray, old: MixerConfig, shape: tuple[int, ...]) -> np.ndarray:
    """Repeats the heads of a projection (d, g k) to keys or values for h query heads: (d, h k)."""
    assert isinstance(old, AttentionConfig)
    d, h, g = kernel.shape[0], old.n_heads, old.kv_heads
    repeated = np.repeat(kernel.reshape(d, g, -1), h // g, axis=1).reshape(d, -1)
    if repeated.shape != shape:
        raise ValueError(f"a projection of attention has shape {kernel.shape}, and {shape} in the new mixer")
    return repeated


def _at(arrays: dict[str, np.ndarray], place: Slot) -> np.ndarray:
    """A view of a variable."""
    whole = arrays[place.path]
    return whole if place.repeat is None else whole[place.repeat]
