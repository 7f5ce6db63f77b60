"""wkv4 in plain XLA: the tokens of a chunk in turn on a CPU, in parallel on an accelerator.

The sums over past tokens are `e^max num` and `e^max den`, where `max` is the largest exponent, so nothing overflows and
`den` is never small:

    max_t = max(max_{t-1} - w, k_t)        num_t = e^{max_{t-1} - w - max_t} num_{t-1} + e^{k_t - max_t} v_t

Within a chunk, a first scan computes the largest exponents; a second one solves the linear recurrence of `num` and
`den`, whose factors are at most 1. `max` cancels in every output and has no gradient. Both scans are parallel on
accelerators, and sequential on a CPU. The backward pass recomputes chunks.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.wkv4.state import EMPTY, Wkv4State, empty_state
from pallas_kernels.xla_chunks import keep_of as keep_of, tokens_at_once

CHUNK = 64
"""Tokens of a chunk on a CPU or TPU."""


def forward(k, v, w, u, keep, state, *, chunk_size: int | None = None) -> tuple[jax.Array, Wkv4State]:
    """y and the last state (contract in `api.py`) for t >= 0 tokens; differentiable.

    chunk_size: tokens of a chunk; None: 64, on a GPU from `xla_chunks.py`.
    """
    b, t, d = k.shape
    state = empty_state(b, d) if state is None else state
    starts = jnp.zeros((1, t), bool) if keep is None else keep == 0

    @jax.checkpoint
    def body(state: Wkv4State, tokens: tuple) -> tuple[Wkv4State, jax.Array]:
        k, v, starts, real = tokens
        y, state = _chunk(state, k.astype(jnp.float32), v.astype(jnp.float32), w, u, starts, real)
        return state, y.astype(v.dtype)

    if chunk_size is None:
        chunk_size = tokens_at_once(t, b * d, least=CHUNK)
    size = max(min(chunk_size, t), 1)
    real = jnp.ones((1, t), bool)
    state, y = lax.scan(body, state, tuple(_to_chunks(x, size) for x in (k, v, starts, real)))
    return y.reshape(y.shape[0] * size, b, d)[:t].swapaxes(0, 1), state


def backward(k, v, w, u, keep, state, dy, dstate: Wkv4State | None):
    """Gradients of `forward` in k, v, w, u and state; recomputes the forward pass."""
    operands = (k, v, w, u) if state is None else (k, v, w, u, state)
    (_, last), pull_back = jax.vjp(lambda k, v, w, u, state=None: forward(k, v, w, u, keep, state), *operands)
    gradients = pull_back((dy, jax.tree.map(jnp.zeros_like, last) if dstate is None else dstate))
    return gradients if state is not None else (*gradients, None)


def read(state: Wkv4State, k: jax.Array, v: jax.Array, u: jax.Array) -> jax.Array:
    """The equation, from the sums before the token."""
    own, before = k + u, lax.stop_gradient(state.max)
    largest = lax.stop_gradient(jnp.maximum(before, own))
    past, own = jnp.exp(before - largest), jnp.exp(own - largest)
    return (past * state.num + own * v) / (past * state.den + own)


def _to_chunks(x: jax.Array, size: int) -> jax.Array:
    """(b, t, ...) -> (n, size, b, ...), with zeros (False) after the last token."""
    b, t, *rest = x.shape
    n = -(-t // size)
    x = jnp.pad(x, [(0, 0), (0, n * size - t)] + [(0, 0)] * len(rest))
    return x.swapaxes(0, 1).reshape(n, size, b, *rest)


def _chunk(
    state: Wkv4State, k: jax.Array, v: jax.Array, w: jax.Array, u: jax.Array, starts: jax.Array, real: jax.Array
) -> tuple[jax.Array, Wkv4State]:
    """Outputs `(c, b, d)` and the state after the chunk; padding tokens at the end change nothing."""
    starts, real = starts[..., None], real[..., None]
    k = jnp.where(real, k, EMPTY)
    log_decay = jnp.where(starts, EMPTY, jnp.where(real, -w[None, None], 0.0))
    first = lax.stop_gradient(state.max)
    largest = lax.stop_gradient(_largest(k, jnp.broadcast_to(log_decay, k.shape), first))
    before = _delayed(largest, first)
    kept, weight = jnp.exp(before + log_decay - largest), jnp.exp(k - largest)
    num, den = _sums(kept, (weight * v, weight), (state.num, state.den))
    past = Wkv4State(_delayed(num, state.num), _delayed(den, state.den), jnp.where(starts, EMPTY, before))
    return read(past, k, v, u[None, None]), Wkv4State(num[-1], den[-1], largest[-1])


def _delayed(x: jax.Array, first: jax.Array) -> jax.Array:
    """Entries of the previous token."""
    return jnp.concatenate([first[None], x[:-1]])


def _largest(k: jax.Array, log_decay: jax.Array, first: jax.Array) -> jax.Array:
    """`max_t` of every token of a chunk."""

    def both(earlier: tuple, later: tuple) -> tuple:
        return earlier[0] + later[0], jnp.maximum(earlier[1] + later[0], later[1])

    return _scan(both, (log_decay, k), (jnp.zeros_like(first), first))[1]


@jax.custom_vjp
def _sums(kept: jax.Array, new: tuple[jax.Array, ...], before: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    """`x_t = kept_t x_{t-1} + new_t` for several sums `(c, b, d)` with the same factors, from x_{-1} `(b, d)`."""
    return _scan(_linear, (kept, *new), (jnp.ones_like(kept[0]), *before))[1:]


def _sums_forward(kept: jax.Array, new: tuple, before: tuple) -> tuple[tuple[jax.Array, ...], tuple]:
    sums = _sums(kept, new, before)
    return sums, (kept, sums, before)


def _sums_backward(residuals: tuple, cotangents: tuple[jax.Array, ...]) -> tuple[jax.Array, tuple, tuple]:
    """Backward recurrence `g_t = dx_t + kept_{t+1} g_{t+1}`; dnew = g and dkept_t = g_t x_{t-1}."""
    kept, sums, before = residuals
    none = jnp.zeros_like(kept[0])
    next_kept = jnp.concatenate([kept[1:], none[None]])
    g = _scan(_linear, (next_kept, *cotangents), (none, *(none for _ in cotangents)), reverse=True)[1:]
    terms = [g_x * _delayed(x, first) for g_x, x, first in zip(g, sums, before, strict=True)]
    # Without the barrier XLA fuses the whole tree into the sums over time that follow, which takes minutes to compile.
    dkept = lax.optimization_barrier(sum(terms[1:], terms[0]))
    return dkept, g, tuple(kept[0] * g_x[0] for g_x in g)


_sums.defvjp(_sums_forward, _sums_backward)


def _linear(earlier: tuple, later: tuple) -> tuple:
    """Joins two parts of the recurrence of `_sums`: factor and sum."""
    sums = (x * later[0] + y for x, y in zip(earlier[1:], later[1:], strict=True))
    return earlier[0] * later[0], *sums


def _scan(both: Callable, tokens: tuple, first: tuple, *, reverse: bool = False) -> tuple[jax.Array, ...]:
    """Inclusive scan of `first` and the tokens with the associative function `both`."""
    scans = [functools.partial(scan, both, reverse=reverse) for scan in (in_turn, by_tree)]
    return lax.platform_dependent(tokens, first, cpu=scans[0], default=scans[1])


def in_turn(
    both: Callable[..., Any], tokens: tuple[Any, ...], first: tuple[Any, ...], *, reverse: bool = False
) -> tuple[jax.Array, ...]:
    """Sequential `_scan`."""

    def token(before: tuple, now: tuple) -> tuple[tuple, tuple]:
        after = both(before, now)
        return after, after

    return lax.scan(token, first, tokens, reverse=reverse)[1]


def by_tree(
    both: Callable[..., Any], tokens: tuple[Any, ...], first: tuple[Any, ...], *, reverse: bool = False
) -> tuple[jax.Array, ...]:
    """Parallel `_scan`."""
    end = -1 if reverse else 0
    tokens = tuple(x.at[end].set(y) for x, y in zip(tokens, both(first, tuple(x[end] for x in tokens)), strict=True))
    return tuple(lax.associative_scan(both, tokens, reverse=reverse))
