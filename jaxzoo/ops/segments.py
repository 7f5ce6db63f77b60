"""Masks and positions that follow from the ids of packed documents and of tokens."""

import jax
import jax.numpy as jnp

from jaxzoo.utils.array_typing import Array, Bool, Int


def position_in_segment(segment_ids: Int[Array, "b t"]) -> Int[Array, "b t"]:
    """Number of tokens of its own document before each token: 0, 1, 2, .. from every change of id on."""
    index = jnp.broadcast_to(jnp.arange(segment_ids.shape[1], dtype=jnp.int32)[None], segment_ids.shape)
    changes = segment_ids[:, 1:] != segment_ids[:, :-1]
    begins = jnp.pad(changes, ((0, 0), (1, 0)), constant_values=True)[:, : segment_ids.shape[1]]
    return index - jax.lax.cummax(jnp.where(begins, index, 0), axis=1)


def document_starts(segment_ids: Int[Array, "b t"] | None) -> Bool[Array, "b t"] | None:
    """Whether each token is the first of a document after another one; None: one document a row."""
    return None if segment_ids is None else jnp.diff(segment_ids, axis=1, prepend=segment_ids[:, :1]) != 0


def seen_before(tokens: Int[Array, "b t"], segment_ids: Int[Array, "b t"] | None = None) -> Bool[Array, "b t"]:
    """Whether the token's id occurs earlier in its document; O(t log t).

    Sorted by document, id and place, such a token follows one of its own id.
    """
    b, t = tokens.shape
    place = jnp.broadcast_to(jnp.arange(t, dtype=jnp.int32)[None, :], (b, t))
    documents = jnp.zeros_like(tokens) if segment_ids is None else segment_ids
    documents, tokens, place = jax.lax.sort((documents, tokens, place), dimension=1, num_keys=3)
    same = (documents[:, 1:] == documents[:, :-1]) & (tokens[:, 1:] == tokens[:, :-1])
    rows = jnp.arange(b, dtype=jnp.int32)[:, None]
    return jnp.zeros((b, t), bool).at[rows, place[:, 1:]].set(same)
