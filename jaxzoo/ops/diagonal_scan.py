"""Diagonal recurrences in chunks, real or complex: S4D, Liquid-S4, RG-LRU, and Mamba with zero-order hold.

    h_i = a_i * h_{i-1} + b_i        y_i = readout(h_i, token i)

A state can be much larger than its token: Mamba has 16 numbers per channel. So `a`, `b` and `h` never exist for all
tokens. The caller passes the tokens and two functions, which compute `a` and `b` from tokens and outputs from states; a
scan over chunks applies them to `chunk_size` tokens at a time, in the backward pass again.

Inside a chunk, states are computed with products and sums only (no logarithm, quotient or exponential), so any `a` is
safe, 0 included. A CPU processes the tokens of a chunk in order, and computes each token's `a` and `b` again in the
backward pass. Other devices use an associative scan; if a state is larger than its token, all groups of 8 tokens are
processed in parallel, token by token within a group, and states within groups are computed twice. Both passes on two
CPU cores at (b, t) = (64, 64), 128 channels and 16 numbers per channel take 60 ms of CPU time, and 160 ms with arrays
`a` and `b` for a whole chunk.
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

from jaxzoo.ops.naive import scan_tokens
from jaxzoo.ops.segments import document_starts
from jaxzoo.parallel.sequence_parallel import scan_in_parts
from jaxzoo.utils.array_typing import Array, Int
from pallas_kernels.xla_chunks import tokens_at_once

GROUP = 8
"""Tokens per group, and groups per group of groups, that an accelerator processes in order."""
CHUNK = 64
"""Default tokens per chunk on a CPU or TPU."""

Tokens = Any
"""A pytree of arrays `(b, t, ...)`, or `(b, ...)` for a step."""


def naive_diagonal_scan(
    tokens: Tokens,
    coefficients: Callable[[Tokens], tuple[Array, Array]],
    readout: Callable[[Array, Tokens], Array],
    initial_state: Array,
    *,
    segment_ids: Int[Array, "b t"] | None = None,
) -> tuple[Array, Array]:
    """Token-by-token form of `diagonal_scan`."""

    def token(h: Array, now: Tokens) -> tuple[Array, Array]:
        a, b = coefficients(now)
        h = a * h + b
        return h, readout(h, now)

    return scan_tokens(token, initial_state, tokens, segment_ids)


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

    Differentiable in tokens, state, and arrays that the two functions close over, through the output and the final
    state. Both functions work token by token: they must accept tokens with any leading axes, in any order.

    Args:
      tokens: arrays `(b, t, ...)`.
      coefficients: computes `a` and `b` from tokens: the leading axes of the tokens, then those of the state; `a` may
        have any shape that broadcasts to `b`.
      readout: computes outputs from states and their tokens, with the same leading axes. If time is sharded, both
        functions must be `jax.tree_util.Partial`s of the other arrays that they read.
      initial_state: `h` before the first token, `(b, ...)`, float32 or complex64.
      segment_ids: ids of packed documents, int32; each document is one contiguous run of equal ids and sees no other.
        The returned state is the last document's.
      chunk_size: tokens whose states exist at the same time; affects only memory and speed. None: 64, or on a GPU,
        where each chunk takes a dozen launches, as many as `pallas_kernels.xla_chunks` allows.

    Returns:
      y `(b, t, ...)`, and the state after the last token. Memory in both passes: tokens and outputs, one state per
      chunk, and a few times `chunk_size` states. If time is sharded, devices exchange only states.
    """
    # A Partial of a Partial hides the arrays of the inner one.
    coefficients, readout = (f if isinstance(f, Partial) else Partial(f) for f in (coefficients, readout))
    empty = jnp.zeros_like(initial_state)
    run = Partial(functools.partial(_scan, chunk_size=chunk_size), coefficients, readout)
    kept = Partial(functools.partial(_kept, chunk_size=chunk_size), coefficients, empty)
    return scan_in_parts(run, kept, tokens, segment_ids, initial_state, empty)


def _kept(coefficients: Callable, empty: Array, tokens: Tokens, *, chunk_size: int | None) -> Array:
    """Product of all `a`: the final state from a state of ones with every `b` zero."""

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
    """Computes `diagonal_scan` in chunks."""
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
    """One step of `diagonal_scan`; `tokens` are arrays `(b, ...)`."""
    a, b = _masked(coefficients(tokens), None, None, state.dtype)
    state = a * state + b
    return readout(state, tokens), state


def _masked(
    coefficients: tuple[Array, Array], starts: Array | None, given: Array | None, dtype: Any
) -> tuple[Array, Array]:
    """`a` and `b` in one shape and the state's dtype: `a` is 0 where a document starts; padding keeps the state."""
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
    """(b, t, ...) -> (n, size, b, ...). Copies of the last token fill the last chunk."""
    missing = n * size - x.shape[1]
    if missing:
        x = jnp.pad(x, [(0, 0), (0, missing)] + [(0, 0)] * (x.ndim - 2), mode="edge")
    return x.swapaxes(0, 1).reshape(n, size, x.shape[0], *x.shape[2:])


def _before(a: Array, b: Array, state: Array) -> Array:
    """States before each of n steps `h -> a h + b` (n, ...): before groups of steps, then within the groups."""
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
    """VJP: with the total cotangent of h_i, g_i = dh_i + a_{i+1} g_{i+1}: db_i = g_i and da_i = g_i h_{i-1}."""
    a, h, before = kept
    next_a = jnp.concatenate([a[1:], jnp.zeros_like(a[:1])])
    _, g = lax.associative_scan(_compose, (next_a, dh), reverse=True)
    return g * jnp.concatenate([before[None], h[:-1]]), g, a[0] * g[0]


_states.defvjp(_states_forward, _states_backward)


def _compose(first: tuple, second: tuple) -> tuple[jax.Array, jax.Array]:
    """Composition of two maps `h -> a h + b`; `first` is applied first."""
    return first[0] * second[0], second[0] * first[1] + second[1]
