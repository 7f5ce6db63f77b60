"""The compiled programs of generation: read a chunk of the prompts, and decode a block of tokens.

Both take the model as its config and the variables of `LanguageModel.unstacked`, and give back the state that they
are given: it is donated, so that a state is in memory once. They are compiled for the model, the batch size, the
capacity of growing states and the size of chunk or block; prompt lengths, seeds, sampling and stops are arrays.
"""

import functools
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from jaxzoo.generation.sampling import Knobs, sample
from jaxzoo.models.blueprint import Blueprint, Variables, make_blueprint
from jaxzoo.models.language_model import LanguageModelConfig, ModelState
from jaxzoo.parallel.sharding import constrain
from jaxzoo.utils.array_typing import Array, Bool, Int, PRNGKeyArray

Tree = TypeVar("Tree")

NO_TOKEN = -1
"""In the output: the row has no new token at this step."""

NOT_FINITE = -2
"""In the output: the row's logits are not finite."""


class DecodeState(NamedTuple):
    """State of a decode loop."""

    state: ModelState
    """State of the model, row by row."""
    newest: Int[Array, "b"]
    """The token drawn last; not read before there is one."""
    n_read: Int[Array, ""]
    """Decode steps so far: tokens that each row has read since its last chunk."""
    n_new: Int[Array, "b"]
    """New tokens so far."""
    done: Bool[Array, "b"]
    """Which rows are complete. Their states run on with the others and mean nothing any more."""


class Rules(NamedTuple):
    """Constants of a decode loop."""

    tail: Int[Array, "b t"]
    """The last tokens of each prompt."""
    tail_length: Int[Array, "b"]
    """Number of these tokens, at least 1."""
    keys: PRNGKeyArray
    """One key a row; the draw of the token at a position is keyed by row and position."""
    knobs: Knobs
    """Sampling settings."""
    max_tokens: Int[Array, ""]
    """New tokens of a row."""
    stop_tokens: Int[Array, "n"]
    """A row is complete after any of these."""


@functools.partial(jax.jit, static_argnames=("config", "batch_size", "capacity"), keep_unused=True)
def first_rows(config: LanguageModelConfig, variables: Variables, batch_size: int, capacity: int | None) -> DecodeState:
    """Rows that have read nothing.

    Args:
      config: the model.
      variables: the rows are made where these lie (an argument that is kept although unused), so that every
        later call finds them there and nothing is compiled twice.
      batch_size: how many rows.
      capacity: tokens that growing states can hold; None where the model has none of these.

    Raises `ValueError`: a mixer does not stream.
    """
    zeros = jnp.zeros((batch_size,), jnp.int32)
    state = _blueprint(config).model(variables).init_state(batch_size, capacity=capacity)
    return _placed(DecodeState(state, zeros, jnp.zeros((), jnp.int32), zeros, zeros > 0))


def row_keys(seed: int, rows: Int[Array, "b"]) -> PRNGKeyArray:
    """One key a row, a function of the seed and the row's own number."""
    return jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), rows)


@functools.partial(jax.jit, static_argnames="config", donate_argnames="state")
def read_chunk(
    config: LanguageModelConfig,
    variables: Variables,
    state: ModelState,
    tokens: Int[Array, "b c"],
    takes_part: Bool[Array, "b"],
) -> ModelState:
    """The state after a chunk, in the rows that take part in it; in the others, the state before it."""
    _, after = _blueprint(config).model(variables).prefill(tokens, state)

    def choose(old: Array, new: Array) -> Array:
        return jnp.where(takes_part.reshape(-1, *(1,) * (old.ndim - 1)), new, old)

    return _placed(jax.tree.map(choose, state, after))


@functools.partial(jax.jit, static_argnames=("config", "block_size"), donate_argnames="rows")
def decode_block(
    config: LanguageModelConfig,
    variables: Variables,
    rows: DecodeState,
    stopped: Bool[Array, "b"],
    rules: Rules,
    *,
    block_size: int,
) -> tuple[DecodeState, Int[Array, "b block"]]:
    """Up to `block_size` decode steps; fewer where every row is complete.

    A step reads one token of each row: what is left of its prompt, then what was drawn last. `rows` are donated;
    `stopped` are complete for a reason that only the caller knows.

    Returns:
      The rows, and the new tokens of each step, `NO_TOKEN` or `NOT_FINITE`.
    """
    model = _blueprint(config).model(variables)

    def step(carry: tuple[Array, DecodeState, Array]) -> tuple[Array, DecodeState, Array]:
        i, rows, tokens = carry
        at = jnp.broadcast_to(rows.n_read, rules.tail_length.shape)
        prompt = jnp.take_along_axis(rules.tail, at[:, None], axis=1, mode="clip")[:, 0]
        logits, state = model.step(jnp.where(at < rules.tail_length, prompt, rows.newest), rows.state)
        logits, keys = logits[:, : config.vocab_size], jax.vmap(jax.random.fold_in)(rules.keys, state.position)
        drawn = jnp.where(jnp.isfinite(logits.max(axis=-1)), sample(logits, keys, rules.knobs), NOT_FINITE)
        is_new = ~rows.done & (at >= rules.tail_length - 1)
        n_new = rows.n_new + is_new.astype(jnp.int32)
        ends = (n_new == rules.max_tokens) | (drawn < 0) | jnp.any(drawn[:, None] == rules.stop_tokens[None], axis=1)
        tokens = tokens.at[:, i].set(jnp.where(is_new, drawn, NO_TOKEN))
        return i + 1, DecodeState(state, drawn, rows.n_read + 1, n_new, rows.done | (is_new & ends)), tokens

    def goes_on(carry: tuple[Array, DecodeState, Array]) -> Array:
        i, rows, _ = carry
        return (i < block_size) & ~jnp.all(rows.done)

    rows = rows._replace(done=rows.done | stopped)
    tokens = jnp.full((rows.done.shape[0], block_size), NO_TOKEN, jnp.int32)
    _, rows, tokens = jax.lax.while_loop(goes_on, step, (jnp.zeros((), jnp.int32), rows, tokens))
    return _placed(rows), tokens


@functools.cache
def _blueprint(config: LanguageModelConfig) -> Blueprint:
    return make_blueprint(config, scanned=False)


def _placed(tree: Tree) -> Tree:
    """The arrays as every program takes and returns them: rows sharded over the batch axes of the mesh, if any."""
    return jax.tree.map(lambda x: constrain(x, *("batch", *(None,) * x.ndim)[: x.ndim]), tree)
