"""Diagonal recurrences, real or complex: states of S4D, Liquid-S4, RG-LRU and of Mamba by zero-order hold, in chunks.

    h_i = a_i * h_{i-1} + b_i        y_i = readout(h_i, token i)

A state is much larger than its token: Mamba has 16 numbers per channel. So `a`, `b` and `h` never exist for all tokens.
The caller gives the tokens, and two functions that make `a` and `b` from tokens and the output from states; a scan
over chunks applies them to `chunk_size` tokens at a time, and the backward pass does so again.

Inside a chunk the states come one from the other by products and sums alone (no logarithm, quotient or exponential),
so that any `a` is safe, 0 included. On a CPU the tokens of a chunk are taken in turn, and each of them makes its `a`
and `b` again in the backward pass. Elsewhere an associative scan takes all of them at once; if a state is larger than
its token, groups of 8 tokens are taken in turn, all groups at once, and states within groups are made twice. Both
passes on two CPU cores at (b, t) = (64, 64), 128 channels and 16 numbers per channel, in ms of CPU time: 60 in turn as
it is, 160 in turn with the arrays `a` and `b` of a whole chunk.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.tree_util import Partial

from jaxzoo.ops.segments import document_starts
from jaxzoo.parallel.sequence_parallel import scan_in_parts
from jaxzoo.utils.array_typing import Array, Int
from pallas_kernels.xla_chunks import tokens_at_once

GROUP = 8
"""Tokens, and groups, that an accelerator takes in turn, all such groups of a chunk at once."""
CHUNK = 64
"""Tokens of a chunk on a CPU or TPU, unless the caller says otherwise."""

Tokens = Any
"""A pytree of arrays whose leading axes count tokens: `(b, t, ...)`, or `(b, ...)` of a step."""


def diagonal_scan(
    tokens: Tokens,
    coefficients: Callable[[Tokens], tuple[Array, Array]],
    readout: Callable[[Array, Tokens], Array],
    initial_state: Array,
    *,
    segment_ids: Int[Array, "b t"] | None = None,
    chunk_size: int | None = None,
) -> tuple[Array, Array]:
    """The recurrence of the module docstring for `t >= 0` tokens from any state.

    Differentiable in tokens, state, and what the two functions close over, through the output and the final state. Both
    functions treat every token alike: they are given tokens with any leading axes, in any order.

    Args:
      tokens: arrays `(b, t, ...)`.
      coefficients: `a` and `b` of tokens; leading axes as theirs, then the state's; `a` may be smaller where it
        broadcasts.
      readout: the output of states and their tokens; leading axes as theirs. On a mesh that shares out time, both are
        `jax.tree_util.Partial`s of the arrays that they read in addition to tokens.
      initial_state: `(b, ...)`, float32 or complex64; `h` before the first token.
      segment_ids: packed documents, int32: each is one contiguous run of equal ids, and nothing of an earlier one is
        seen. The state returned is that of the last document.
      chunk_size: tokens whose states exist at the same time; changes memory and speed alone. None: 64; on a GPU, where
        each chunk takes a dozen launches, as many as `pallas_kernels.xla_chunks` allows.

    Returns:
      y `(b, t, ...)`, and the state after the last token. Memory, in the backward pass too: tokens and outputs, one
      state a chunk, and some times `chunk_size` states. If time is sharded over devices, they exchange only states.
    """
    # A Partial of a Partial hides the arrays of the inner one.
    coefficients, readout = (f if isinstance(f, Partial) else Partial(f) for f in (coefficients, readout))
    empty = jnp.zeros_like(initial_state)
    run = Partial(functools.partial(_scan, chunk_size=chunk_size), coefficients, readout)
    kept = Partial(functools.partial(_kept, chunk_size=chunk_size), coefficients, empty)
    return scan_in_parts(run, kept, tokens, segment_ids, initial_state, empty)


def _kept(coefficients: Callable, empty: Array, tokens: Tokens, *, chunk_size: int | None) -> Array:
    """The product of all `a`: where a state of ones ends that nothing is added to."""

    def factors(tokens: Tokens) -> tuple[Array, Array]:
        a, b = coefficients(tokens)
        return a, jnp.zeros_like(b)

    nothing = lambda state, tokens: state[..., :0]  # noqa: E731
    return _scan(factors, nothing, tokens, None, jnp.ones_like(empty), chunk_size=chunk_size)[1]


def _scan(
    coefficients: Callable[[Tokens], tuple[Array, Array]],
    readout: Callable[[Array, Tokens], Array],
    tokens: Tokens,
    segment_ids: Array | None,
    initial_state: Array,
    *,
    chunk_size: int | None,
) -> tuple[Array, Array]:
    """`diagonal_scan` chunk by chunk."""
    t = jax.tree.leaves(tokens)[0].shape[1]
    larger = all(initial_state.size > x[:, 0].size for x in jax.tree.leaves(tokens)) if t else False
    if chunk_size is None:
        chunk_size = tokens_at_once(t, initial_state.size // (2 if larger else 1), least=CHUNK)
    n = -(-t // chunk_size)
    size = -(-t // n) if n else 1
    starts = document_starts(segment_ids)
    given = None if n * size == t else (np.arange(n * size) < t).reshape(n, size)

    def token(state: Array, now: tuple) -> tuple[Array, Array]:
        tokens, starts, given = now
        a, b = _masked(coefficients(tokens), starts, given, state.dtype)
        state = a * state + b
        return state, readout(state, tokens)

    def in_turn(state: Array, chunk: tuple) -> tuple[Array, Array]:
        return lax.scan(jax.checkpoint(token, prevent_cse=False), state, chunk)

    def at_once(state: Array, chunk: tuple) -> tuple[Array, Array]:
        tokens, starts, given = chunk
        if not larger:
            h = _states(*_masked(coefficients(tokens), starts, given, state.dtype), state)
            return h[-1], readout(h, tokens)
        group = max(g for g in range(1, GROUP + 1) if size % g == 0)
        groups = jax.tree.map(lambda x: x.reshape(size // group, group, *x.shape[1:]), chunk)
        steps = []
        for i in range(group):
            tokens, starts, given = jax.tree.map(operator.itemgetter((slice(None), i)), groups)
            steps.append((tokens, _masked(coefficients(tokens), starts, given, state.dtype)))
        h, outputs = _before(*functools.reduce(_compose, (step for _, step in steps)), state), []
        for tokens, (a, b) in steps:
            h = a * h + b
            outputs.append(readout(h, tokens))
        y = jnp.stack(outputs, axis=1)
        return h[-1], y.reshape(size, *y.shape[2:])

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def body(state: Array, chunk: tuple) -> tuple[Array, Array]:
        return lax.platform_dependent(state, chunk, cpu=in_turn, default=at_once)

    chunks = jax.tree.map(lambda x: _to_chunks(x, n, size), (tokens, starts))
    state, y = lax.scan(body, initial_state, (*chunks, given))
    return y.reshape(n * size, *y.shape[2:])[:t].swapaxes(0, 1), state


def diagonal_step(
    tokens: Tokens,
    coefficients: Callable[[Tokens], tuple[Array, Array]],
    readout: Callable[[Array, Tokens], Array],
    state: Array,
) -> tuple[Array, Array]:
    """One token, given by arrays `(b, ...)`: `diagonal_scan` with t = 1."""
    a, b = _masked(coefficients(tokens), None, None, state.dtype)
    state = a * state + b
    return readout(state, tokens), state


def _masked(
    coefficients: tuple[Array, Array], starts: Array | None, given: Array | None, dtype: Any
) -> tuple[Array, Array]:
    """`a` and `b` in one shape and the dtype of the state: forgetting where a document starts, and keeping the state
    where no token is given."""
    a, b = (x.astype(dtype) for x in coefficients)
    shape = np.broadcast_shapes(a.shape, b.shape)
    a, b = jnp.broadcast_to(a, shape), jnp.broadcast_to(b, shape)
    if starts is not None:
        a = jnp.where(_expand(starts, a.ndim), jnp.zeros_like(a), a)
    if given is not None:
        given = _expand(given, a.ndim)
        a, b = jnp.where(given, a, jnp.ones_like(a)), jnp.where(given, b, jnp.zeros_like(b))
    return a, b


def _expand(x: jax.Array, ndim: int) -> jax.Array:
    return x.reshape(*x.shape, *[1] * (ndim - x.ndim))


def _to_chunks(x: jax.Array, n: int, size: int) -> jax.Array:
    """(b, t, ...) -> (n, size, b, ...). The last token is repeated to fill its chunk."""
    missing = n * size - x.shape[1]
    if missing:
        x = jnp.pad(x, [(0, 0), (0, missing)] + [(0, 0)] * (x.ndim - 2), mode="edge")
    return x.swapaxes(0, 1).reshape(n, size, x.shape[0], *x.shape[2:])


def _before(a: Array, b: Array, state: Array) -> Array:
    """The states before each of n steps `h -> a h + b` (n, ...): before groups of them, then within the groups."""
    n, group = len(a), min(len(a), GROUP)
    rest = [(0, -n % group)] + [(0, 0)] * (a.ndim - 1)
    a, b = (jnp.pad(x, rest).reshape(-1, group, *x.shape[1:]) for x in (a, b))
    steps = [(a[:, i], b[:, i]) for i in range(group)]
    h = state[None] if n <= GROUP else _before(*functools.reduce(_compose, steps), state)
    states = [h]
    for a_i, b_i in steps[:-1]:
        states.append(a_i * states[-1] + b_i)
    return jnp.stack(states, axis=1).reshape(-1, *state.shape)[:n]


@jax.custom_vjp
def _states(a: jax.Array, b: jax.Array, before: jax.Array) -> jax.Array:
    """All `h_i = a_i h_{i-1} + b_i` along the first axis, from `before`."""
    kept, h = lax.associative_scan(_compose, (a, b))
    return h + kept * before[None]


def _states_forward(a: jax.Array, b: jax.Array, before: jax.Array) -> tuple[jax.Array, tuple]:
    h = _states(a, b, before)
    return h, (a, h, before)


def _states_backward(kept: tuple, dh: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """With g_i = dh_i + a_{i+1} g_{i+1}, all that h_i moves: db_i = g_i and da_i = g_i h_{i-1}."""
    a, h, before = kept
    next_a = jnp.concatenate([a[1:], jnp.zeros_like(a[:1])])
    _, g = lax.associative_scan(_compose, (next_a, dh), reverse=True)
    return g * jnp.concatenate([before[None], h[:-1]]), g, a[0] * g[0]


_states.defvjp(_states_forward, _states_backward)


def _compose(first: tuple, second: tuple) -> tuple[jax.Array, jax.Array]:
    """`h -> a h + b`, the first and then the second."""
    return first[0] * second[0], second[0] * first[1] + second[1]
