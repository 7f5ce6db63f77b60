"""Sampling of the next token from the logits: greedy, or by temperature, top-k and top-p.

The filters act in this order: the logits are divided by the temperature; of the tokens ranked by probability
(equal ones by id) the first `top_k` remain (Fan et al. 2018); of these, renormalized, the shortest prefix whose
probabilities sum to at least `top_p` (nucleus sampling, Holtzman et al. 2020).
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxzoo.config.checked import Checked, FractionAboveZero, NonNegativeFloat, NonNegativeInt
from jaxzoo.utils.array_typing import Array, Float, Int, PRNGKeyArray


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling(Checked):
    """Sampling settings. The default is the model's own distribution."""

    temperature: NonNegativeFloat = 1.0
    """Divides the logits; 0: always the likeliest token (the lowest id among equals)."""
    top_k: NonNegativeInt = 0
    """Number of likeliest tokens that may be drawn; 0: all."""
    top_p: FractionAboveZero = 1.0
    """Minimal total probability of the tokens that may be drawn; 1: all."""
    n_ids: NonNegativeInt = 0
    """Only smaller ids are drawn, such as those that a tokenizer knows; 0: all of the vocabulary."""


NO_LIMIT = 2**31 - 1
"""Number above every rank and id."""


class Knobs(NamedTuple):
    """`Sampling` as arrays, 0 as `NO_LIMIT`: one compiled program serves all greedy settings, one all unfiltered, and
    one all filtered ones. (A conditional inside of a program makes a GPU wait for the host in every step.)"""

    temperature: Float[Array, ""] | None
    """None: greedy."""
    top_k: Int[Array, ""] | None
    """None: no filter, neither `top_k` nor `top_p`."""
    top_p: Float[Array, ""] | None
    n_ids: Int[Array, ""]


def knobs(sampling: Sampling) -> Knobs:
    top_k, n_ids = (jnp.int32(min(n or NO_LIMIT, NO_LIMIT)) for n in (sampling.top_k, sampling.n_ids))
    if sampling.temperature == 0:
        return Knobs(None, None, None, n_ids)
    filters = (top_k, jnp.float32(sampling.top_p)) if sampling.top_k or sampling.top_p < 1 else (None, None)
    return Knobs(jnp.float32(sampling.temperature), *filters, n_ids)


def sample(logits: Float[Array, "b vocab"], keys: PRNGKeyArray, knobs: Knobs) -> Int[Array, "b"]:
    """Draws one token per row, int32, from finite float32 logits and one key per row `(b,)`. Pure function, row by row.
    Greedy and unfiltered draws cost O(vocab) per row, filtered ones a sort."""
    ids = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 1)
    allowed = jnp.where(ids < knobs.n_ids, logits, -jnp.inf)
    if knobs.temperature is None:
        return jnp.argmax(allowed, axis=-1).astype(jnp.int32)
    centred = allowed - allowed.max(axis=-1, keepdims=True)
    scaled = centred / jnp.maximum(knobs.temperature, jnp.finfo(jnp.float32).tiny)
    if knobs.top_k is None or knobs.top_p is None:
        return _draw(scaled, keys)
    return _draw_filtered(scaled, keys, knobs.top_k, knobs.top_p)


def _draw(logits: Float[Array, "b vocab"], keys: PRNGKeyArray) -> Int[Array, "b"]:
    return jax.vmap(jax.random.categorical)(keys, logits).astype(jnp.int32)


def _draw_filtered(
    logits: Float[Array, "b vocab"], keys: PRNGKeyArray, top_k: Int[Array, ""], top_p: Float[Array, ""]
) -> Int[Array, "b"]:
    """Draws one of the remaining ranks, and returns the token of that rank."""
    ids = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 1)
    negated, ids_by_rank = jax.lax.sort((-logits, ids), num_keys=1, is_stable=True)
    rank = ids
    stays = rank < top_k
    probability = jax.nn.softmax(jnp.where(stays, -negated, -jnp.inf), axis=-1)
    before = jnp.cumsum(probability, axis=-1) - probability
    stays &= (before < top_p) | (top_p == 1)
    drawn = _draw(jnp.where(stays, -negated, -jnp.inf), keys)
    return jnp.take_along_axis(ids_by_rank, drawn[:, None], axis=1)[:, 0]
