"""The weighted key-value mean of RWKV-4 (Peng et al. 2023), stable at any keys and decays.

For every channel, with a decay w > 0 and a bonus u for the token itself:

    wkv_t = (sum_{i<t} e^{-(t-1-i) w + k_i} v_i + e^{u + k_t} v_t) / (sum_{i<t} e^{-(t-1-i) w + k_i} + e^{u + k_t})

The sums over the past are `e^max num` and `e^max den`, where `max` is the largest exponent in them, so that nothing
overflows and `den` is never small:

    max_t = max(max_{t-1} - w, k_t)        num_t = e^{max_{t-1} - w - max_t} num_{t-1} + e^{k_t - max_t} v_t

In a chunk of tokens the largest exponents come first, by a scan of sums and maxima alone; given them, `num` and `den`
follow one linear recurrence with factors of at most 1, which a second scan solves. `max` is a choice of scale that
cancels in every output, so no gradient goes through it. Both scans take all tokens of a chunk at once on accelerators;
on a CPU they take them in turn, which is as fast there and compiles in half of the time.

Memory: the scan over chunks keeps its inputs and one state a chunk; everything inside a chunk is computed again in the
backward pass.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import Partial

from jaxzoo.array_typing import Array, Bool, Float, Int
from jaxzoo.sequence_parallel import Composition, scan_in_parts
from pallas_kernels.xla_chunks import tokens_at_once

CHUNK = 64
"""Tokens of a chunk on a CPU or TPU."""
EMPTY = -1e38
"""`max` before the first token: less than any exponent, and finite, so that no difference is NaN."""


class Wkv4State(NamedTuple):
    """The sums over the past, float32: `e^max num` and `e^max den`, those of the equation for the next token."""

    num: Float[Array, "b d"]
    """Sum of the weighted values, over e^max."""
    den: Float[Array, "b d"]
    """Sum of the weights, over e^max."""
    max: Float[Array, "b d"]
    """The largest exponent of a weight."""


def empty_state(batch_size: int, width: int) -> Wkv4State:
    """The state before the first token."""
    zeros = jnp.zeros((batch_size, width), jnp.float32)
    return Wkv4State(zeros, zeros, jnp.full_like(zeros, EMPTY))


def wkv4(
    k: Float[Array, "b t d"],
    v: Float[Array, "b t d"],
    *,
    w: Float[Array, "d"],
    u: Float[Array, "d"],
    segment_ids: Int[Array, "b t"] | None = None,
    initial_state: Wkv4State | None = None,
    chunk_size: int | None = None,
) -> tuple[Float[Array, "b t d"], Wkv4State]:
    """The equation of the module docstring for `t >= 0` tokens from any state.

    Differentiable in all float arguments but `initial_state.max`, through the output and the final state.

    Args:
      k: logarithms of the weights.
      v: values.
      w: decay a token, positive: the past loses the factor e^-w.
      u: bonus of the token itself.
      segment_ids: packed documents, int32: each is one contiguous run of equal ids, and nothing of an earlier one is
        seen. The state returned is that of the last document.
      initial_state: the sums over the tokens before; None: there are none.
      chunk_size: tokens of a chunk; changes memory and speed alone. None: 64; on a GPU, where each chunk takes a dozen
        launches, as many as `pallas_kernels.xla_chunks` allows.

    Returns:
      wkv in the dtype of `v`, and the state after the last token. O(t) time a channel, and memory for the inputs and
      t / chunk_size states. If time is sharded over devices, they exchange only states.
    """
    empty = empty_state(k.shape[0], k.shape[2])
    u, w = (x.astype(jnp.float32) for x in (u, w))
    state = empty if initial_state is None else initial_state
    run = Partial(functools.partial(_in_chunks, chunk_size=chunk_size), w, u)
    return scan_in_parts(run, Partial(_log_kept, w), (k, v), segment_ids, state, empty, LOG_DECAYED)


def _log_kept(w: Float[Array, "d"], tokens: tuple) -> Float[Array, "1 d"]:
    """Logarithm of what all tokens keep of the sums before them."""
    return -w[None] * tokens[0].shape[1]


def _after(log_kept: Float[Array, "#b d"], before: Wkv4State, own: Wkv4State) -> Wkv4State:
    """The sums of some tokens, given those of the tokens before and of their own."""
    past, new = lax.stop_gradient(before.max) + log_kept, lax.stop_gradient(own.max)
    largest = lax.stop_gradient(jnp.maximum(past, new))
    past, new = jnp.exp(past - largest), jnp.exp(new - largest)
    return Wkv4State(past * before.num + new * own.num, past * before.den + new * own.den, largest)


LOG_DECAYED = Composition(_after, jnp.add, 0.0, EMPTY)
"""Parts of a sequence, each with the logarithm of what it keeps."""


def _in_chunks(
    w: Array, u: Array, tokens: tuple, segment_ids: Array | None, state: Wkv4State, *, chunk_size: int | None
) -> tuple[Array, Wkv4State]:
    """`wkv4` chunk by chunk, of keys and values."""
    k, v = tokens
    b, t, d = k.shape
    if segment_ids is None:
        starts = jnp.zeros((1, t), bool)
    else:
        starts = jnp.diff(segment_ids, axis=1, prepend=segment_ids[:, :1]) != 0

    @jax.checkpoint
    def body(state: Wkv4State, tokens: tuple) -> tuple[Wkv4State, Array]:
        k, v, starts, real = tokens
        y, state = _chunk(state, k.astype(jnp.float32), v.astype(jnp.float32), w, u, starts, real)
        return state, y.astype(v.dtype)

    if chunk_size is None:
        chunk_size = tokens_at_once(t, b * d, least=CHUNK)
    size = max(min(chunk_size, t), 1)
    real = jnp.ones((1, t), bool)
    state, y = lax.scan(body, state, tuple(_to_chunks(x, size) for x in (k, v, starts, real)))
    return y.reshape(y.shape[0] * size, b, d)[:t].swapaxes(0, 1), state


def wkv4_step(
    state: Wkv4State,
    k: Float[Array, "b d"],
    v: Float[Array, "b d"],
    *,
    w: Float[Array, "d"],
    u: Float[Array, "d"],
) -> tuple[Float[Array, "b d"], Wkv4State]:
    """One token: `wkv4` with t = 1, at O(1) per channel."""
    dtype, (k, v, w, u) = v.dtype, (x.astype(jnp.float32) for x in (k, v, w, u))
    y = _read(state, k, v, u[None])
    largest = lax.stop_gradient(jnp.maximum(state.max - w[None], k))
    past, new = jnp.exp(state.max - w[None] - largest), jnp.exp(k - largest)
    return y.astype(dtype), Wkv4State(past * state.num + new * v, past * state.den + new, largest)


def _to_chunks(x: jax.Array, size: int) -> jax.Array:
    """(b, t, ...) -> (n, size, b, ...), with zeros (False) after the last token."""
    b, t, *rest = x.shape
    n = -(-t // size)
    x = jnp.pad(x, [(0, 0), (0, n * size - t)] + [(0, 0)] * len(rest))
    return x.swapaxes(0, 1).reshape(n, size, b, *rest)


def _chunk(
    state: Wkv4State, k: Array, v: Array, w: Array, u: Array, starts: Bool[Array, "c b"], real: Bool[Array, "c b"]
) -> tuple[Array, Wkv4State]:
    """Outputs `(c, b, d)` and the state after the chunk. Tokens that are not real, the last ones, change nothing."""
    starts, real = starts[..., None], real[..., None]
    k = jnp.where(real, k, EMPTY)
    log_decay = jnp.where(starts, EMPTY, jnp.where(real, -w[None, None], 0.0))
    first = lax.stop_gradient(state.max)
    largest = lax.stop_gradient(_largest(k, jnp.broadcast_to(log_decay, k.shape), first))
    before = _delayed(largest, first)
    kept, weight = jnp.exp(before + log_decay - largest), jnp.exp(k - largest)
    num, den = _sums(kept, (weight * v, weight), (state.num, state.den))
    past = Wkv4State(_delayed(num, state.num), _delayed(den, state.den), jnp.where(starts, EMPTY, before))
    return _read(past, k, v, u[None, None]), Wkv4State(num[-1], den[-1], largest[-1])


def _read(state: Wkv4State, k: Array, v: Array, u: Array) -> Array:
    """The equation, given the sums before the token."""
    own, before = k + u, lax.stop_gradient(state.max)
    largest = lax.stop_gradient(jnp.maximum(before, own))
    past, own = jnp.exp(before - largest), jnp.exp(own - largest)
    return (past * state.num + own * v) / (past * state.den + own)


def _delayed(x: Float[Array, "c b d"], first: Float[Array, "b d"]) -> Array:
    """The entries of one token ago."""
    return jnp.concatenate([first[None], x[:-1]])


def _largest(k: Float[Array, "c b d"], log_decay: Float[Array, "c b d"], first: Float[Array, "b d"]) -> Array:
    """`max_t` of every token of a chunk."""

    def both(earlier: tuple, later: tuple) -> tuple:
        return earlier[0] + later[0], jnp.maximum(earlier[1] + later[0], later[1])

    return _scan(both, (log_decay, k), (jnp.zeros_like(first), first))[1]


@jax.custom_vjp
def _sums(kept: Array, new: tuple[Array, ...], before: tuple[Array, ...]) -> tuple[Array, ...]:
    """`x_t = kept_t x_{t-1} + new_t` for several sums `(c, b, d)` with the same factors, from x_{-1} `(b, d)`."""
    return _scan(_linear, (kept, *new), (jnp.ones_like(kept[0]), *before))[1:]


def _sums_forward(kept: Array, new: tuple, before: tuple) -> tuple[tuple[Array, ...], tuple]:
    sums = _sums(kept, new, before)
    return sums, (kept, sums, before)


def _sums_backward(residuals: tuple, cotangents: tuple[Array, ...]) -> tuple[Array, tuple, tuple]:
    """A recurrence backwards in time: `g_t = dx_t + kept_{t+1} g_{t+1}`; then dnew = g and dkept_t = g_t x_{t-1}."""
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
    """Two stretches of the recurrence of `_sums` as one: its factor, and what it adds."""
    sums = (x * later[0] + y for x, y in zip(earlier[1:], later[1:], strict=True))
    return earlier[0] * later[0], *sums


def _scan(both: Callable, tokens: tuple, first: tuple, *, reverse: bool = False) -> tuple[Array, ...]:
    """`first` and all tokens up to each one, put together by `both`, which is associative."""
    scans = [functools.partial(scan, both, reverse=reverse) for scan in (in_turn, by_tree)]
    return lax.platform_dependent(tokens, first, cpu=scans[0], default=scans[1])


def in_turn(
    both: Callable[..., Any], tokens: tuple[Any, ...], first: tuple[Any, ...], *, reverse: bool = False
) -> tuple[Array, ...]:
    """`_scan`, one token after the other."""

    def token(before: tuple, now: tuple) -> tuple[tuple, tuple]:
        after = both(before, now)
        return after, after

    return lax.scan(token, first, tokens, reverse=reverse)[1]


def by_tree(
    both: Callable[..., Any], tokens: tuple[Any, ...], first: tuple[Any, ...], *, reverse: bool = False
) -> tuple[Array, ...]:
    """`_scan`, all tokens of a chunk at once."""
    end = -1 if reverse else 0
    tokens = tuple(x.at[end].set(y) for x, y in zip(tokens, both(first, tuple(x[end] for x in tokens)), strict=True))
    return tuple(lax.associative_scan(both, tokens, reverse=reverse))
