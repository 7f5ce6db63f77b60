"""What a language model costs: parameters, state and forward FLOPs, ours and by the papers' formulas.

Parameters and state are read off the shapes of the real model (`jax.eval_shape`), so nothing is allocated and
a formula cannot drift from the code. The papers' formulas stand beside them as they are printed.
"""

import dataclasses
import math
from typing import Any

import jax
from flax import nnx

from jaxzoo.mixers import (
    AttentionConfig,
    BaseConvConfig,
    SlidingWindowAttentionConfig,
    TaylorLinearAttentionConfig,
    make_mixer,
)
from jaxzoo.mixers.base import MixerConfig
from jaxzoo.models.config import LanguageModelConfig
from jaxzoo.models.language_model import LanguageModel


def abstract_model(config: LanguageModelConfig) -> LanguageModel:
    """The model of `config` with shapes in place of arrays."""
    return nnx.eval_shape(lambda: LanguageModel(config, rngs=nnx.Rngs(0)))


def count_parameters(model: nnx.Module | LanguageModelConfig) -> int:
    """Entries of all parameters, each once (a tied head adds none); padding rows of the vocabulary count."""
    module = abstract_model(model) if isinstance(model, LanguageModelConfig) else model
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(module, nnx.Param)))


def state_bytes(config: LanguageModelConfig, length: int, batch_size: int = 1) -> int:
    """Bytes of `init_state(batch_size)` of the model that has room for `length` tokens.

    `max_length` becomes `length`; a mixer of the pattern that sets its own keeps it.

    Raises:
      ValueError: a mixer is not causal and has no state.
    """
    sized = dataclasses.replace(config, max_length=length)
    return _bytes(jax.eval_shape(lambda: LanguageModel(sized, rngs=nnx.Rngs(0)).init_state(batch_size)))


def mixer_state_bytes(mixer: MixerConfig, dtype: Any, batch_size: int = 1) -> int:
    """Bytes of one mixer's state, cached activations in `dtype`; `mixer` has its open fields filled."""
    return _bytes(jax.eval_shape(lambda: make_mixer(mixer, rngs=nnx.Rngs(0)).init_state(batch_size, dtype)))


def _bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def papers_state_size(mixer: MixerConfig, length: int) -> int | None:
    """Elements of a mixer's state by Based, App. E.2, as printed; None where the paper has no formula for it.

    With d the model width and N the length:

    - Taylor linear attention (eq. 9): `(d + 1) (1 + 3 d'/2 + d'^2/2)`, d' the feature dimension. It is the
      formula of one head of width d; h heads hold h normalisers, so our state has `(d + h) (...)` elements.
    - attention (eq. 10): `2 d N`; fewer key/value heads are not in the formula.
    - sliding window (eq. 11): `2 d min(N, window)`; we always hold `window` entries.

    Our states add one int32 position a row where the mixer caches keys. Eq. 8 is eq. 9 for any feature map;
    eqs. 12 to 14 (Mamba, H3, Hyena) speak of other mixers.
    """
    d = mixer.d_model
    if isinstance(mixer, TaylorLinearAttentionConfig):
        f = mixer.feature_dim
        return (d + 1) * (1 + (3 * f + f * f) // 2)
    if isinstance(mixer, AttentionConfig):
        return 2 * d * length
    if isinstance(mixer, SlidingWindowAttentionConfig):
        return 2 * d * min(length, mixer.window)
    return None


def flops_per_token(config: LanguageModelConfig, length: int) -> float:
    """Forward FLOPs a token at sequence length `length`: mixers, MLPs and the head, 2 a multiply-add.

    Norms, activations, residuals and the look-up of the embedding are left out. The head counts its padding
    rows, and is taken at every position.
    """
    return sum(layer_flops_per_token(config, layer, length) for layer in config.layers) + head_flops(config)


def layer_flops_per_token(config: LanguageModelConfig, mixer: MixerConfig, length: int) -> float:
    """The share of one layer in `flops_per_token`: its mixer (open fields filled) and its MLP."""
    matrices = {"swiglu": 3, "gelu": 2}.get(config.mlp, 0)
    return mixer.flops_per_token(length) + 2 * matrices * config.d_model * config.hidden_width


def head_flops(config: LanguageModelConfig) -> float:
    """The share of the head in `flops_per_token`."""
    return 2 * config.d_model * config.padded_vocab_size


def papers_flops_per_token(config: LanguageModelConfig, length: int) -> float | None:
    """Zoology's FLOPs by its Tables 8 and 10, as printed, for a batch of 1 and divided by the tokens.

    With D the model width, N the length, V the vocabulary and H "the head dimension" (App. C.2; Table 7 gives
    the letter to the number of heads), L times the layer plus `2 V D` for input and head:

    - Table 8, attention with SwiGLU: `3 D^2 + (H H D + H N N)/N + N D + D^2 + 16/3 D^2`;
    - Table 10, BaseConv with an MLP of width 2 D: `5 D log2(N) + D/2 + 32 D/N + D^2 + 4 D^2`, half of the
      channels under a long filter and half under a short one.

    Oddities, kept: a multiply-add counts once; the input layer counts as a matmul; `H H D` has no N;
    attention has one matmul over the (N, N) scores, not two, and SwiGLU two matrices of 8/3 D, not three; the
    base of the logarithm is not given (we take 2). The TFLOPs printed in Zoology's Tables 1 and 4 do not
    follow Table 8: they agree within 1 % with 6 a multiply-add (forward and backward), two score matmuls and
    three matrices.

    Returns:
      The count; None for a model of any other kind.
    """
    d, n = config.d_model, length
    attentions = [layer for layer in config.layers if isinstance(layer, AttentionConfig)]
    if len(attentions) == config.n_layers and config.mlp == "swiglu":
        mixing = sum(layer.head_width * (layer.head_width * d + n**2) / n + n * d for layer in attentions)
        layer_rest = 3 * d**2 + d**2 + 8 * 2 / 3 * d**2
    elif all(isinstance(layer, BaseConvConfig) for layer in config.layers) and config.hidden_width == 2 * d:
        mixing = 0.0
        layer_rest = 10 * math.log2(n) * d / 2 + d / 2 + d / 2 * 64 / n + d**2 + 4 * d**2
    else:
        return None
    return mixing + config.n_layers * layer_rest + 2 * config.vocab_size * d
