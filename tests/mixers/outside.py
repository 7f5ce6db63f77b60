"""Mixers that promise what no mixer of the package does, so that the suite and the model ask every capability."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxzoo.layers.linear import linear
from jaxzoo.layers.variables import buffer, parameter
from jaxzoo.mixers import Capabilities, Mixer, MixerConfig
from jaxzoo.mixers.base import NO_CONTEXT
from jaxzoo.testing.mixer_inputs import N_TOKENS

"""Token ids of `SignedTokens`: those of the models in `tests/models/hybrids.py`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AverageConfig(MixerConfig):
    """Config of `Average`."""

    @property
    def capabilities(self):
        return Capabilities(causal=False, streams=False)

    @classmethod
    def tiny(cls):
        return cls(d_model=4)

    def build(self, *, rngs):
        return Average(self, rngs=rngs)

    def flops_per_token(self, length):
        return 2.0 * self.width**2


class Average(Mixer):
    """The mean over all tokens, those to come included."""

    def __init__(self, config, *, rngs):
        self.proj = linear(config.width, config.width, axes=("embed", "heads"), std=config.std, rngs=rngs)
        self.config = config

    def __call__(self, x, context=NO_CONTEXT):
        mean = self.proj(x).astype(jnp.float32).mean(1, keepdims=True)
        return jnp.broadcast_to(mean, x.shape).astype(x.dtype)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SignedTokensConfig(MixerConfig):
    """Config of `SignedTokens`."""

    size_weight: float = 0.5
    """Weight of the term `size`."""
    noise: float = 0.0
    """Standard deviation of what is added to the output in training."""

    @property
    def capabilities(self):
        return Capabilities(needs_tokens=True, segments=True)

    @property
    def loss_weights(self):
        return {"size": self.size_weight}

    @classmethod
    def tiny(cls):
        return cls(d_model=4)

    def build(self, *, rngs):
        return SignedTokens(self, rngs=rngs)

    def flops_per_token(self, length):
        return 2.0 * self.width**2


class SignedTokensState(NamedTuple):
    """The input before."""

    previous: jax.Array
    """(b, d), in the dtype given to `init_state`."""


class SignedTokens(Mixer):
    """`y_t = sign[token_t] * (x_t W + scale * x_{t-1})` with a fixed random table of signs; loss term: mean y^2."""

    def __init__(self, config, *, rngs):
        d = config.width
        self.proj = linear(d, d, axes=("embed", "heads"), std=config.std, rngs=rngs)
        self.scale = parameter(jnp.ones((d,)), ("heads",), decay=False, learning_rate_scale=0.25)
        self.signs = buffer(jax.random.rademacher(rngs.params(), (N_TOKENS, d), jnp.float32), (None, "heads"))
        self.config = config

    def __call__(self, x, context=NO_CONTEXT):
        return self.with_losses(x, context)[0]

    def with_losses(self, x, context=NO_CONTEXT):
        previous = jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1]
        if context.segment_ids is not None:
            same = jnp.pad(context.segment_ids[:, 1:] == context.segment_ids[:, :-1], ((0, 0), (1, 0)))
            previous = jnp.where(same[..., None], previous, 0)
        y = self._mix(x, previous, context)
        if context.key is not None:
            y = y + self.config.noise * jax.random.normal(context.key, y.shape, y.dtype)
        return y, {"size": jnp.mean(jnp.square(y.astype(jnp.float32)))}

    def init_state(self, batch_size, *, capacity=None, dtype=jnp.float32):
        return SignedTokensState(jnp.zeros((batch_size, self.config.width), dtype))

    def prefill(self, x, state, context=NO_CONTEXT):
        whole = jnp.concatenate([state.previous[:, None].astype(x.dtype), x], axis=1)
        y = self._mix(x, whole[:, :-1], context)
        return y, SignedTokensState(whole[:, -1].astype(state.previous.dtype))

    def step(self, x_t, state, context=NO_CONTEXT):
        context = dataclasses.replace(context, tokens=context.tokens[:, None])
        y, state = self.prefill(x_t[:, None], state, context)
        return y[:, 0], state

    def _mix(self, x, previous, context):
        signs = self.signs[...][context.tokens].astype(x.dtype)
        return signs * (self.proj(x) + self.scale[...].astype(x.dtype)[None, None] * previous)


OUTSIDE = (AverageConfig, SignedTokensConfig)
