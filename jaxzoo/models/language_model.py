"""The language model around the mixers: embedding, pre-norm layers, final norm, head.

Pre-norm blocks as in Zoology (App. E.2) and Based (App. E.1), or with GPT-NeoX's parallel residual; the residual is
float32. Initialisation N(0, 0.02), with output projections over sqrt(2 n_layers), unless the config says otherwise.
Layers follow a pattern of mixers; equal periods are scanned.

Deviations: logits of padding rows of the vocabulary are masked, so that probabilities are normalised over
real tokens (the released code trains them towards -inf); a token id outside the vocabulary gives NaN instead
of another row.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxzoo.layers.embedding import look_up
from jaxzoo.layers.last_token_decoder import LastTokenDecoder
from jaxzoo.layers.norm import Norm, norm
from jaxzoo.layers.pair_embedding import PairEmbedding
from jaxzoo.layers.probe import scope, show
from jaxzoo.layers.residual_norm import constrain_residual
from jaxzoo.layers.variables import parameter
from jaxzoo.mixers.base import Context, Losses, Mixer, State
from jaxzoo.models.block import Mix, Stack, add_losses, dropout, fold_in
from jaxzoo.models.head import project
from jaxzoo.models.layout import Fold
from jaxzoo.models.model_config import LanguageModelConfig
from jaxzoo.ops.segments import position_in_segment
from jaxzoo.utils.array_typing import Array, Bool, Float, Int, PRNGKeyArray

__all__ = ["LanguageModel", "LanguageModelConfig", "ModelState"]


class ModelState(NamedTuple):
    layers: tuple[tuple[State, ...], ...]
    """Mixer states by stack and block of its period; stacked periods have a leading axis before the batch."""
    position: Int[Array, "b"]
    """Tokens read so far, by row."""


class LanguageModel(nnx.Module):
    """Causal (or, with non-causal mixers, bidirectional) language model. With `scanned` equal periods run as one scan,
    with stacked parameters and states; otherwise layer by layer, which compiles more slowly but does not copy states in
    and out of a stack. `rngs` has a stream `params`."""

    def __init__(self, config: LanguageModelConfig, *, rngs: nnx.Rngs, scanned: bool = True):
        self.config = config
        init = nnx.initializers.normal(config.init_std)
        table = (config.padded_vocab_size, config.d_model)
        if config.pair_values:
            n_keys = config.vocab_size // (config.pair_values + 1)
            self.pairs: PairEmbedding = PairEmbedding(
                n_keys, config.pair_values, n_rows=table[0], width=table[1], rngs=rngs
            )
        else:
            self.embedding: nnx.Param[jax.Array] = parameter(
                init(rngs.params(), table), ("vocab", "embed"), is_embedding=True
            )
        if config.max_positions is not None:
            positions = (config.max_positions, config.d_model)
            self.position_embedding: nnx.Param[jax.Array] = parameter(
                init(rngs.params(), positions), (None, "embed"), is_embedding=True
            )
        if config.embed_norm:
            self.embedding_norm: Norm = norm(config.norm, config.d_model, eps=config.norm_eps, rngs=rngs)
        folds = config.folds if scanned else [Fold(((layer,),)) for layer in config.layers]
        self.stacks: nnx.List[Stack] = nnx.List([Stack(config, fold, rngs=rngs) for fold in folds])
        if config.decode_last:
            self.decoder: LastTokenDecoder = LastTokenDecoder(
                config.d_model,
                norm_kind=config.norm,
                norm_eps=config.norm_eps,
                std=config.init_std,
                dtype=config.compute_dtype,
                rngs=rngs,
            )
        self.final_norm: Norm = norm(config.norm, config.d_model, eps=config.norm_eps, rngs=rngs)
        if not config.tie_embeddings:
            self.head: nnx.Param[jax.Array] = parameter(init(rngs.params(), table), ("vocab", "embed"))

    def __call__(
        self,
        tokens: Int[Array, "b t"],
        *,
        segment_ids: Int[Array, "b t"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "b t vocab"]:
        """Returns logits of the next token at every position, float32, over the padded vocabulary; arguments of
        `features`."""
        return self.logits(self.features(tokens, segment_ids=segment_ids, key=key))

    def features(
        self,
        tokens: Int[Array, "b t"],
        *,
        segment_ids: Int[Array, "b t"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "b t d"]:
        """Returns the final norm's output, in the compute dtype. `segment_ids` mark packed documents, as
        `Context.segment_ids`: each has the outputs that it has alone. A `key` turns on dropout and other noise of
        training; the same key gives the same numbers. Raises `ValueError` for more tokens than learned positions, or
        for segment ids if a mixer or decoder does not support them."""
        return self.features_with_losses(tokens, segment_ids=segment_ids, key=key)[0]

    def features_with_losses(
        self,
        tokens: Int[Array, "b t"],
        *,
        segment_ids: Int[Array, "b t"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "b t d"], Losses]:
        """Returns `features` for training, and the mixers' weighted loss terms by name, over all layers."""
        self._check_length(tokens.shape[1])
        if segment_ids is not None and self.config.decode_last:
            raise ValueError(
                "LanguageModelConfig.decode_last=True does not honour segment_ids: it decodes a row from its last "
                "token; give each document a row"
            )
        if segment_ids is None:
            position = _count_up(jnp.zeros((1,), jnp.int32), tokens.shape[1])
        else:
            position = position_in_segment(segment_ids)
        prefix = self._prefix(jnp.broadcast_to(position, tokens.shape))
        context = Context(tokens=tokens, segment_ids=segment_ids, prefix=prefix, key=key)
        features, _, losses = self._run(self._embed(tokens, position, key), _with_losses, None, context)
        return features, losses

    def logits(self, features: Float[Array, "... d"]) -> Float[Array, "... vocab"]:
        """Applies the head; float32 over the padded vocabulary; padding rows hold -1e30."""
        features = constrain_residual(features)  # as in `_run`: a caller may have picked some of them
        config = self.config
        return project(features, self.head_table, vocab_size=config.n_outputs, soft_cap=config.logit_soft_cap)

    @property
    def head_table(self) -> Float[Array, "vocab d"]:
        """Rows whose products with the features are logits: the head's, or the embedding's if tied; for pairs, those of
        their values, which are frozen."""
        if self.config.pair_values:
            return self.pairs.values[...]
        return (self.embedding if self.config.tie_embeddings else self.head)[...]

    def init_state(self, batch_size: int, *, capacity: int | None = None) -> ModelState:
        """Returns the state before the first token. `capacity` is the number of tokens that growing states (key-value
        caches) can hold; None: `max_length`. Raises `ValueError` if a mixer does not stream, or the model is an
        autoencoder."""
        self._check_streams()
        for index, layer in enumerate(self.config.layers):
            if not layer.capabilities.streams:
                name = type(layer).__name__
                reason = "has no state" if layer.capabilities.causal else "sees the future"
                raise ValueError(f"layer {index}: {name} {reason} and cannot stream; use another mixer")
        capacity = self.config.max_length if capacity is None else capacity
        dtype = self.config.compute_dtype
        layers = tuple(stack.init_state(batch_size, capacity=capacity, dtype=dtype) for stack in self.stacks)
        return ModelState(layers, jnp.zeros((batch_size,), jnp.int32))

    def prefill(self, tokens: Int[Array, "b t"], state: ModelState) -> tuple[Float[Array, "b t vocab"], ModelState]:
        """Reads `t` more tokens from any state; returns logits at each of them and the new state. In a model with a
        prefix the first call for a row reads at least the whole prefix; otherwise its logits are NaN."""
        self._check_streams()
        self._check_length(tokens.shape[1])
        position = _count_up(state.position, tokens.shape[1])
        embedded = self._without_cut_prefix(self._embed(tokens, position, None), state)
        context = Context(tokens=tokens, prefix=self._prefix(position))
        features, layers, _ = self._run(embedded, _prefill, state.layers, context)
        return self.logits(features), ModelState(layers, state.position + tokens.shape[1])

    def step(self, token: Int[Array, "b"], state: ModelState) -> tuple[Float[Array, "b vocab"], ModelState]:
        """Reads one token; returns the logits of the next and the new state."""
        self._check_streams()
        embedded = self._embed(token[:, None], state.position[:, None], None)
        embedded = self._without_cut_prefix(embedded, state)[:, 0]
        features, layers, _ = self._run(embedded, _step, state.layers, Context(tokens=token))
        return self.logits(features), ModelState(layers, state.position + 1)

    def unstacked(self) -> "LanguageModel":
        """Returns the same model layer by layer, with copies of the variables of repeated layers. A scan copies the
        states of its layers at every token; layer by layer they are updated in place: on a CPU, a decode step after
        4096 tokens took 131 CPU ms scanned and 46 layer by layer for a 20M Transformer++, 12 and 6 for a 20M Based. All
        states have the batch as leading axis."""
        variables = nnx.to_pure_dict(nnx.state(self))
        layers = [
            {"blocks": {0: block if stack.repeats == 1 else jax.tree.map(lambda x, i=i: x[i], block)}}
            for index, stack in enumerate(self.stacks)
            for i in range(stack.repeats)
            for block in variables["stacks"][index]["blocks"].values()
        ]
        flat = nnx.eval_shape(lambda: LanguageModel(self.config, rngs=nnx.Rngs(0), scanned=False))
        return nnx.merge(nnx.graphdef(flat), nnx.State({**variables, "stacks": dict(enumerate(layers))}))

    def _check_streams(self) -> None:
        if self.config.decode_last:
            raise ValueError(
                "LanguageModelConfig.decode_last=True: an autoencoder has no next token and cannot stream; call it on "
                "whole rows"
            )

    def _prefix(self, position: Int[Array, "b t"]) -> Bool[Array, "b t"] | None:
        """Mask of the tokens of a prefix; None if the model has none."""
        return position < self.config.prefix_length if self.config.prefix_length else None

    def _without_cut_prefix(self, embedded: Float[Array, "b t d"], state: ModelState) -> Float[Array, "b t d"]:
        """NaN in rows that begin with a part of their prefix, or continue after a part of it."""
        length = self.config.prefix_length
        if not length:
            return embedded
        whole = (state.position >= length) | ((state.position == 0) & (embedded.shape[1] >= length))
        return jnp.where(whole[:, None, None], embedded, jnp.nan)

    def _check_length(self, length: int) -> None:
        rows = self.config.max_positions
        if rows is not None and length > rows:
            raise ValueError(
                f"LanguageModel: {length} tokens exceed max_positions={rows}, the rows of the learned positions; "
                "raise it, or use rotary positions"
            )

    def _embed(
        self, tokens: Int[Array, "b t"], position: Int[Array, "#b t"], key: PRNGKeyArray | None
    ) -> Float[Array, "b t d"]:
        """Token (and position) embeddings, float32."""
        if self.config.pair_values:
            embedded = self.pairs(tokens)
        else:
            known = (tokens >= 0) & (tokens < self.config.vocab_size)
            rows = jnp.where(known, tokens, jnp.full_like(tokens, self.config.padded_vocab_size))
            embedded = look_up(self.embedding[...], rows, ("vocab", "embed")).astype(jnp.float32)
        if self.config.embed_scale != 1:
            embedded = embedded * self.config.embed_scale
        if self.config.max_positions is not None:
            places = look_up(self.position_embedding[...], position, (None, "embed"))
            embedded = embedded + jnp.broadcast_to(places, embedded.shape)
        if self.config.embed_norm:
            embedded = self.embedding_norm(embedded)
        key = None if key is None else jax.random.fold_in(key, len(self.stacks))
        return constrain_residual(dropout(embedded, self.config.embed_dropout, key))

    def _run(
        self, residual: Float[Array, "... d"], mix: Mix, states: tuple | None, context: Context
    ) -> tuple[Float[Array, "... d"], tuple, Losses]:
        """All stacks, a decoder, and the final norm; without `states` the mixers get None."""
        new_states: list[tuple] = []
        losses: Losses = {}
        residual = show("embedded", residual)
        for i, stack in enumerate(self.stacks):
            stack_states = (None,) * len(stack.blocks) if states is None else states[i]
            with scope(f"layers.{i}"):
                residual, stack_states, terms, values = stack(residual, mix, stack_states, fold_in(context, i))
            context = dataclasses.replace(context, first_values=values)
            new_states.append(stack_states)
            losses = add_losses(losses, terms)
        if self.config.decode_last:
            residual = show("decoded", self.decoder(residual))
        features = show("features", self.final_norm(residual).astype(self.config.compute_dtype))
        if self.config.pair_values:
            features = self.pairs.out_proj(features)
        # Left open, the layout of their cotangent lets XLA drop a part of the gradient on data x fsdp x tensor.
        return constrain_residual(features), tuple(new_states), losses


def _count_up(first: Int[Array, "b"], length: int) -> Int[Array, "b t"]:
    return first[:, None] + jnp.arange(length, dtype=jnp.int32)[None]


def _with_losses(mixer: Mixer, x: Array, state: State, context: Context) -> tuple[Array, State, Losses]:
    y, losses = mixer.with_losses(x, context)
    return y, state, losses


def _prefill(mixer: Mixer, x: Array, state: State, context: Context) -> tuple[Array, State, Losses]:
    return *mixer.prefill(x, state, context), {}


def _step(mixer: Mixer, x: Array, state: State, context: Context) -> tuple[Array, State, Losses]:
    return *mixer.step(x, state, context), {}
