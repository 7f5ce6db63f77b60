"""Stand-ins for cuDNN's attention in plans for absent GPUs, where cuDNN does not compile.

They compute nothing, but read and write the arrays of cuDNN's calls, so that the rest of the program has its real
traffic, memory and launches. cuDNN's workspace (float32 sums of dq, in the backward pass) is not counted.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, cast

import jax
import jax.numpy as jnp

from pallas_kernels.op import forget_tables
from pallas_kernels.sliding_window.api import BACKENDS
from pallas_kernels.sliding_window.problem import Problem

NAME = "cudnn_stand_in"
WIDEST_HEAD = 128
"""Widest head with a backward pass in cuDNN; jax.nn.dot_product_attention asks for a multiple of 8 too."""


@contextlib.contextmanager
def stand_in(platform: str) -> Iterator[None]:
    """Context manager: programs that are lowered for `platform` "cuda" call stand-ins for cuDNN."""
    table: dict[str, Any] = cast(dict[str, Any], BACKENDS)
    backend = table["cudnn"]
    if platform == "cuda":
        table["cudnn"] = backend._replace(forward=_forward, backward=_backward, target_objection=_objection)
        forget_tables()
    try:
        yield
    finally:
        table["cudnn"] = backend
        forget_tables()


def _objection(problem: Problem, device: Any) -> str | None:
    del device
    fits = problem.k % 8 == 0 and problem.k <= WIDEST_HEAD
    return None if fits else f"head_dim {problem.k} is not a multiple of 8 up to {WIDEST_HEAD}"


def _forward(q, k, v, start, segment_ids, *, window: int, scale: float):
    del start, segment_ids, window, scale
    b, t, h, _ = q.shape
    lse = jax.ShapeDtypeStruct((b, h, t), jnp.float32)
    return _call((q, k, v), (jax.ShapeDtypeStruct((b, t, h, v.shape[3]), v.dtype), lse))


def _backward(q, k, v, start, segment_ids, y, lse, dy, *, window: int, scale: float):
    del start, segment_ids, window, scale
    return _call((q, k, v, y, lse, dy), tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (q, k, v)))


def _call(operands: tuple, outputs: tuple) -> tuple:
    """A kernel of one warpgroup that accesses none of its operands and outputs."""
    from jax.experimental.pallas import mosaic_gpu as plgpu

    def cudnn_stand_in(*refs: Any) -> None:
        del refs

    lane = plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane)
    kernel = plgpu.kernel(
        cudnn_stand_in, out_type=outputs, num_threads=1, thread_name="warpgroup", compiler_params=lane
    )
    return tuple(kernel(*operands))
