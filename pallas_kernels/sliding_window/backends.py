"""The implementations of sliding-window attention, behind one contract.

    objection(problem) -> why the implementation cannot serve this problem, or None
    forward(q, k, v, start, segment_ids, *, window, scale)                     -> y, lse
    backward(q, k, v, start, segment_ids, y, lse, dy, *, window, scale)        -> dq, dk, dv

An implementation without `backward` returns y alone, and is differentiable by itself.
t >= 1; q (b, t, h, k), k (b, s, g, k), v (b, s, g, v), of one dtype; y and dy (b, t, h, v); dk and dv, of the shapes
of k and v, are summed over the query heads that share a head. The keys start `past = s - t` tokens before the
queries, 0 <= past < window <= s. Query i sees key j where

    i + past - window < j <= i + past,    j >= start[row],    segment_ids[row, j] = segment_ids[row, i + past]

start (b,) int32 <= past, or None: all keys exist. segment_ids (b, s) int32, or None. Every query sees itself. lse
(b, h, t) float32 is the natural logarithm of sum_j exp(scale q_i.k_j) over the keys that i sees.
"""

import dataclasses

from pallas_kernels.dispatch import Backend, hopper_objection, mesh_objection
from pallas_kernels.sliding_window import cudnn, mosaic_tpu, xla


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """What an objection may depend on: shapes, dtype, window, and which of the operands there are."""

    b: int
    t: int
    past: int
    h: int
    g: int
    k: int
    v: int
    window: int
    dtype: str
    start: bool
    segments: bool


def kernels(p: Problem) -> tuple[tuple[str, str], ...]:
    """What is chosen on which platform, the first that serves: cuDNN before our kernel only where no token leaves the
    window. Which of the two is faster at which narrower window has not been measured."""
    ours, vendor = ("cuda", "mosaic_gpu"), ("cuda", "cudnn")
    on_gpu = (vendor, ours) if p.window >= p.past + p.t else (ours, vendor)
    return (*on_gpu, ("tpu", "mosaic_tpu"), ("tpu", "splash_tpu"))


def _kernel_objection(p: Problem) -> str | None:
    """What no hardware kernel serves."""
    if p.b * p.h == 0:
        return f"batch {p.b} or heads {p.h} are 0"
    if p.segments and p.past:
        return "segment_ids with tokens before, as on a sharded sequence"
    return mesh_objection("sharded_sliding_window_attention")


def _mosaic_gpu_objection(p: Problem) -> str | None:
    reason = hopper_objection((p.dtype,))
    if reason is not None:
        return reason
    if p.k != p.v or p.k % 16 or not 16 <= p.k <= 128:
        return f"head_dims {p.k} of keys and {p.v} of values are not one multiple of 16 up to 128"
    if p.window > 1024:
        return f"window={p.window} is more than 1024"
    return _kernel_objection(p)


def _mosaic_gpu_forward(*operands, **options):
    from pallas_kernels.sliding_window import mosaic_gpu

    return mosaic_gpu.forward(*operands, **options)


def _mosaic_gpu_backward(*operands, **options):
    from pallas_kernels.sliding_window import mosaic_gpu_vjp

    return mosaic_gpu_vjp.backward(*operands, **options)


def _cudnn_objection(p: Problem) -> str | None:
    if p.past or p.start or p.segments:
        return "tokens before, as in a cache, or segment_ids"
    sizes = {name: getattr(p, name) for name in ("b", "t", "h", "g", "k", "v", "window", "dtype")}
    return _kernel_objection(p) or cudnn.objection(**sizes)


def _mosaic_tpu_objection(p: Problem) -> str | None:
    sizes = {name: getattr(p, name) for name in ("h", "g", "k", "v", "window", "dtype", "segments")}
    return _kernel_objection(p) or mosaic_tpu.objection(**sizes)


def _splash_tpu_objection(p: Problem) -> str | None:
    if p.dtype not in ("bfloat16", "float32"):
        return f"dtype {p.dtype} is not bfloat16 or float32"
    if max(p.k, p.v) > 256:
        return f"head_dim={max(p.k, p.v)} is more than 256"
    if p.t * (p.past + p.t) > 2**32:
        return f"t={p.t} is more than 65536 tokens: splash attention's tables of blocks would take minutes"
    return _kernel_objection(p)


def _splash_tpu_forward(*operands, **options):
    from pallas_kernels.sliding_window import splash_tpu

    return splash_tpu.forward(*operands, **options)


def _splash_tpu_backward(*operands, **options):
    from pallas_kernels.sliding_window import splash_tpu

    return splash_tpu.backward(*operands, **options)


BACKENDS = {
    "xla": Backend(lambda problem: None, xla.forward, xla.backward),
    "mosaic_gpu": Backend(_mosaic_gpu_objection, _mosaic_gpu_forward, _mosaic_gpu_backward),
    "cudnn": Backend(_cudnn_objection, cudnn.attention, None),
    "mosaic_tpu": Backend(_mosaic_tpu_objection, mosaic_tpu.forward, mosaic_tpu.backward),
    "splash_tpu": Backend(_splash_tpu_objection, _splash_tpu_forward, _splash_tpu_backward),
}
