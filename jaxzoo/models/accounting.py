"""Costs of a language model: parameters, state and forward FLOPs, ours and by the papers' formulas.

Parameters and state are read off the shapes of the real model (`jax.eval_shape`), so nothing is allocated and
a formula cannot drift from the code. The papers' formulas stand next to them as they are printed.
"""

import jax
from flax import nnx

from jaxzoo.layers.mlp import n_matrices
from jaxzoo.mixers import MixerConfig
from jaxzoo.models.language_model import LanguageModel
from jaxzoo.models.model_config import LanguageModelConfig


def abstract_model(config: LanguageModelConfig) -> LanguageModel:
    """Returns the model of `config` with shapes instead of arrays."""
    return nnx.eval_shape(lambda: LanguageModel(config, rngs=nnx.Rngs(0)))


def count_parameters(model: nnx.Module | LanguageModelConfig) -> int:
    """Counts the entries of all parameters, a tied head once, including padding rows of the vocabulary."""
    module = abstract_model(model) if isinstance(model, LanguageModelConfig) else model
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(module, nnx.Param)))


def state_bytes(model: LanguageModel | LanguageModelConfig, length: int, batch_size: int = 1) -> int:
    """Returns the bytes of `init_state(batch_size)`, with capacity for `length` tokens if the state grows. Raises
    `ValueError` if a mixer does not stream."""
    module = abstract_model(model) if isinstance(model, LanguageModelConfig) else model
    state = jax.eval_shape(lambda: module.init_state(batch_size, capacity=length))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))


def flops_per_token(config: LanguageModelConfig, length: int) -> float:
    """Forward FLOPs per token at sequence length `length`: mixers, MLPs, outer projections and the head (with its
    padding rows, at every position), 2 per multiply-add. Norms, activations, residuals and the embedding lookup are not
    counted."""
    layers = sum(layer_flops_per_token(config, layer, length) for layer in config.layers)
    return layers + outer_flops(config) + head_flops(config)


def layer_flops_per_token(config: LanguageModelConfig, mixer: MixerConfig, length: int) -> float:
    """Part of one layer in `flops_per_token`: its mixer (open fields filled) and its MLP."""
    matrices = 0 if config.mlp in ("identity", "none") else n_matrices(config.mlp)
    return mixer.flops_per_token(length) + 2 * matrices * config.d_model * config.hidden_width


def outer_flops(config: LanguageModelConfig) -> float:
    """Part of the projections around the layers: of pairs (2 d -> d, d -> d), of a decoder (twice d -> d)."""
    return 2 * config.d_model**2 * (3 * (config.pair_values > 0) + 2 * config.decode_last)


def head_flops(config: LanguageModelConfig) -> float:
    """Part of the head in `flops_per_token`."""
    return 2 * config.d_model * config.padded_vocab_size


def papers_flops_per_token(config: LanguageModelConfig, length: int) -> float | None:
    """Zoology's FLOPs per token by its App. C.2 at batch 1: layers by the formula of their mixer
    (`papers_layer_flops`), and `2 V D` for input and head, as if the input layer were a matmul. None if the layers are
    of different kinds, or of one without a formula for this MLP."""
    layers = config.layers
    flops = [layer.papers_layer_flops(length, mlp=config.mlp, mlp_width=config.hidden_width) for layer in layers]
    known = [count for count in flops if count is not None]
    if len(known) < len(layers) or len({type(layer) for layer in layers}) > 1:
        return None
    return sum(known) + 2 * config.vocab_size * config.d_model
