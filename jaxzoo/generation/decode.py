"""The compiled programs of generation: read a chunk of the prompts, and decode a block of tokens.

Both take the model as its config and the variables of `LanguageModel.unstacked`. They return the updated state; the
old one is donated, so that memory holds one state. They are compiled for the model, the batch size, the
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
from pallas_kernels.dispatch import may_run_on

Tree = TypeVar("Tree")

NO_TOKEN = -1
"""Output value: the row has no new token at this step."""

NOT_FINITE = -2
"""Output value: the row's logits are not finite."""


class DecodeState(NamedTuple):
    state: ModelState
    newest: Int[Array, "b"]
    """Token drawn last; not read before there is one."""
    n_read: Int[Array, ""]
    """Decode steps so far: tokens that each row has read since its last chunk."""
    n_new: Int[Array, "b"]
    done: Bool[Array, "b"]
    """Completed rows, whose states are updated with the others but are not used."""


class Rules(NamedTuple):
    """Constants of a decode loop."""

    tail: Int[Array, "b t"]
    """Last tokens of each prompt."""
    tail_length: Int[Array, "b"]
    keys: PRNGKeyArray
    """One key per row, into which the position of a drawn token is folded."""
    knobs: Knobs
    max_tokens: Int[Array, ""]
    """Most new tokens per row."""
    stop_tokens: Int[Array, "n"]
    """Tokens that complete a row."""


@functools.partial(jax.jit, static_argnames=("config", "batch_size", "capacity"), keep_unused=True)
def first_rows(config: LanguageModelConfig, variables: Variables, batch_size: int, capacity: int | None) -> DecodeState:
    """Returns rows that have read nothing, on the devices of `variables` (an argument that is kept although unused), so
    that later calls do not recompile. `capacity` is for growing states, None without any. Raises `ValueError` if a
    mixer does not stream."""
    zeros = jnp.zeros((batch_size,), jnp.int32)
    state = _blueprint(config).model(variables).init_state(batch_size, capacity=capacity)
    return _placed(DecodeState(state, zeros, jnp.zeros((), jnp.int32), zeros, zeros > 0))


def row_keys(seed: int, rows: Int[Array, "b"]) -> PRNGKeyArray:
    """Returns one key per row, a function of the seed and the row's number."""
    return jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), rows)


@functools.partial(jax.jit, static_argnames="config", donate_argnames="state")
def read_chunk(
    config: LanguageModelConfig,
    variables: Variables,
    state: ModelState,
    tokens: Int[Array, "b c"],
    takes_part: Bool[Array, "b"],
) -> ModelState:
    """Returns the state after a chunk in the rows that take part in it, the previous state in the others."""
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
    """Runs `block_size` decode steps, on a CPU fewer if all rows are complete. A step reads one token per row: the rest
    of its prompt, then the token drawn last. `rows` are donated; `stopped` rows are complete for a reason that only the
    caller knows. Returns the rows, and the new tokens of each step, `NO_TOKEN` or `NOT_FINITE`."""
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
        if not may_run_on("cpu"):  # an accelerator would wait for the host to read the condition after each step
            return i < block_size
        return (i < block_size) & ~jnp.all(rows.done)

    rows = rows._replace(done=rows.done | stopped)
    tokens = jnp.full((rows.done.shape[0], block_size), NO_TOKEN, jnp.int32)
    _, rows, tokens = jax.lax.while_loop(goes_on, step, (jnp.zeros((), jnp.int32), rows, tokens))
    return _placed(rows), tokens


@functools.cache
def _blueprint(config: LanguageModelConfig) -> Blueprint:
    return make_blueprint(config, scanned=False)


def _placed(tree: Tree) -> Tree:
    """Shards rows over the batch axes of the mesh, if any, as all programs take and return them."""
    return jax.tree.map(lambda x: constrain(x, *("batch", *(None,) * x.ndim)[: x.ndim]), tree)
