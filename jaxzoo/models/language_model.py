"""The language model around the mixers: embedding, pre-norm layers, final norm, head.

Pre-norm blocks as in Zoology (App. E.2) and Based (App. E.1), residual in float32, initialisation N(0, 0.02)
with output projections over sqrt(2 n_layers). Layers follow a pattern of mixers; equal periods are scanned.

Deviations: logits of padding rows of the vocabulary are masked, so that probabilities are normalised over
real tokens (the released code trains them towards -inf); a token id outside the vocabulary gives NaN instead
of another row.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxzoo.array_typing import Array, Float, Int, PRNGKeyArray
from jaxzoo.layers.linear import parameter
from jaxzoo.layers.norm import norm
from jaxzoo.mixers.base import State
from jaxzoo.models.block import Mix, Stack, constrain_residual, dropout
from jaxzoo.models.config import LanguageModelConfig
from jaxzoo.models.layout import Fold, fold_layers
from jaxzoo.sharding import constrain

__all__ = ["LanguageModel", "LanguageModelConfig", "ModelState"]

MASKED_LOGIT = -1e30


class ModelState(NamedTuple):
    """What the model remembers of the tokens so far."""

    layers: tuple[tuple[State, ...], ...]
    """Mixer states by stack and block of its period; stacked periods have a leading axis before the batch."""
    position: Int[Array, "b"]
    """Tokens seen, by row."""


class LanguageModel(nnx.Module):
    """Causal (or, with non-causal mixers, bidirectional) language model.

    Args:
      config: what the model is.
      rngs: its `params` stream.
      scanned: runs equal periods as one scan, with their parameters and states stacked. False: runs layer by
        layer, which takes longer to compile but copies no state in and out of a stack.
    """

    def __init__(self, config: LanguageModelConfig, *, rngs: nnx.Rngs, scanned: bool = True):
        self.config = config
        init = nnx.initializers.normal(config.init_std)
        table = (config.padded_vocab_size, config.d_model)
        self.embedding = parameter(init(rngs.params(), table), ("vocab", "embed"))
        if config.learned_positions:
            positions = (config.max_length, config.d_model)
            self.position_embedding = parameter(init(rngs.params(), positions), (None, "embed"))
        folds = fold_layers(config.layers) if scanned else [Fold((layer,), 1) for layer in config.layers]
        self.stacks = nnx.List([Stack(config, fold, rngs=rngs) for fold in folds])
        self.final_norm = norm(config.norm, config.d_model, eps=config.norm_eps, rngs=rngs)
        if not config.tie_embeddings:
            self.head = parameter(init(rngs.params(), table), ("vocab", "embed"))

    def __call__(
        self, tokens: Int[Array, "b t"], *, dropout_key: PRNGKeyArray | None = None
    ) -> Float[Array, "b t vocab"]:
        """Logits of the next token at every position, float32, over the padded vocabulary."""
        return self.logits(self.features(tokens, dropout_key=dropout_key))

    def features(
        self,
        tokens: Int[Array, "b t"],
        *,
        segment_ids: Int[Array, "b t"] | None = None,
        dropout_key: PRNGKeyArray | None = None,
    ) -> Float[Array, "b t d"]:
        """What the head reads: the final norm's output, in the compute dtype.

        Args:
          tokens: ids in `[0, vocab_size)`.
          segment_ids: which document of its row a token belongs to; not implemented yet.
          dropout_key: turns dropout on; the same key gives the same masks.

        Raises:
          ValueError: learned positions, and more tokens than `max_length`.
          NotImplementedError: `segment_ids` are given.
        """
        if segment_ids is not None:
            raise NotImplementedError("LanguageModel: no mixer honours segment_ids; use packing='concatenate'")
        self._check_length(tokens.shape[1])
        position = jnp.zeros((1,), jnp.int32)
        embedded = self._embed(tokens, position, dropout_key)
        features, _ = self._run(embedded, lambda mixer, x, _: (mixer(x), None), None, dropout_key)
        return features

    def logits(self, features: Float[Array, "... d"]) -> Float[Array, "... vocab"]:
        """The head, float32 over the padded vocabulary; padding rows hold -1e30."""
        # Left open, the layout of the cotangent here lets XLA drop a part of the gradient on data x fsdp x tensor.
        features = constrain_residual(features)
        table = (self.embedding if self.config.tie_embeddings else self.head)[...]
        contract = (((features.ndim - 1,), (1,)), ((), ()))
        logits = jax.lax.dot_general(
            features, table.astype(features.dtype), contract, preferred_element_type=jnp.float32
        )
        logits = constrain(logits, "batch", *(None,) * (logits.ndim - 2), "vocab")
        if self.config.padded_vocab_size == self.config.vocab_size:
            return logits
        real = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1) < self.config.vocab_size
        return jnp.where(real, logits, jnp.full_like(logits, MASKED_LOGIT))

    def init_state(self, batch_size: int) -> ModelState:
        """The state before the first token.

        Raises:
          ValueError: a mixer is not causal, so that the model cannot stream.
        """
        for index, layer in enumerate(self.config.layers):
            if not layer.causal:
                name = type(layer).__name__
                raise ValueError(f"layer {index}: {name} sees the future and cannot stream; use a causal mixer")
        dtype = self.config.compute_dtype
        layers = tuple(stack.init_state(batch_size, dtype) for stack in self.stacks)
        return ModelState(layers, jnp.zeros((batch_size,), jnp.int32))

    def prefill(self, tokens: Int[Array, "b t"], state: ModelState) -> tuple[Float[Array, "b t vocab"], ModelState]:
        """Reads `t` more tokens from any state; returns logits at each of them and the state after them."""
        self._check_length(tokens.shape[1])
        embedded = self._embed(tokens, state.position, None)
        features, layers = self._run(embedded, lambda mixer, x, s: mixer.prefill(x, s), state.layers, None)
        return self.logits(features), ModelState(layers, state.position + tokens.shape[1])

    def step(self, token: Int[Array, "b"], state: ModelState) -> tuple[Float[Array, "b vocab"], ModelState]:
        """Reads one more token; returns the logits of the next and the state."""
        embedded = self._embed(token[:, None], state.position, None)[:, 0]
        features, layers = self._run(embedded, lambda mixer, x, s: mixer.step(x, s), state.layers, None)
        return self.logits(features), ModelState(layers, state.position + 1)

    def _check_length(self, length: int) -> None:
        if self.config.learned_positions and length > self.config.max_length:
            raise ValueError(
                f"LanguageModel: {length} tokens exceed max_length={self.config.max_length}, "
                "and its positions are learned; raise max_length or use rotary positions"
            )

    def _embed(
        self, tokens: Int[Array, "b t"], position: Int[Array, "#b"], key: PRNGKeyArray | None
    ) -> Float[Array, "b t d"]:
        """Token (and position) embeddings, float32; `position` is that of the first token of each row."""
        known = (tokens >= 0) & (tokens < self.config.vocab_size)
        rows = jnp.where(known, tokens, jnp.full_like(tokens, self.config.padded_vocab_size))
        embedded = self.embedding[...].at[rows].get(mode="fill", fill_value=jnp.nan)
        if self.config.learned_positions:
            places = position[:, None] + jnp.arange(tokens.shape[1])[None]
            table = self.position_embedding[...]
            places = table.at[places].get(mode="fill", fill_value=jnp.nan)
            embedded = embedded + jnp.broadcast_to(places, embedded.shape)
        key = None if key is None else jax.random.fold_in(key, len(self.stacks))
        return constrain_residual(dropout(embedded, self.config.embed_dropout, key))

    def _run(
        self, residual: Float[Array, "... d"], mix: Mix, states: tuple | None, key: PRNGKeyArray | None
    ) -> tuple[Float[Array, "... d"], tuple]:
        """All stacks and the final norm; without `states` the mixers get None."""
        new_states = []
        for i, stack in enumerate(self.stacks):
            stack_states = (None,) * len(stack.blocks) if states is None else states[i]
            stack_key = None if key is None else jax.random.fold_in(key, i)
            residual, stack_states = stack(residual, mix, stack_states, stack_key)
            new_states.append(stack_states)
        features = self.final_norm(residual).astype(self.config.compute_dtype)
        return features, tuple(new_states)
