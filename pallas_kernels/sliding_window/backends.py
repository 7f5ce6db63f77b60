"""The implementations of sliding-window attention, under one contract.

    objection(problem) -> why the implementation cannot serve this problem, or None
    forward(q, k, v, start, segment_ids, *, window, scale)                     -> y, lse
    backward(q, k, v, start, segment_ids, y, lse, dy, *, window, scale)        -> dq, dk, dv

t >= 1; q (b, t, h, k), k (b, s, g, k), v (b, s, g, v), of one dtype; y and dy (b, t, h, v); dk and dv, of the shapes
of k and v, are summed over the query heads that share a head. The keys start `past = s - t` tokens before the
queries, 0 <= past < window <= s. Query i sees key j where

    i + past - window < j <= i + past,    j >= start[row],    segment_ids[row, j] = segment_ids[row, i + past]

start (b,) int32 <= past, or None: all keys exist. segment_ids (b, s) int32, or None. Every query sees itself. lse
(b, h, t) float32 is the natural logarithm of sum_j exp(scale q_i.k_j) over the keys that i sees.
"""

from collections.abc import Callable

from pallas_kernels.dispatch import Backend, mesh_objection, needs_wgmma
from pallas_kernels.sliding_window import cudnn, mosaic_gpu_layout, mosaic_tpu, splash_tpu, xla
from pallas_kernels.sliding_window.problem import Problem


def kernels(p: Problem) -> tuple[str, ...]:
    """Implementations that are chosen where they serve, the first on each platform: cuDNN before our kernel only
    where no token leaves the window. Which of the two is faster at which narrower window has not been measured."""
    on_gpu = ("cudnn", "mosaic_gpu") if p.window >= p.past + p.t else ("mosaic_gpu", "cudnn")
    return (*on_gpu, "mosaic_tpu", "splash_tpu")


def _kernel(objection: Callable[[Problem], str | None]) -> Callable[[Problem], str | None]:
    """The objection of a hardware kernel, and what none of them serves."""

    def whole(p: Problem) -> str | None:
        if p.b * p.h == 0:
            return f"batch {p.b} or heads {p.h} are 0"
        if p.segments and p.past:
            return "segment_ids with tokens before, as on a sharded sequence"
        return objection(p) or mesh_objection("sharded_sliding_window_attention")

    return whole


def _mosaic_gpu_forward(*operands, **options):
    from pallas_kernels.sliding_window import mosaic_gpu

    return mosaic_gpu.forward(*operands, **options)


def _mosaic_gpu_backward(*operands, **options):
    from pallas_kernels.sliding_window import mosaic_gpu_vjp

    return mosaic_gpu_vjp.backward(*operands, **options)


BACKENDS = {
    "xla": Backend(None, lambda problem: None, xla.forward, xla.backward),
    "mosaic_gpu": Backend(
        "cuda",
        _kernel(mosaic_gpu_layout.objection),
        _mosaic_gpu_forward,
        _mosaic_gpu_backward,
        needs_wgmma,
        verified_only=True,
    ),
    "cudnn": Backend("cuda", _kernel(cudnn.objection), cudnn.forward, cudnn.backward, cudnn.target_objection),
    "mosaic_tpu": Backend(
        "tpu", _kernel(mosaic_tpu.objection), mosaic_tpu.forward, mosaic_tpu.backward, verified_only=True
    ),
    "splash_tpu": Backend("tpu", _kernel(splash_tpu.objection), splash_tpu.forward, splash_tpu.backward),
}
