"""Reference of gated linear attention, token by token."""

import jax
import jax.numpy as jnp


def recurrence(q, k, v, log_decay, *, initial_state=None, segment_ids=None):
    """The equation of `api.py`, in float64 for float64 inputs (under `jax.enable_x64`), else in float32.

    Differentiable to any order in forward and reverse mode. Arguments and results: see `gated_linear_attention`.
    """
    (b, t, h, v_dim), k_dim = v.shape, k.shape[3]
    dtype = v.dtype if v.dtype == jnp.float64 else jnp.float32
    q, k = (jnp.repeat(x, h // x.shape[2], axis=2) for x in (q, k))
    kept = jnp.exp(log_decay.astype(dtype).reshape(b, t, h, -1))
    if segment_ids is not None:
        begins = jnp.diff(segment_ids, axis=1, prepend=segment_ids[:, :1]) != 0
        kept = jnp.where(begins[..., None, None], jnp.zeros((), dtype), kept)
    state = jnp.zeros((b, h, k_dim, v_dim), dtype) if initial_state is None else initial_state

    def token(state, x):
        q, k, v, kept = x
        state = kept[..., None] * state + k[..., :, None] * v[..., None, :]
        return state, (q[..., :, None] * state).sum(2)

    by_time = [x.astype(dtype).swapaxes(0, 1) for x in (q, k, v, kept)]
    state, y = jax.lax.scan(token, state, tuple(by_time))
    return y.swapaxes(0, 1).astype(v.dtype), state
