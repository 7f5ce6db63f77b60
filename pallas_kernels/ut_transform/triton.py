"""The `triton` implementation of the UT transform; the kernels are imported on use.

Bytes per token and head, with keys of k numbers of e bytes: the forward pass moves e (2k + 64) and 320 of scores, with
decays e (3k + 64), with decays per channel also 4k and 96 of scores. The backward pass computes the inverse again,
e (k + 128) and 320, and moves e (5k + 64); with decays per channel also e k + 12k, 352 of scores and 512 of their
gradients.
"""

import jax.numpy as jnp

from pallas_kernels.triton_call import WIDTHS, Launch, as_rows, like, run, unserved
from pallas_kernels.ut_transform.problem import Problem


def objection(p: Problem) -> str | None:
    """Why the kernels cannot serve a call, or None."""
    if p.chunk != 64:
        return f"chunks are of {p.chunk} tokens, not 64"
    if p.decay == "channel" and p.k > 64:
        return f"with decays per channel key width {p.k} is more than 64"
    return unserved(p, WIDTHS if p.k else ())


def forward(x, beta, log_decay, *, chunk: int):
    """mix, read, write and keep as `xla.forward`; chunks have 64 tokens."""
    return as_rows(_forward)(x, beta, log_decay)


def backward(x, beta, log_decay, dmix, dread, dwrite, dkeep, dkeys, *, chunk: int):
    """Gradients as `xla.backward`; chunks have 64 tokens."""
    return as_rows(_backward)(x, beta, log_decay, dmix, dread, dwrite, dkeep, dkeys)


def _forward(x, beta, log_decay):
    if x.ndim == 5:
        return run(inverse_launch(x, beta, x.dtype))[0], None, None, None
    scores, *tokens = run(scores_launch(x, log_decay))
    return run(inverse_launch(scores, beta, x.dtype))[0], *tokens


def _backward(x, beta, log_decay, dmix, dread, dwrite, dkeep, dkeys):
    scores = x if x.ndim == 5 else run(scores_launch(x, log_decay, tokens=False))[0]
    (found,) = run(inverse_launch(scores, beta, x.dtype, inverse=True))
    if log_decay is None or log_decay.ndim == 3:
        return run(inverse_vjp_launch(x, beta, log_decay, found, dmix, dread, dwrite, dkeep, dkeys))
    dscores, dbeta, _ = run(inverse_vjp_launch(scores, beta, None, found, dmix, None, None, None, None))
    dx, ddecay = run(scores_vjp_launch(x, log_decay, dscores, dread, dwrite, dkeep, dkeys))
    return dx, dbeta, ddecay


def scores_launch(x, log_decay, *, tokens: bool = True) -> Launch:
    """Scores, and if `tokens` read, with decays write and keep of keys."""
    from pallas_kernels.ut_transform import triton_channel_kernels, triton_kernels

    b, n, h, k = _sizes(x)
    decay, constants = log_decay is not None, {"H": h, "K": k, "TOKENS": tokens}
    outputs = (
        like((b, n, h, 64, 64), jnp.float32),
        like(x.shape, x.dtype) if tokens else None,
        like(x.shape, x.dtype) if tokens and decay else None,
        like((b, n, h, k), jnp.float32) if tokens and decay else None,
    )
    if decay and log_decay.ndim == 4:
        grid = b * n * h, 4
        return Launch(triton_channel_kernels.scores_kernel, (x, log_decay), outputs, grid, constants, warps=2)
    constants["DECAY"] = decay  # on capability 10.0, 4 warps spill
    return Launch(triton_kernels.scores_kernel, (x, log_decay), outputs, (b * n * h,), constants, warps=8)


def inverse_launch(scores, beta, dtype, *, inverse: bool = False) -> Launch:
    """mix in dtype; inverse: T."""
    from pallas_kernels.ut_transform.triton_kernels import inverse_kernel

    b, n, h = scores.shape[:3]
    scaled = beta is not None
    constants = {"H": h, "BETA": scaled, "SCALE": scaled and not inverse}
    return Launch(inverse_kernel, (scores, beta), (like(scores.shape, dtype),), (b * n * h,), constants, warps=2)


def inverse_vjp_launch(x, beta, log_decay, found, dmix, dread, dwrite, dkeep, dkeys) -> Launch:
    """Gradients of x, beta and log_decay from T, keys or scores without decays per channel."""
    from pallas_kernels.ut_transform.triton_kernels import inverse_vjp_kernel

    b, n, h, k = _sizes(x)
    rates = like((b, n * 64, h), jnp.float32)
    outputs = like(x.shape, x.dtype), beta if beta is None else rates, log_decay if log_decay is None else rates
    constants = {"H": h, "K": k, "BETA": beta is not None, "DECAY": log_decay is not None}
    inputs = x, beta, log_decay, found, dmix, dread, dwrite, dkeep, dkeys
    return Launch(inverse_vjp_kernel, inputs, outputs, (b * n * h,), constants, warps=8)


def scores_vjp_launch(x, log_decay, dscores, dread, dwrite, dkeep, dkeys) -> Launch:
    """Gradients of keys and decays per channel."""
    from pallas_kernels.ut_transform.triton_channel_kernels import scores_vjp_kernel

    b, n, h, k = _sizes(x)
    outputs = like(x.shape, x.dtype), like(x.shape, jnp.float32)
    inputs = x, log_decay, dscores, dread, dwrite, dkeep, dkeys
    return Launch(scores_vjp_kernel, inputs, outputs, (b * n * h, 4), {"H": h, "K": k}, warps=4)


def _sizes(x) -> tuple[int, int, int, int]:
    """b, n, h and the key width, 0 for scores."""
    b, n, h = x.shape[:3]
    return (b, n, h, 0) if x.ndim == 5 else (b, n // 64, h, x.shape[3])
