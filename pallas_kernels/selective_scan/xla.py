"""The selective scan in plain XLA: token by token on a CPU, many tokens at once on an accelerator.

A scan processes chunks of tokens; the backward pass recomputes their decays and states. A CPU processes the tokens of a
chunk in turn. On an accelerator groups of 8 tokens are processed in turn, all groups of a chunk at once, and an
associative scan joins the groups; `pallas_kernels.xla_chunks` sets the chunk length on a GPU. Gradients are explicit
there, which moves fewer bytes.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.xla_chunks import in_parallel, keep_of as keep_of, states_before, tokens_at_once

CHUNK = 64
"""Tokens of a chunk on a CPU or TPU."""
GROUP = 8
"""Tokens of a group, processed in turn on an accelerator."""


class Tokens(NamedTuple):
    """Inputs per token, with equal leading axes."""

    x: jax.Array
    """(..., d)."""
    delta: jax.Array
    """(..., d)."""
    b: jax.Array
    """(..., n)."""
    c: jax.Array
    """(..., n)."""
    keep: jax.Array
    """(...,) float32."""


def forward(x, delta, a, b, c, keep, state) -> tuple[jax.Array, jax.Array]:
    """y and the last state (contract in `api.py`); differentiable."""
    rows, t, channels = x.shape
    if state is None:
        state = jnp.zeros((rows, channels, a.shape[1]), jnp.float32)
    keep = jnp.ones((rows, t), jnp.float32) if keep is None else lax.stop_gradient(keep)
    at_once = in_parallel()
    size = tokens_at_once(t, state.size // 2, least=CHUNK) if at_once else CHUNK
    size = -(-min(size, t) // GROUP) * GROUP
    chunks = jax.tree.map(lambda z: _cut(z, size), Tokens(x, delta, b, c, keep))
    chunk = _chunk_at_once if at_once else jax.checkpoint(_chunk_in_turn, prevent_cse=False)
    body = functools.partial(chunk, a.T)
    # States are (b, n, d), with channels on the last axis, which devices parallelize.
    last, y = lax.scan(body, state.swapaxes(1, 2), chunks)
    y = y.reshape(-1, rows, channels)[:t].swapaxes(0, 1)
    return y, last.swapaxes(1, 2)


def backward(x, delta, a, b, c, keep, state, dy, dstate):
    """Gradients of `forward` in x, delta, a, b, c and state; recomputes the forward pass."""
    if dstate is None:
        dstate = jnp.zeros((x.shape[0], *a.shape), jnp.float32)
    operands = (x, delta, a, b, c) if state is None else (x, delta, a, b, c, state)
    pull_back = jax.vjp(lambda x, delta, a, b, c, state=None: forward(x, delta, a, b, c, keep, state), *operands)[1]
    gradients = pull_back((dy, dstate))
    return gradients if state is not None else (*gradients, None)


def _cut(z: jax.Array, size: int) -> jax.Array:
    """(b, t, ...) -> (chunks, size, b, ...), padded with tokens that change no state."""
    missing = -z.shape[1] % size
    fill = 1 if z.ndim == 2 else 0  # tokens of padding keep the state; with delta 0 they do not decay or add to it
    z = jnp.pad(z, [(0, 0), (0, missing)] + [(0, 0)] * (z.ndim - 2), constant_values=fill)
    return z.swapaxes(0, 1).reshape(-1, size, z.shape[0], *z.shape[2:])


def _token(rates, tokens: Tokens):
    """Decay and addition (..., n, d) of tokens; rates (n, d)."""
    x, delta = tokens.x.astype(jnp.float32), tokens.delta.astype(jnp.float32)
    rates = rates.reshape(*[1] * (x.ndim - 1), *rates.shape)
    kept = tokens.keep[..., None, None] * jnp.exp(delta[..., None, :] * rates)
    return kept, _outer(delta * x, tokens.b)


def _read(state, tokens: Tokens):
    """y (..., d) of states (..., n, d)."""
    return (state * tokens.c.astype(jnp.float32)[..., :, None]).sum(-2).astype(tokens.x.dtype)


def _outer(x, maps):
    """x (..., d) times b or c (..., n): (..., n, d)."""
    return x.astype(jnp.float32)[..., None, :] * maps.astype(jnp.float32)[..., :, None]


def _chunk_in_turn(rates, state, tokens: Tokens):
    """The state after a chunk, and y of its tokens (size, b, .)."""

    def token(state, tokens):
        kept, added = _token(rates, tokens)
        state = kept * state + added
        return state, _read(state, tokens)

    return lax.scan(jax.checkpoint(token, prevent_cse=False), state, tokens)


@jax.custom_vjp
def _chunk_at_once(rates, state, tokens: Tokens):
    """`_chunk_in_turn` by groups of tokens: their decays and sums from zeros, then the states before them."""
    by_token = _by_token(tokens)
    h, last = states_before(state, *_joined(rates, by_token))
    outputs = []
    for now in by_token:
        kept, added = _token(rates, now)
        h = kept * h + added
        outputs.append(_read(h, now))
    return last, _by_time(outputs, tokens)


def _by_token(tokens: Tokens) -> list[Tokens]:
    """Splits tokens (size, b, ..) into one (b groups, ..) per position in a group."""
    groups = jax.tree.map(lambda z: z.reshape(-1, GROUP, *z.shape[1:]), tokens)
    return [jax.tree.map(lambda z, i=i: z[:, i].swapaxes(0, 1).reshape(-1, *z.shape[3:]), groups) for i in range(GROUP)]


def _by_time(arrays: list[jax.Array], tokens: Tokens) -> jax.Array:
    """The inverse, of one array for each token of a group: (size, b, ..)."""
    size, rows = tokens.keep.shape
    return jnp.stack(arrays, axis=1).reshape(rows, size, *arrays[0].shape[1:]).swapaxes(0, 1)


def _joined(rates, by_token: list[Tokens]):
    """Sum of every group from zeros, and its decay, (b groups, n, d)."""
    whole, own = _token(rates, by_token[0])
    for now in by_token[1:]:
        kept, added = _token(rates, now)
        whole, own = kept * whole, kept * own + added
    return own, whole


def _at_once_forward(rates, state, tokens: Tokens):
    return _chunk_at_once(rates, state, tokens), (rates, state, tokens)


def _at_once_backward(saved: tuple, cotangents: tuple):
    """Recomputes the chunk's states, and cotangents q from the last token to the first: q <- kept (q + c dy)."""
    (rates, state, tokens), (dlast, dy) = saved, cotangents
    by_token, slopes = _by_token(tokens), [now.x for now in _by_token(tokens._replace(x=dy))]
    own, whole = _joined(rates, by_token)
    h, _ = states_before(state, own, whole)
    q = jnp.zeros_like(own)
    for now, dy in zip(reversed(by_token), reversed(slopes), strict=True):
        q = _token(rates, now)[0] * (q + _outer(dy, now.c))
    q, dstate = states_before(dlast, q, whole, reverse=True)
    states, decays = [h], []
    for now in by_token:
        kept, added = _token(rates, now)
        decays.append(kept)
        states.append(kept * states[-1] + added)
    drates, found = jnp.zeros_like(rates), []
    for i in reversed(range(GROUP)):
        g = q + _outer(slopes[i], by_token[i].c)
        q = decays[i] * g
        p = q * states[i]
        drates += (by_token[i].delta.astype(jnp.float32)[..., None, :] * p).sum(0)
        found.append(_token_gradients(rates, by_token[i], slopes[i], states[i + 1], g, p))
    return drates, dstate, Tokens(*(_by_time(list(z), tokens) for z in zip(*reversed(found), strict=True)))


def _token_gradients(rates, now: Tokens, dy, h, g, p) -> Tokens:
    """Gradients of tokens with states h after them, the cotangents g of those, and p of the exponents."""
    x, delta, b = (z.astype(jnp.float32) for z in (now.x, now.delta, now.b))
    written = (g * b[..., :, None]).sum(-2)
    return Tokens(
        x=(delta * written).astype(now.x.dtype),
        delta=((rates[None] * p).sum(-2) + x * written).astype(now.delta.dtype),
        b=(g * (delta * x)[..., None, :]).sum(-1).astype(now.b.dtype),
        c=(h * dy.astype(jnp.float32)[..., None, :]).sum(-1).astype(now.c.dtype),
        keep=jnp.zeros_like(now.keep),
    )


_chunk_at_once.defvjp(_at_once_forward, _at_once_backward)
