"""short_conv in plain XLA: shifted adds with float32 sums, every step rounded to the dtype of x."""

import jax
import jax.numpy as jnp


def convolve(x: jax.Array, taps: jax.Array, history: jax.Array | None = None) -> jax.Array:
    """`y_i = sum_a taps[a] x_{i-a}` in the dtype of x (b, t, d); `history` (b, w - 1, d): the inputs before x."""
    n_taps, t = taps.shape[0], x.shape[1]
    signal, taps = x.astype(jnp.float32), taps.astype(jnp.float32)
    if history is None:
        signal = jnp.pad(signal, ((0, 0), (n_taps - 1, 0), (0, 0)))
    else:
        signal = jnp.concatenate([history.astype(jnp.float32), signal], axis=1)
    terms = [signal[:, n_taps - 1 - a : n_taps - 1 - a + t] * taps[a][None, None, :] for a in range(n_taps)]
    return sum(terms[1:], terms[0]).astype(x.dtype)


def documents_of(segment_ids: jax.Array | None) -> jax.Array | None:
    """Numbers of the documents, from 0 in each row; a document is a run of equal ids."""
    if segment_ids is None:
        return None
    return document_count(jnp.diff(segment_ids, axis=1, prepend=segment_ids[:, :1]) != 0)


def document_count(starts: jax.Array) -> jax.Array:
    """Document numbers of the tokens, from a mask of the first tokens."""
    return jnp.cumsum(starts.astype(jnp.int32), axis=1)


def convolve_packed(x: jax.Array, taps: jax.Array, documents: jax.Array, history: jax.Array | None = None) -> jax.Array:
    """`convolve` of float32 inputs and taps within documents; the history belongs to document 0."""
    t, before = x.shape[1], taps.shape[0] - 1
    if history is None:
        signal = jnp.pad(x, ((0, 0), (before, 0), (0, 0)))
    else:
        signal = jnp.concatenate([history.astype(jnp.float32), x], axis=1)
    owner = jnp.pad(documents, ((0, 0), (before, 0)), constant_values=-1 if history is None else 0)
    y = jnp.zeros_like(x)
    for a in range(taps.shape[0]):
        then = slice(before - a, before - a + t)
        same = (owner[:, then] == documents)[..., None]
        y += jnp.where(same, signal[:, then], 0.0) * taps[a][None, None, :]
    return y


def with_offsets(x, output_gate, input_gate, offsets) -> tuple:
    """x and gates with their offsets added."""
    if offsets is None:
        return x, output_gate, input_gate
    named = zip((x, output_gate, input_gate), offsets, strict=True)
    return tuple(None if z is None else z + offset[None, None].astype(z.dtype) for z, offset in named)


def direct(x, taps, bias, input_gate, output_gate, history, documents, offsets, *, n_plain: int) -> jax.Array:
    """y (contract in `api.py`); differentiable."""
    x, output_gate, input_gate = with_offsets(x, output_gate, input_gate, offsets)
    if input_gate is not None:
        x = input_gate * x
    if documents is None:
        y = convolve(x, taps, history)
    else:
        y = convolve_packed(x.astype(jnp.float32), taps.astype(jnp.float32), documents, history).astype(x.dtype)
    return finish(y, bias, output_gate, n_plain=n_plain)


def finish(y: jax.Array, bias: jax.Array | None, output_gate: jax.Array | None, *, n_plain: int) -> jax.Array:
    """`silu(y + bias) . output_gate` for y (..., d); the first `n_plain` channels have no SiLU."""
    if bias is not None:
        y = y + bias.astype(y.dtype).reshape((1,) * (y.ndim - 1) + bias.shape)
    if n_plain == 0:
        y = jax.nn.silu(y)
    elif n_plain < y.shape[-1]:
        y = jnp.concatenate([y[..., :n_plain], jax.nn.silu(y[..., n_plain:])], axis=-1)
    return y if output_gate is None else y * output_gate


def forward(*operands, options) -> tuple[jax.Array, None]:
    """Forward pass (contract in `api.py`), which saves nothing."""
    return direct(*operands, n_plain=options.n_plain), None


def backward(x, taps, bias, input_gate, output_gate, history, documents, offsets, saved, dy, *, options) -> tuple:
    """Gradients of `forward`; recomputes it."""
    del saved

    def run(x, taps, bias, input_gate, output_gate, history, offsets):
        return direct(x, taps, bias, input_gate, output_gate, history, documents, offsets, n_plain=options.n_plain)

    return jax.vjp(run, x, taps, bias, input_gate, output_gate, history, offsets)[1](dy)
