"""The `triton` implementation of the UT transform; the kernels are imported on use.

Bytes per token and head, with keys of k numbers of e bytes: the forward pass moves e (2k + 64), with decays per token
e (3k + 64), with decays per channel e (3k + 64) + 4k and 512 of scores. The backward pass computes the inverse again,
e (k + 128), and moves e (5k + 64); with decays per channel also e k + 12k, 768 of scores and 512 of their gradients.
"""

import jax
import jax.numpy as jnp

from pallas_kernels.delta_chunks.triton import DTYPES, WIDTHS
from pallas_kernels.triton_call import Launch, as_rows, run
from pallas_kernels.ut_transform.problem import Problem


def objection(p: Problem) -> str | None:
    """Why the kernels cannot serve a call, or None."""
    if p.chunk != 64:
        return f"chunks are of {p.chunk} tokens, not 64"
    if p.k not in (0, *WIDTHS):
        return f"key width {p.k} is not one of {', '.join(map(str, WIDTHS))}"
    if p.decay == "channel" and p.k > 64:
        return f"with decays per channel key width {p.k} is more than 64"
    return None if p.dtype_name in DTYPES else f"dtype {p.dtype_name} is not one of {', '.join(DTYPES)}"


def forward(x, beta, log_decay, *, chunk: int):
    """mix, read, write and keep as `xla.forward`; chunks have 64 tokens."""
    return as_rows(_forward)(x, beta, log_decay)


def backward(x, beta, log_decay, dmix, dread, dwrite, dkeep, dkeys, *, chunk: int):
    """Gradients as `xla.backward`; chunks have 64 tokens."""
    return as_rows(_backward)(x, beta, log_decay, dmix, dread, dwrite, dkeep, dkeys)


def _forward(x, beta, log_decay):
    if not _per_channel(log_decay):
        mix, *others = run(inverse_launch(x, beta, log_decay, x.dtype))
        if x.ndim == 5:
            return mix, None, None, None
        return mix, *(others if log_decay is not None else (others[0], None, None))
    scores, read, write, keep = run(scores_launch(x, log_decay))
    return run(inverse_launch(scores, beta, None, x.dtype))[0], read, write, keep


def _backward(x, beta, log_decay, dmix, dread, dwrite, dkeep, dkeys):
    given = x, log_decay
    if _per_channel(log_decay):
        given = run(scores_launch(x, log_decay, tokens=False))[0], None
    (found, *_) = run(inverse_launch(given[0], beta, given[1], x.dtype, inverse=True))
    cotangents = (None,) * 4 if _per_channel(log_decay) else (dread, dwrite, dkeep, dkeys)
    dx, dbeta, ddecay = run(inverse_vjp_launch(given[0], beta, given[1], found, dmix, *cotangents))
    if _per_channel(log_decay):
        dx, ddecay = run(scores_vjp_launch(x, log_decay, dx, dread, dwrite, dkeep, dkeys))
    return dx, None if beta is None else dbeta, None if log_decay is None else ddecay


def inverse_launch(x, beta, log_decay, dtype, *, inverse: bool = False) -> Launch:
    """mix in dtype, read, write, keep of keys or scores without decays per channel; inverse: T in place of mix only."""
    from pallas_kernels.ut_transform.triton_kernels import inverse_kernel

    b, n, h, k = _sizes(x)
    tokens, decay = k > 0 and not inverse, log_decay is not None
    outputs = (
        jax.ShapeDtypeStruct((b, n, h, 64, 64), dtype),
        _output(x.shape, x.dtype, b, tokens),
        _output(x.shape, x.dtype, b, tokens and decay),
        _output((b, n, h, k), jnp.float32, b, tokens and decay),
    )
    constants = {
        "H": h, "K": k, "BETA": beta is not None, "DECAY": decay, "SCALE": beta is not None and not inverse,
        "TOKENS": tokens,
    }  # fmt: skip
    inputs = x, _or(beta, x), _or(log_decay, x)
    return Launch(inverse_kernel, inputs, outputs, (b * n * h,), constants, warps=2)


def inverse_vjp_launch(x, beta, log_decay, found, dmix, dread, dwrite, dkeep, dkeys) -> Launch:
    """Gradients of x, beta and log_decay from T, keys or scores without decays per channel."""
    from pallas_kernels.ut_transform.triton_kernels import inverse_vjp_kernel

    b, n, h, k = _sizes(x)
    outputs = (
        jax.ShapeDtypeStruct(x.shape, x.dtype),
        _output((b, n * 64, h), jnp.float32, b, beta is not None),
        _output((b, n * 64, h), jnp.float32, b, log_decay is not None),
    )
    constants = {"H": h, "K": k, "BETA": beta is not None, "DECAY": log_decay is not None}
    others = (_or(z, x) for z in (beta, log_decay, found, dmix, dread, dwrite, dkeep, dkeys))
    return Launch(inverse_vjp_kernel, (x, *others), outputs, (b * n * h,), constants, warps=8)


def scores_launch(x, log_decay, *, tokens: bool = True) -> Launch:
    """Scores, and if `tokens` read, write and keep of keys with decays per channel."""
    from pallas_kernels.ut_transform.triton_channel_kernels import scores_kernel

    b, n, h, k = _sizes(x)
    outputs = (
        jax.ShapeDtypeStruct((b, n, h, 64, 64), jnp.float32),
        *[_output(x.shape, x.dtype, b, tokens)] * 2,
        _output((b, n, h, k), jnp.float32, b, tokens),
    )
    constants = {"H": h, "K": k, "TOKENS": tokens}
    return Launch(scores_kernel, (x, log_decay), outputs, (b * n * h, 4), constants, warps=2)


def scores_vjp_launch(x, log_decay, dscores, dread, dwrite, dkeep, dkeys) -> Launch:
    """Gradients of keys and decays per channel."""
    from pallas_kernels.ut_transform.triton_channel_kernels import scores_vjp_kernel

    b, n, h, k = _sizes(x)
    outputs = jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct(x.shape, jnp.float32)
    inputs = x, log_decay, dscores, dread, dwrite, dkeep, dkeys
    return Launch(scores_vjp_kernel, inputs, outputs, (b * n * h, 4), {"H": h, "K": k}, warps=4)


def _per_channel(log_decay) -> bool:
    return log_decay is not None and log_decay.ndim == 4


def _sizes(x) -> tuple[int, int, int, int]:
    """b, n, h and the key width, 0 for scores."""
    b, n, h = x.shape[:3]
    return (b, n, h, 0) if x.ndim == 5 else (b, n // 64, h, x.shape[3])


def _or(x, other):
    """An operand, or memory in place of None, which the kernel does not read."""
    return other if x is None else x


def _output(shape, dtype, rows: int, made: bool) -> jax.ShapeDtypeStruct:
    """An output; if it is not made, the smallest array with the same rows."""
    return jax.ShapeDtypeStruct(shape if made else (rows,), dtype)
