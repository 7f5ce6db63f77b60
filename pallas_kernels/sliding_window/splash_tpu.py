"""Sliding-window attention on a TPU by JAX's splash attention, whose kernels skip the blocks outside a local mask.

It takes one row (heads, tokens, width), a scale of 1 and whole blocks. So rows are mapped, queries are scaled in their
dtype, and tokens are padded at the end. Masked keys before `start` get their own segment.
"""

import concurrent.futures
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_mask import LocalMask, MultiHeadMask

from pallas_kernels.sliding_window.problem import Problem


def forward(q, k, v, start, segment_ids, *, window: int, scale: float, interpret: bool = False):
    """y (b, t, h, v), lse (b, h, t) float32; arguments: see `api.py`; segment_ids only without start."""
    t, s = q.shape[1], k.shape[1]
    block = block_size(t)
    kernel = _kernel(t, s, window, block, save_residuals=True, interpret=interpret)
    rows = _heads_first(scale * q, block), _heads_first(k, block), _heads_first(v, block)
    y, (lse,) = jax.vmap(kernel)(*rows, _segments(start, segment_ids, q.shape[0], t, s, block))
    return y.swapaxes(1, 2)[:, :t], lse[:, :, :t]


def backward(q, k, v, start, segment_ids, y, lse, dy, *, window: int, scale: float, interpret: bool = False):
    """dq, dk, dv in the dtypes of q, k, v. Repeats the forward pass: splash attention has no public backward pass."""
    del y, lse
    t, s = q.shape[1], k.shape[1]
    block = block_size(t)
    kernel = _kernel(t, s, window, block, interpret=interpret)
    segments = _segments(start, segment_ids, q.shape[0], t, s, block)
    rows = tuple(_heads_first(x, block) for x in (scale * q, k, v))
    _, pull_back = jax.vjp(lambda *x: jax.vmap(kernel)(*x, segments), *rows)
    dq, dk, dv = (x.swapaxes(1, 2) for x in pull_back(_heads_first(dy, block)))
    return scale * dq[:, :t], dk[:, :s], dv[:, :s]


def objection(p: Problem) -> str | None:
    """Why splash attention cannot serve a call, or None."""
    if p.dtype_name not in ("bfloat16", "float32"):
        return f"dtype {p.dtype_name} is not bfloat16 or float32"
    if max(p.k, p.v) > 256:
        return f"head_dim={max(p.k, p.v)} is more than 256"
    if p.t * (p.past + p.t) > 2**32:
        return f"t={p.t} is more than 65536 tokens: splash attention's tables of blocks would take minutes"
    return None


def block_size(t: int) -> int:
    """Block size of queries and keys: the largest that pads t by at most a quarter."""
    return next(block for block in (512, 256, 128) if block == 128 or _padded(t, block) <= 1.25 * _padded(t, 128))


@functools.cache
def _tables(t, s, past, window, block) -> splash.SplashAttentionKernel:
    """Tables of the blocks with visible keys, from t s entries of the mask."""
    sizes = splash.BlockSizes(
        block_q=block, block_kv=block, block_q_dkv=block, block_kv_dkv=block, block_q_dq=block, block_kv_dq=block
    )
    mask = MultiHeadMask([LocalMask((t, s), (window - 1, 0), past)])
    make = functools.partial(splash.make_splash_mha, mask, block_sizes=sizes, head_shards=1, q_seq_shards=1)
    # Another thread is outside the caller's trace and mesh, whose devices may be absent.
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        kernel = thread.submit(make).result()
    # Constants for all devices.
    return jax.tree.map(np.asarray, kernel)


def _kernel(t, s, window, block, **options) -> splash.SplashAttentionKernel:
    tables = _tables(_padded(t, block), _padded(s, block), s - t, window, block)
    infos = tables.fwd_mask_info, tables.dq_mask_info, tables.dkv_mask_info
    return splash.SplashAttentionKernel(*infos, **{**tables.kwargs, **options})


def _segments(start, segment_ids, b, t, s, block) -> splash.SegmentIds | None:
    if segment_ids is not None:
        q_ids, kv_ids = segment_ids[:, s - t :], segment_ids
    elif start is not None:
        q_ids = jnp.zeros((b, t), jnp.int32)
        kv_ids = (jnp.arange(s, dtype=jnp.int32)[None, :] < start[:, None]).astype(jnp.int32)
    else:
        return None

    def end(x):
        return _padded(x.shape[1], block) - x.shape[1]

    return splash.SegmentIds(*(jnp.pad(x, ((0, 0), (0, end(x)))) for x in (q_ids, kv_ids)))


def _heads_first(x, block):
    """(b, t, h, d) -> (b, h, t, d), t padded to whole blocks."""
    return jnp.pad(x.swapaxes(1, 2), ((0, 0), (0, 0), (0, _padded(x.shape[1], block) - x.shape[1]), (0, 0)))


def _padded(n: int, block: int) -> int:
    return -(-n // block) * block
