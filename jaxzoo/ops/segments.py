"""Masks and positions computed from document ids and token ids."""

import jax
import jax.numpy as jnp

from jaxzoo.utils.array_typing import Array, Bool, Int


def position_in_segment(segment_ids: Int[Array, "b t"]) -> Int[Array, "b t"]:
    """Position of each token in its document: 0, 1, 2, ... from every change of id on."""
    index = jnp.broadcast_to(jnp.arange(segment_ids.shape[1], dtype=jnp.int32)[None], segment_ids.shape)
    changes = segment_ids[:, 1:] != segment_ids[:, :-1]
    begins = jnp.pad(changes, ((0, 0), (1, 0)), constant_values=True)[:, : segment_ids.shape[1]]
    return index - jax.lax.cummax(jnp.where(begins, index, 0), axis=1)


def document_starts(segment_ids: Int[Array, "b t"] | None) -> Bool[Array, "b t"] | None:
    """Mask of the tokens whose predecessor belongs to another document; None: one document per row."""
    return None if segment_ids is None else jnp.diff(segment_ids, axis=1, prepend=segment_ids[:, :1]) != 0


def seen_before(tokens: Int[Array, "b t"], segment_ids: Int[Array, "b t"] | None = None) -> Bool[Array, "b t"]:
    """Mask of the tokens whose id occurs earlier in their document; O(t log t), by sorting."""
    b, t = tokens.shape
    place = jnp.broadcast_to(jnp.arange(t, dtype=jnp.int32)[None, :], (b, t))
    documents = jnp.zeros_like(tokens) if segment_ids is None else segment_ids
    documents, tokens, place = jax.lax.sort((documents, tokens, place), dimension=1, num_keys=3)
    same = (documents[:, 1:] == documents[:, :-1]) & (tokens[:, 1:] == tokens[:, :-1])
    rows = jnp.arange(b, dtype=jnp.int32)[:, None]
    return jnp.zeros((b, t), bool).at[rows, place[:, 1:]].set(same)
