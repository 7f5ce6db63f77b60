"""Small models that the tests of this folder share."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxzoo.layers.variables import Buffer
from jaxzoo.mixers import (
    AttentionConfig,
    BaseConvConfig,
    GatedShortConvConfig,
    MixerConfig,
    SlidingWindowAttentionConfig,
    TaylorLinearAttentionConfig,
)
from jaxzoo.models import LanguageModel, LanguageModelConfig
from jaxzoo.models.accounting import abstract_model

ALL_FIVE: tuple[MixerConfig, ...] = (
    BaseConvConfig(filter="implicit"),
    GatedShortConvConfig(),
    TaylorLinearAttentionConfig(n_heads=2, feature_dim=3),
    SlidingWindowAttentionConfig(n_heads=2, window=3),
    AttentionConfig(n_heads=2, positions="rotary"),
)
LENGTH = 11


def hybrid_config(**fields) -> LanguageModelConfig:
    """All five mixers twice, scanned, and the first one once more: 13 token ids in 16 rows."""
    defaults = {
        "pattern": ALL_FIVE,
        "d_model": 8,
        "n_layers": 11,
        "vocab_size": 13,
        "max_length": 12,
        "mlp_width": 5,
    }
    return LanguageModelConfig(**{**defaults, **fields})


@functools.cache
def _far_from_its_start(config: LanguageModelConfig, seed: int) -> LanguageModel:
    rng = np.random.default_rng(seed)
    definition, shapes, buffers = nnx.split(abstract_model(config), nnx.Param, Buffer)
    if jax.tree.leaves(buffers):
        buffers = nnx.state(initialised(config, seed), Buffer)

    def draw(path, leaf):
        centre = 1.0 if any(getattr(key, "key", None) == "scale" for key in path) else 0.0
        return jnp.asarray(rng.normal(centre, 0.3, leaf.shape), leaf.dtype)

    return nnx.merge(definition, jax.tree_util.tree_map_with_path(draw, shapes), buffers)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _variables(config: LanguageModelConfig, seed: int, scanned: bool) -> nnx.State:
    return nnx.state(LanguageModel(config, rngs=nnx.Rngs(seed), scanned=scanned))


def initialised(config: LanguageModelConfig, seed: int = 0, *, scanned: bool = True) -> LanguageModel:
    """The model as it begins, in one compiled program."""
    abstract = nnx.eval_shape(lambda: LanguageModel(config, rngs=nnx.Rngs(0), scanned=scanned))
    return nnx.merge(nnx.graphdef(abstract), _variables(config, seed, scanned))


def make_model(config: LanguageModelConfig, seed: int = 0) -> LanguageModel:
    """A model whose parameters are far from their initialisation (norms about 1, all others about 0, 0.3
    wide), so that every layer shows in the output."""
    return nnx.clone(_far_from_its_start(config, seed))


@nnx.jit
def run(model: LanguageModel, tokens: jax.Array, key: jax.Array | None = None) -> jax.Array:
    """`model(tokens)`, compiled once for equal configs and shapes."""
    return model(tokens, key=key)


def random_tokens(config: LanguageModelConfig, batch_size: int = 2, length: int = LENGTH, seed: int = 0) -> jax.Array:
    """Rows of random ids of the real vocabulary."""
    shape = (batch_size, length)
    return jnp.asarray(np.random.default_rng(seed).integers(config.vocab_size, size=shape), jnp.int32)
