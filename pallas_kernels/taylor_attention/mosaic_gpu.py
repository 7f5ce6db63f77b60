"""Taylor attention on Hopper, forward: one Mosaic GPU kernel, split over sequence segments when heads are few.

With s_ij = scale q_i.k_j: y_i = sum_{j <= i} (1 + s + s^2/2) v_j / den_i, den_i = the sum of
weights + eps. Inside a chunk of 64 the weights are formed as written; the past enters through the state
before the chunk, which the other warpgroup scans (`mosaic_gpu_pair`):
  y_i += phi_q(q_i) S,    den_i += n + x_i.z1 + x_i^T Z2 x_i / 2  with x = scale q.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.hopper.tiles import PER_ROW, rows_to
from pallas_kernels.taylor_attention.mosaic_gpu_layout import (
    Heads,
    decay_table,
    decayed_counts,
    join_values,
    pack_state,
    pad_minor,
    pad_time,
    split_scale,
    split_values,
    unpack_state,
    why_not,
)
from pallas_kernels.taylor_attention.mosaic_gpu_pair import ChunkStep, paired_kernel
from pallas_kernels.taylor_attention.mosaic_gpu_parts import load, operand, transposed
from pallas_kernels.taylor_attention.mosaic_gpu_split import (
    CHUNK,
    TRAINING,
    Segments,
    border_states,
    choose_segments,
    value_tiles,
    widths,
)
from pallas_kernels.taylor_attention.mosaic_gpu_state import Scanned, local_states


def _forward_step(chunk: ChunkStep, count, *, normalize, return_den, eps):
    """y of a chunk, from the chunk itself by the quadratic form, and from the state; count: tokens before."""
    products, decay, sizes = chunk.products, chunk.block.decay, chunk.widths
    q, k, v = chunk.tiles("q", "k", "v")
    x = chunk.scaled(load(q))
    since = None if decay is None else decay.since_start(PER_ROW)

    def run(scores, values, *others):
        """Products are awaited in order: scores, those of z, past values, values of the chunk."""
        *past, z = others if normalize else (*others, None)
        products.tiles(scores, q, transposed(k))
        phi = chunk.features(x, sizes.read[0], halved=True)
        chunk.wait_state()
        if normalize:
            chunk.add_z(z, x * jnp.asarray(0.5, x.dtype))
        chunk.add_past(past[0] if past else values, x, halved=True, first=phi)
        weights = _weights(products.load(scores), chunk)
        products.registers(values, weights, v)
        den = None
        if normalize:
            before = (products.load(z) * x.astype(jnp.float32)).sum(axis=1) + count
            den = weights.sum(axis=1) + (before if since is None else before * since) + eps
        y = values[...]
        return (y + past[0][...] * rows_to(since, sizes.values) if past else y), den

    square, narrow, wide = (plgpu.ACC((CHUNK, n), jnp.float32) for n in (CHUNK, sizes.keys, sizes.values))
    y, den = pl.run_scoped(run, square, *[wide] * (1 if decay is None else 2), *[narrow] * normalize)
    chunk.release()
    count = count + np.float32(CHUNK) if decay is None else decay.next_count(count)
    results = {"y": y * rows_to(1.0 / den, sizes.values) if normalize else y}
    return results | ({"den": den} if return_den else {}), count


def _weights(scores, chunk: ChunkStep):
    """1 + s + s^2 / 2 = r^2 + 1/2 with r = (1 + s) / sqrt(2), two fused multiply-adds, where i >= j."""
    root = np.float32(0.5**0.5)
    r = scores * (root * np.float32(chunk.scale)) + root
    met, powers = chunk.meets(query_axis=0)
    weights = jnp.where(met, r * r + 0.5, 0.0)
    return weights if powers is None else weights * powers


class Forward(NamedTuple):
    """Result of `forward`, with what `backward` needs."""

    y: jax.Array  # (b, t, h, v) of q's dtype
    state: tuple[jax.Array, jax.Array] | None  # (b, h, f, v) and (b, h, f) float32 after the last token
    den: jax.Array | None  # (b, h, t) float32: sum of weights + eps
    borders: tuple[jax.Array, jax.Array] | None  # `border_states`


class Plan(NamedTuple):
    heads: Heads
    segments: Segments
    log_decay: jax.Array | None  # (h,)
    block_log_decay: jax.Array | None  # (h * tiles,)
    decay: jax.Array | None  # `decay_table`


def plan_blocks(q, k, v, decay, segments: int | None) -> Plan:
    """Cuts the problem into thread blocks, one per batch row, query head, tile of values and segment."""
    b, t, h, key_dim = q.shape
    heads = Heads(h, k.shape[2], value_tiles(key_dim, v.shape[-1], q.dtype), widths(key_dim, q.dtype))
    split = Segments(t, choose_segments(b * heads.blocks, t, TRAINING) if segments is None else segments)
    log_decay = None if decay is None else jnp.log(decay.astype(jnp.float32))
    per_block = None if decay is None else jnp.repeat(log_decay, heads.tiles)
    return Plan(heads, split, log_decay, per_block, decay_table(log_decay, t))


def kernel_operands(q, k, v, before: float):
    """q times `before`, q and k padded to `Widths.keys` channels, v cut into tiles, all padded in time for TMA, and in
    parts.

    Nothing is copied of bfloat16 where before = 1, k = 16 or 32, and v and t are multiples of 64 and 8.
    """
    t, sizes = q.shape[1], widths(q.shape[3], q.dtype)
    q = q if before == 1 else q * jnp.asarray(before, q.dtype)
    q, k = pad_minor(q, sizes.keys), pad_minor(k, sizes.keys)
    return tuple(operand(pad_time(x, t), sizes.parts) for x in (q, k, split_values(v, sizes.values)))


def forward(
    q, k, v, *, scale=None, eps=1e-12, normalize=True, initial_state=None, decay=None, return_state=True,
    return_den=True, segments=None, interpret=None,
) -> Forward:  # fmt: skip
    """Taylor attention on Hopper and later.

    Args:
      q: (b, t, h, k), bf16 and k <= 32, or float32 and k <= 16; t >= 1.
      k: (b, t, g, k) of q's dtype, g dividing h; query head i reads key head i // (h // g).
      v: (b, t, g, v) of q's dtype; computed in tiles of 64 values, 32 where k > 16 or of float32, each of which repeats
        the work on weights.
      scale: s = scale * q.k; default k^-1/2. One that is no power of two rounds scale * q to q's dtype.
      eps: added to the sum of weights.
      normalize: False leaves out the division, and `den`.
      return_state, return_den: whether these are written; `den` is for `backward`.
      initial_state: public (s, z), (b, h, f, v) and (b, h, f) float32, or None for zeros.
      decay: (h,) in (0, 1], weights and states decay by decay^(i - j); None compiles without it.
      segments: blocks per head over which the sequence is split; default: what a training step would take.
      interpret: `plgpu.InterpretGPUParams` to run on a CPU.
    """
    check_supported(q, k, v)
    b, t, h, key_dim = q.shape
    value_dim = v.shape[-1]
    plan = plan_blocks(q, k, v, decay, segments)
    heads, split = plan.heads, plan.segments
    inside, before = split_scale(key_dim**-0.5 if scale is None else scale)
    q, k, v = kernel_operands(q, k, v, before)
    return_den = return_den and normalize
    boundary, count0 = None, jnp.zeros((b, h), jnp.float32)
    if initial_state is not None:
        boundary, count0 = pack_state(*initial_state, key_dim, heads.widths), initial_state[1][..., 0]
    streams = {"q": (q, heads.of_query), "k": (k, heads.of_key), "v": (v, heads.of_value)}
    scanned, options = Scanned("k", "v"), {"heads": heads, "segments": split, "reverse": False, "interpret": interpret}
    local = local_states(streams, scanned, plan.decay, **options)
    borders = border_states(local, boundary, plan.block_log_decay, segments=split, reverse=False)
    starts = [i * split.chunks_each * CHUNK for i in range(split.count)]
    counts = jnp.stack([decayed_counts(plan.log_decay, count0, n) for n in starts], -1)
    out = paired_kernel(
        "taylor_forward",
        functools.partial(_forward_step, normalize=normalize, return_den=return_den, eps=eps),
        streams=streams,
        scanned=scanned,
        start=borders,
        decay=plan.decay,
        scale=inside,
        outputs={"y": heads.widths.values} | ({"den": None} if return_den else {}),
        last=return_state,
        counts=counts,
        **options,
    )
    state, den = None, None
    if return_state:
        state = unpack_state(
            out["s"], out["z"], decayed_counts(plan.log_decay, count0, t), key_dim, value_dim, heads.widths
        )
    if return_den:
        den = out["den"][:, :: heads.tiles, :t]
    return Forward(join_values(out["y"][:, :t], h, value_dim), state, den, borders)


def check_supported(q, k, v):
    """Raises NotImplementedError for what these kernels do not take."""
    rule = why_not(q.shape[-1], tuple(x.dtype.name for x in (q, k, v)))
    if rule is None and q.shape[1] < 1:
        rule = "t=0"
    if rule:
        raise NotImplementedError(f"mosaic_gpu: {rule}; use implementation='xla'")
