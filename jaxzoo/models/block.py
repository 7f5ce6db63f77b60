"""One layer, and a stack of equal periods of layers."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from jaxzoo.array_typing import Array, Float, PRNGKeyArray
from jaxzoo.layers.mlp import MLP
from jaxzoo.layers.norm import norm
from jaxzoo.mixers import make_mixer
from jaxzoo.mixers.base import Mixer, MixerConfig, State
from jaxzoo.models.config import LanguageModelConfig
from jaxzoo.models.layout import Fold
from jaxzoo.sharding import constrain

Mix = Callable[[Mixer, Array, State], tuple[Array, State]]
"""How a mixer is run: (mixer, normed input, state) -> (output, new state)."""


def dropout(x: Array, rate: float, key: PRNGKeyArray | None) -> Array:
    """Zeroes entries at `rate` and scales the others by 1 / (1 - rate); without a key, `x` itself."""
    if key is None or rate == 0:
        return x
    keep = jax.random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(keep, x / (1 - rate), jnp.zeros_like(x))


def constrain_residual(x: Array) -> Array:
    """Rows of the residual stream go over the batch axes of the mesh; width and time stay whole."""
    return constrain(x, "batch", *(None,) * (x.ndim - 1))


class Block(nnx.Module):
    """A pre-norm layer: `r += mixer(norm(r))`, then `r += mlp(norm(r))`; the residual `r` is float32.

    With `mlp="identity"` the second line is `r += norm(r)`; with `none` it is left out.
    """

    def __init__(self, config: LanguageModelConfig, mixer: MixerConfig, *, rngs: nnx.Rngs):
        self.dtype = config.compute_dtype
        self.dropout_rate = config.residual_dropout
        self.mixer_norm = norm(config.norm, config.d_model, eps=config.norm_eps, rngs=rngs)
        self.mixer = make_mixer(mixer, rngs=rngs)
        self.has_second_branch = config.mlp != "none"
        if self.has_second_branch:
            self.mlp_norm = norm(config.norm, config.d_model, eps=config.norm_eps, rngs=rngs)
        self.has_mlp = config.hidden_width > 0
        if config.mlp in ("swiglu", "gelu"):
            self.mlp = MLP(
                config.mlp,
                config.d_model,
                config.hidden_width,
                bias=config.mlp_bias,
                std=config.init_std,
                out_std=config.out_std,
                rngs=rngs,
            )

    def __call__(
        self, residual: Float[Array, "... d"], mix: Mix, state: State, key: PRNGKeyArray | None
    ) -> tuple[Float[Array, "... d"], State]:
        """Runs the layer, its mixer by `mix`; returns the residual and the mixer's new state."""
        mixer_key, mlp_key = (None, None) if key is None else jax.random.split(key)
        mixed, state = mix(self.mixer, self.mixer_norm(residual).astype(self.dtype), state)
        residual = constrain_residual(residual + self._dropped(mixed, mixer_key))
        if self.has_second_branch:
            hidden = self.mlp_norm(residual).astype(self.dtype)
            hidden = self.mlp(hidden) if self.has_mlp else hidden
            residual = constrain_residual(residual + self._dropped(hidden, mlp_key))
        return residual, state

    def _dropped(self, branch: Array, key: PRNGKeyArray | None) -> Array:
        return dropout(branch.astype(jnp.float32), self.dropout_rate, key)


class Stack(nnx.Module):
    """`repeats` equal periods of blocks, scanned: their parameters have a leading axis of `repeats`.

    A period that is not repeated is run as it is, without that axis.
    """

    def __init__(self, config: LanguageModelConfig, fold: Fold, *, rngs: nnx.Rngs):
        self.repeats = fold.repeats
        self.remat = config.remat

        def make_period(rngs: nnx.Rngs) -> nnx.List:
            return nnx.List([Block(config, mixer, rngs=rngs) for mixer in fold.period])

        if fold.repeats == 1:
            self.blocks = make_period(rngs)
        else:
            self.blocks = nnx.split_rngs(splits=fold.repeats)(nnx.vmap(make_period, in_axes=0, out_axes=0))(rngs)

    def __call__(
        self, residual: Float[Array, "... d"], mix: Mix, states: tuple[State, ...], key: PRNGKeyArray | None
    ) -> tuple[Float[Array, "... d"], tuple[State, ...]]:
        """Runs all layers; `states` holds one mixer state a block of the period, stacked over repeats."""
        definition, parameters = nnx.split(self.blocks)

        def period(residual, parameters, states, key):
            new_states = []
            for i, (block, state) in enumerate(zip(nnx.merge(definition, parameters), states, strict=True)):
                block_key = None if key is None else jax.random.fold_in(key, i)
                residual, state = block(residual, mix, state, block_key)
                new_states.append(state)
            return residual, tuple(new_states)

        if self.remat:
            period = jax.checkpoint(period)
        if self.repeats == 1:
            return period(residual, parameters, states, key)

        def body(residual, repeat):
            i, parameters, states = repeat
            return period(residual, parameters, states, None if key is None else jax.random.fold_in(key, i))

        return jax.lax.scan(body, residual, (jnp.arange(self.repeats), parameters, states))

    def init_state(self, batch_size: int, dtype: jnp.dtype) -> tuple[State, ...]:
        """The mixers' first states, one a block of the period; stacked periods add a leading axis."""
        states = tuple(block.mixer.init_state(batch_size, dtype) for block in self.blocks)
        if self.repeats == 1:
            return states
        return jax.tree.map(lambda x: jnp.broadcast_to(x[None], (self.repeats, *x.shape)), states)
