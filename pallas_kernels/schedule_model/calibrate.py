"""JAX's own kernels through the same model, next to rates that others measured: how far to trust a prediction.

    python -m pallas_kernels.schedule_model.calibrate      needs jax >= 0.12 with its experimental kernels

On a v5e the rates are those of the same kernel, in JAX's guide to matmul. What JAX's Hopper kernels reach on an H100
is not published; the nearest are libraries that do the same work, cuBLAS and FlashAttention-3.

Found with jax 0.12.0, libtpu 0.0.50, ptxas 13.0, as measured / predicted:

- v5e: 1.05 with large blocks (1.21 at 4096^3, where the measurement has its dispatch from Python in it); 1.03 with
  small ones, to which `forecast.STEP` is fitted.
- H100: 1.35 for the matmul, whose tensor cores never rest; 1.26 to 1.30 for attention with 128 features a head, 1.15
  with 64. The clock of the model is the highest, which an H100 does not hold with busy tensor cores: 1.35 is 1.47 GHz.
  So expect 1.15 to 1.35 times the prediction, more the fuller the tensor cores; two predictions compare better.

Every branch of a TPU kernel counts as taken: splash attention with a causal mask, which skips half of its blocks, is
predicted up to twice too slow. Memory counts at its data-sheet bandwidth, of which copies reach some 90 %.
"""

import dataclasses
import functools
import sys
import unittest.mock
from collections.abc import Callable

import jax
import jax.numpy as jnp

from pallas_kernels.compile_check.run import check_module
from pallas_kernels.workload import Workload

JAX_GUIDE = "docs.jax.dev/en/latest/pallas/tpu/matmul.html (with dispatch from Python, some 0.1 ms)"
CUBLAS = "gist.github.com/Chillee/2ec89696db8b7ed1c24461159e325405 (best of cuBLAS and CUTLASS)"
TORCH = "github.com/pytorch/benchmark pull request 2391 (FlashAttention-3)"
FA3 = "github.com/Dao-AILab/flash-attention issue 1777 (FlashAttention-3)"


@dataclasses.dataclass(frozen=True)
class Published:
    """Published measurement."""

    microseconds: float
    source: str


def _gpu_matmul(a, b):
    from jax.experimental.pallas.ops.gpu import hopper_matmul_mgpu as gpu

    config = gpu.TuningConfig(
        tile_m=128, tile_n=128, tile_k=64, max_concurrent_steps=4, grid_tile_width=8, wg_dimension=gpu.MatmulDimension.N
    )
    with unittest.mock.patch.object(gpu, "get_num_sms", return_value=132):  # it asks the device, which is not here
        return gpu.matmul(a, b, None, config)


def _gpu_attention(q, k, v):
    from jax.experimental.pallas.ops.gpu import attention_mgpu as gpu

    return gpu.attention(q, k, v, gpu.TuningConfig(block_q=64, block_kv=128, max_concurrent_steps=2))


def _tpu_matmul(block: tuple[int, ...], x, y):
    from jax.experimental.pallas.ops.tpu import matmul as tpu

    m, n, k = block
    return tpu.matmul(x, y, block_shape=(m, n), block_k=k)


def _splash(q, k, v):
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_kernel as splash,
        splash_attention_mask as masks,
    )

    h, t = q.shape[1], q.shape[2]
    mask = masks.MultiHeadMask([masks.CausalMask((t, t))] * h)
    blocks = splash.BlockSizes(block_q=512, block_kv=512, block_kv_compute=512)
    return jax.vmap(splash.make_splash_mha(mask, block_sizes=blocks, head_shards=1, q_seq_shards=1))(q, k, v)


def _workload(name: str, run: Callable, shapes: tuple[tuple[int, ...], ...], flops: float, dtype) -> Workload:
    inputs = lambda seed: tuple(jnp.zeros(shape, dtype) for shape in shapes)  # noqa: E731
    return Workload(
        op="calibration", name=name, kind="step", sizes={}, build=lambda _: run, inputs=inputs, flops=flops, bytes=0.0
    )


def _matmul(name: str, run: Callable, m: int, n: int, k: int, dtype=jnp.bfloat16) -> Workload:
    return _workload(name, run, ((m, k), (k, n)), 2.0 * m * n * k, dtype)


def _attention(b: int, t: int, h: int, d: int) -> Workload:
    shape = (b, t, h, d)
    return _workload(f"attention_mgpu {shape}", _gpu_attention, (shape,) * 3, 4.0 * b * h * t * t * d, jnp.float16)


def _blocked(size: int, *block: int) -> Workload:
    return _matmul(f"matmul {size}^3 in {block}", functools.partial(_tpu_matmul, block), size, size, size)


GROUPS = {
    "gpu": (
        _matmul("hopper_matmul_mgpu 4224 x 2048 x 8192", _gpu_matmul, 4224, 2048, 8192),
        _attention(4, 4096, 16, 128),
        _attention(1, 16384, 16, 128),
        _attention(16, 1024, 32, 64),
    ),
    "tpu": (
        _blocked(4096, 128, 128, 128),
        _blocked(4096, 512, 1024, 1024),
        _blocked(8192, 512, 1024, 1024),
        _workload(
            "splash causal (1, 8, 4096, 128)", _splash, ((1, 8, 4096, 128),) * 3, 2.0 * 8 * 4096**2 * 128, jnp.bfloat16
        ),
    ),
}
"""As `check_module` takes them. Blocks of the TPU matmul are (m, n, k)."""

PUBLISHED = {
    ("hopper_matmul_mgpu 4224 x 2048 x 8192", "h100"): Published(2e6 * 4224 * 2048 * 8192 / 780.2e12, CUBLAS),
    ("attention_mgpu (4, 4096, 16, 128)", "h100"): Published(4e6 * 64 * 4096**2 * 128 / 590.2e12, TORCH),
    ("attention_mgpu (1, 16384, 16, 128)", "h100"): Published(4e6 * 16 * 16384**2 * 128 / 620.7e12, TORCH),
    ("attention_mgpu (16, 1024, 32, 64)", "h100"): Published(4e6 * 512 * 1024**2 * 64 / 392e12, FA3),
    ("matmul 4096^3 in (128, 128, 128)", "v5e"): Published(11771.5, JAX_GUIDE),
    ("matmul 4096^3 in (512, 1024, 1024)", "v5e"): Published(889.1, JAX_GUIDE),
    ("matmul 8192^3 in (512, 1024, 1024)", "v5e"): Published(6099.4, JAX_GUIDE),
}
"""(workload, target) -> microseconds."""


def main() -> int:
    """Prints the table; 1 if a kernel does not compile."""
    print("| kernel | target | predicted us | measured us | measured / predicted | TFLOP/s predicted | source |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    failed = False
    for group, targets in (("gpu", ("h100",)), ("tpu", ("v5e", "v6e"))):
        flops = {workload.name: workload.flops for workload in GROUPS[group]}
        for report in check_module(__spec__.name, group, targets=targets, model=True):
            failed |= report.error is not None
            total = sum(call.total for call in report.calls)
            known = PUBLISHED.get((report.shape, report.target))
            cells = [report.shape, report.target, f"{total:.0f}"]
            cells += [f"{known.microseconds:.0f}", f"{known.microseconds / total:.2f}"] if known and total else ["", ""]
            rate = f"{flops[report.shape] / total / 1e6:.0f}" if total else str(report.error)
            print("|", " | ".join([*cells, rate, known.source if known else ""]), "|", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
