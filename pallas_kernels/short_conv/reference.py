"""Reference of short_conv, token by token."""

import jax
import jax.numpy as jnp


def recurrence(
    x,
    taps,
    *,
    bias=None,
    input_gate=None,
    output_gate=None,
    n_plain=None,
    offsets=None,
    segment_ids=None,
    initial_state=None,
):
    """The equation of `api.py`, in float64 for float64 inputs (under `jax.enable_x64`), else in float32.

    Differentiable to any order in forward and reverse mode. Arguments and results: see `short_conv`, with the state.
    """
    dtype = jnp.float64 if x.dtype == jnp.float64 else jnp.float32
    (rows, _, channels), n_taps = x.shape, len(taps)
    begins = jnp.zeros(x.shape[:2], bool)
    if segment_ids is not None:
        begins = jnp.diff(segment_ids, axis=1, prepend=segment_ids[:, :1]) != 0
    plain = jnp.arange(channels)[None] < (channels if n_plain is None else n_plain)
    first = jnp.zeros((rows, n_taps - 1, channels), x.dtype) if initial_state is None else initial_state
    latest_first = taps[::-1].astype(dtype)[None]
    added = jnp.zeros((1, channels), dtype) if bias is None else bias.astype(dtype)[None]

    def token(register, now):
        x, gate, out, begins = now
        register = jnp.where(begins[:, None, None], 0.0, register)
        window = jnp.concatenate([register, (x * gate)[:, None]], axis=1)
        c = jnp.sum(window * latest_first, axis=1) + added
        return window[:, 1:], jnp.where(plain, c, c * jax.nn.sigmoid(c)) * out

    offsets = jnp.zeros((3, channels), dtype) if offsets is None else offsets.astype(dtype)
    one = jnp.ones(x.shape, dtype)
    tokens = [
        one if z is None else z.astype(dtype) + offset[None, None]
        for z, offset in zip((x, output_gate, input_gate), offsets, strict=True)
    ]
    by_time = tuple(tokens[i].swapaxes(0, 1) for i in (0, 2, 1))
    last, y = jax.lax.scan(token, first.astype(dtype), (*by_time, begins.swapaxes(0, 1)))
    return y.swapaxes(0, 1).astype(x.dtype), last.astype(first.dtype)
