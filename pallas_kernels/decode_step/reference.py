"""Decode steps by their definitions, for any float dtype: functions of the operands of `api.py`."""

import jax
import jax.numpy as jnp
import numpy as np


def taylor(q, k, v, s, z, decay, options):
    """y, s and z, with the sum over features written as the polynomial's terms, one by one."""
    n, group = q.shape[-1], q.shape[1] // k.shape[1]
    k, v = (jnp.repeat(x, group, axis=1) for x in (k, v))
    kept = jnp.ones((q.shape[1],), s.dtype) if decay is None else decay
    powers = [()] + [(a,) for a in range(n)] + [(a, b) for a in range(n) for b in range(a, n)]
    y, weight, sums, weights = 0.0, 0.0, [], []
    for f, factors in enumerate(powers):
        key, query = jnp.ones_like(k[..., 0]), jnp.ones_like(q[..., 0])
        for a in factors:
            key, query = key * k[..., a], query * options.scale * q[..., a]
        if len(factors) == 2 and factors[0] == factors[1]:
            query = query / 2
        sums.append(kept[None, :, None] * s[:, :, f] + key[..., None] * v)
        weights.append(kept[None] * z[:, :, f] + key)
        y, weight = y + query[..., None] * sums[-1], weight + query * weights[-1]
    if options.normalize:
        y = y / (weight + options.eps)[..., None]
    return y, jnp.stack(sums, axis=2), jnp.stack(weights, axis=2)


def window(q, k, v, ring_k, ring_v, position, options):
    """y and the ring: the slot of the new token, and a softmax over the slots that are written."""
    slots = jnp.arange(ring_k.shape[1], dtype=jnp.int32)[None]
    here = (slots == position[:, None] % ring_k.shape[1])[:, :, None, None]
    ring_k, ring_v = jnp.where(here, k[:, None], ring_k), jnp.where(here, v[:, None], ring_v)
    keys, values = (jnp.repeat(x, q.shape[1] // k.shape[1], axis=2) for x in (ring_k, ring_v))
    scores = options.scale * jnp.einsum("bhk,bwhk->bhw", q, keys)
    scores = jnp.where((slots <= position[:, None])[:, None], scores, -jnp.inf)
    return jnp.einsum("bhw,bwhv->bhv", jax.nn.softmax(scores, axis=-1), values), ring_k, ring_v


def conv(x, taps, bias, input_gate, output_gate, history, options):
    """y and the history."""
    gated = x if input_gate is None else x * input_gate
    inputs = jnp.concatenate([history, gated[:, None]], axis=1)
    y = jnp.einsum("bwd,wd->bd", inputs, taps[::-1])
    y = y if bias is None else y + bias[None]
    y = jnp.where(np.arange(x.shape[1])[None] < options.n_plain, y, jax.nn.silu(y))
    return y if output_gate is None else y * output_gate, inputs[:, 1:]
