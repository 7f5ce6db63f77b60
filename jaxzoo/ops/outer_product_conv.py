"""Causal convolution of outer products of keys and values, read by queries (multi-head long convolution).

    y_i = q_i^T sum_a taps[a] (k_{i-a} v_{i-a}^T) = sum_a taps[a] (q_i . k_{i-a}) v_{i-a}

for each head, whose `k v` channels share one filter (Massaroli et al. 2023). The first form is O(t log t), for
training: it convolves the products of one key channel at a time, so that memory holds one array of the size of the
values, in both passes. The second form is for decoding: its history holds keys and values, `k + v` channels per token.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxzoo.layers.causal_conv import whole_conv
from jaxzoo.parallel.sequence_parallel import whole_sequences
from jaxzoo.parallel.sharding import sequence_devices
from jaxzoo.utils.array_typing import Array, Float, Int


def naive_outer_product_conv(
    q: Float[Array, "b t h k"],
    k: Float[Array, "b t h k"],
    v: Float[Array, "b t h v"],
    taps: Float[Array, "w h"],
    history: tuple[Float[Array, "b w-1 h k"], Float[Array, "b w-1 h v"]] | None = None,
    *,
    segment_ids: Int[Array, "b t"] | None = None,
) -> Float[Array, "b t h v"]:
    """Quadratic form of `outer_product_conv`."""
    if history is not None:
        k, v = (jnp.concatenate(parts, axis=1) for parts in zip(history, (k, v), strict=True))
    t, s, w = q.shape[1], k.shape[1], len(taps)
    lag = np.arange(s - t, s)[:, None] - np.arange(s)[None]
    scores = jnp.einsum("bihk,bjhk->bijh", q, k) * taps[np.clip(lag, 0, w - 1)][None]
    seen = ((lag >= 0) & (lag < w))[None]
    if segment_ids is not None:
        seen = seen & (segment_ids[:, :, None] == segment_ids[:, None])
    return jnp.einsum("bijh,bjhv->bihv", jnp.where(seen[..., None], scores, 0), v)


def outer_product_conv(
    q: Float[Array, "b t h k"],
    k: Float[Array, "b t h k"],
    v: Float[Array, "b t h v"],
    taps: Float[Array, "w h"],
    history: tuple[Float[Array, "b w-1 h k"], Float[Array, "b w-1 h v"]] | None = None,
    *,
    segment_ids: Int[Array, "b t"] | None = None,
) -> Float[Array, "b t h v"]:
    """Applies the equation of the module docstring to all tokens, in float32; the output has the dtype of `v`.

    Args:
      taps: `taps[a]` multiplies the products of `a` tokens ago; `w >= 1`.
      history: the previous `w - 1` keys and values; None: zeros.
      segment_ids: ids of packed documents, not with a history; see `causal_conv`.

    Returns:
      `(b, t, h, v)`. Cost: `k` convolutions of `h v` channels. If time is sharded, heads are sharded instead.
    """
    if v.shape[1] == 0:
        return v
    run, past = functools.partial(_whole_conv, segment_ids=segment_ids), () if history is None else history
    if sequence_devices(v.shape[1]) > 1:
        return whole_sequences(run, q, k, v, *past, taps=taps)
    return run(q, k, v, *past, taps)


def _whole_conv(q: Array, k: Array, v: Array, *past_and_taps: Array, segment_ids: Array | None) -> Array:
    """`outer_product_conv` of `t > 0` tokens, for sequences that are not split over devices."""
    *past, taps = past_and_taps
    b, t, h, width = v.shape
    wide = jnp.repeat(taps.astype(jnp.float32), width, axis=1)
    values = v.astype(jnp.float32)
    past_keys, past_values = (each.astype(jnp.float32) for each in past) if past else (None, None)

    @jax.checkpoint
    def read(q_c: jax.Array, k_c: jax.Array, past_k_c: jax.Array | None) -> jax.Array:
        """Contribution of one key channel `(b, t, h)` to the output."""
        past = None
        if past_k_c is not None and past_values is not None:
            past = (past_k_c[..., None] * past_values).reshape(b, past_k_c.shape[1], h * width)
        product = (k_c[..., None] * values).reshape(b, t, h * width)
        convolved = whole_conv(product, wide, past, segment_ids=segment_ids)
        return q_c[..., None] * convolved.reshape(b, t, h, width)

    def channel(y: jax.Array, parts: tuple) -> tuple[jax.Array, None]:
        return y + read(*parts), None

    by_channel = jax.tree.map(lambda x: jnp.moveaxis(x.astype(jnp.float32), -1, 0), (q, k, past_keys))
    return jax.lax.scan(channel, jnp.zeros_like(values), by_channel)[0].astype(v.dtype)


def outer_product_conv_step(
    q: Float[Array, "b h k"],
    k: Float[Array, "b h k"],
    v: Float[Array, "b h v"],
    taps: Float[Array, "w h"],
    history: tuple[Float[Array, "b w-1 h k"], Float[Array, "b w-1 h v"]],
) -> Float[Array, "b h v"]:
    """One token after the `w - 1` keys and values of `history`, oldest first: O(w (k + v)) per head."""
    keys, values = (
        jnp.concatenate([past.astype(jnp.float32), now[:, None].astype(jnp.float32)], axis=1)
        for past, now in zip(history, (k, v), strict=True)
    )
    highest = jax.lax.Precision.HIGHEST
    weights = jnp.einsum("bhk,bwhk->bwh", q.astype(jnp.float32), keys, precision=highest)
    weights = weights * taps[None, ::-1].astype(jnp.float32)
    return jnp.einsum("bwh,bwhv->bhv", weights, values, precision=highest).astype(v.dtype)
