"""Attention to a fixed number of slots: the recurrence of GSA (Zhang et al. 2024) and ABC (Peng et al. 2022).

    Hk_i = Hk_{i-1} Diag(a_i) + k_i s_i^T          Hv_i = Diag(a_i) Hv_{i-1} + s_i v_i^T
    y_i = Hv_i^T softmax(Hk_i^T q_i)               a_i = exp(g_i)

with Hk (k, m), Hv (m, v) for m slots. The second recurrence is linear attention with a decay per key channel. In the
first one the values s decay; it is taken in chunks of `CHUNK` tokens, with the decays between all pairs of a chunk as
running sums, of which none is a difference or a positive exponent.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxzoo.ops.linear_attention import LinearState, linear_attention_from
from jaxzoo.utils.array_typing import Array, Float, Int
from pallas_kernels.gated_linear_attention.xla import with_resets

CHUNK = 16
"""Tokens of a chunk."""


class SlotTokens(NamedTuple):
    """Inputs of the op: tokens `(b, t, ..)`, or one `(b, ..)`."""

    q: Float[Array, "*b h k"]
    """Queries, scaled by the caller."""
    k: Float[Array, "*b h k"]
    v: Float[Array, "*b h v"]
    write: Float[Array, "*b h m"]
    """s, float32."""
    log_decay: Float[Array, "*b h m"]
    """g, at most 0, finite, float32."""


class SlotState(NamedTuple):
    """The sums over the past."""

    keys: Float[Array, "b h k m"]
    """`Hk` of the module docstring, float32."""
    values: Float[Array, "b h m v"]
    """`Hv`, float32."""


def slot_attention(
    tokens: SlotTokens, state: SlotState, segment_ids: Int[Array, "b t"] | None = None
) -> tuple[Float[Array, "*b h v"], SlotState]:
    """The equation of the module docstring for `t >= 0` tokens, or one.

    Args:
      tokens: queries, keys, values, writes and decays.
      state: sums over the tokens before.
      segment_ids: packed documents, int32: each is one contiguous run of equal ids. The state returned is that of the
        last one.

    Returns:
      y in the dtype of v, and the state after the last token.
    """
    one = tokens.q.ndim == 3
    every = jax.tree.map(lambda x: x[:, None], tokens) if one else tokens
    decay = with_resets(every.log_decay, segment_ids)
    logits, keys = _read_keys(every.q, every.k, every.write, decay, state.keys)
    share = jax.nn.softmax(logits[:, 0] if one else logits, axis=-1)
    before, options = LinearState(state.values, None), {"log_decay": tokens.log_decay, "segment_ids": segment_ids}
    y, after = linear_attention_from(before, share, tokens.write, tokens.v, **options)
    return y, SlotState(keys, after.s)


def _read_keys(
    q: Float[Array, "b t h k"],
    k: Float[Array, "b t h k"],
    write: Float[Array, "b t h m"],
    log_decay: Float[Array, "b t h m"],
    state: Float[Array, "b h k m"],
) -> tuple[Float[Array, "b t h m"], Float[Array, "b h k m"]]:
    """`Hk_i^T q_i`, float32, and the last Hk."""
    b, t, h, m = write.shape
    c = min(CHUNK, t)
    if c == 0:
        return write, state
    n, exact = -(-t // c), lax.Precision.DEFAULT if q.dtype == jnp.bfloat16 else lax.Precision.HIGHEST
    product = functools.partial(jnp.einsum, precision=exact, preferred_element_type=jnp.float32)
    later, past = (np.tri(c, k=i, dtype=bool)[None, :, :, None, None] for i in (-1, 0))

    def chunks(x: jax.Array) -> jax.Array:
        x = jnp.pad(x.astype(jnp.float32), [(0, 0), (0, n * c - t), (0, 0), (0, 0)])
        return x.reshape(b, n, c, *x.shape[2:]).swapaxes(0, 1)

    @jax.checkpoint
    def body(state: jax.Array, now: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        q, k, write, g = now
        since = jnp.exp(jnp.cumsum(g, axis=1))  # from the start of the chunk
        between = jnp.cumsum(jnp.where(later, g[:, :, None], 0.0), axis=1)  # b i j h m: g of j + 1 .. i
        weighted = jnp.where(past, jnp.exp(between), 0.0) * write[:, None]
        y = (product("bihk,bjhk->bijh", q, k)[..., None] * weighted).sum(2)
        y = y + since * product("bihk,bhkm->bihm", q, state)
        return since[:, -1, :, None] * state + product("bjhk,bjhm->bhkm", k, weighted[:, -1]), y

    state, y = lax.scan(body, state, tuple(map(chunks, (q, k, write, log_decay))))
    return y.swapaxes(0, 1).reshape(b, n * c, h, m)[:, :t], state


def softmax_over_time(
    logits: Float[Array, "b t h m"], total: Float[Array, "b h m"], segment_ids: Int[Array, "b t"] | None = None
) -> tuple[Float[Array, "b t h m"], Float[Array, "b t h m"], Float[Array, "b h m"]]:
    """Writes and decays of ABC: slot m holds a softmax over the past of the logits of m, as `s = exp(x - z)` and `g =
    z_{i-1} - z_i` with the running `z_i = log(exp z_{i-1} + exp x_i)` of a document.

    Args:
      logits: x, float32; t >= 1.
      total: z of the token before, float32; -inf: there is none.
      segment_ids: packed documents; with them, `total` is -inf.

    Returns:
      s, g (0 at the first token of a document, before which nothing is), and the last z.
    """
    starts = jnp.zeros(logits.shape[:2], bool)
    if segment_ids is not None:
        starts = jnp.diff(segment_ids, axis=1, prepend=segment_ids[:, :1]) != 0
    starts = jnp.broadcast_to(starts[..., None, None], logits.shape)

    def join(earlier: tuple, later: tuple) -> tuple:
        (cut, z), (cuts, x) = earlier, later
        return cut | cuts, jnp.where(cuts, x, jnp.logaddexp(z, x))

    first = logits.at[:, 0].set(jnp.logaddexp(total, logits[:, 0]))
    z = lax.associative_scan(join, (starts, first), axis=1)[1]
    before = jnp.concatenate([total[:, None], z[:, :-1]], axis=1)
    fresh = starts | jnp.isneginf(before)
    return jnp.exp(logits - z), jnp.where(fresh, 0.0, jnp.where(fresh, z, before) - z), z[:, -1]
