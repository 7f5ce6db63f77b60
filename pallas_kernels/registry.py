"""List of the kernel packages, read by verify, benchmark and compile_check."""

import importlib
from types import ModuleType

OPS = (
    "taylor_attention", "sliding_window", "gated_linear_attention", "selective_scan", "delta_chunks", "ut_transform",
    "wkv4",
)  # fmt: skip
"""Packages with `api.py` (`BACKENDS`) and `workloads.py` (`GROUPS`, `CASES`)."""
FUSED = ("short_conv", "residual_norm", "decode_step")
"""Such packages of operations that only memory bounds: Triton kernels for all NVIDIA GPUs, and no others."""


def load(op: str, part: str) -> ModuleType:
    """Imports a module of an op's package."""
    if op not in (*OPS, *FUSED):
        raise ValueError(f"op={op!r} must be one of {', '.join((*OPS, *FUSED))}")
    return importlib.import_module(f"pallas_kernels.{op}.{part}")


def native(op: str, platform: str) -> tuple[str, ...]:
    """Mosaic and vendors' implementations of an op for "gpu" or "tpu" with a forward and a backward pass."""
    if op in FUSED:
        return ()
    if platform == "gpu":
        return ("mosaic_gpu", "cudnn") if op == "sliding_window" else ("mosaic_gpu",)
    if op in ("delta_chunks", "ut_transform"):
        return ()
    return ("mosaic_tpu", "splash_tpu") if op == "sliding_window" else ("mosaic_tpu",)
