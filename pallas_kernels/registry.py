"""The kernel packages, and where their parts are: what compile checks and benchmarks go through."""

import importlib
from types import ModuleType

OPS = (
    "taylor_attention", "sliding_window", "gated_linear_attention", "selective_scan", "delta_chunks", "ut_transform",
    "wkv4",
)  # fmt: skip
"""Packages next to this file, each with `api.py` (`BACKENDS`) and `workloads.py` (`GROUPS`)."""


def load(op: str, part: str) -> ModuleType:
    """A module of an op's package.

    Raises:
      ValueError: there is no such op.
    """
    if op not in OPS:
        raise ValueError(f"op={op!r} must be one of {', '.join(OPS)}")
    return importlib.import_module(f"pallas_kernels.{op}.{part}")


def native(op: str, platform: str) -> tuple[str, ...]:
    """Implementations of an op for "gpu" or "tpu" that serve its forward and backward pass there."""
    if platform == "gpu":
        return ("mosaic_gpu", "cudnn") if op == "sliding_window" else ("mosaic_gpu",)
    if op in ("delta_chunks", "ut_transform"):
        return ()
    return ("mosaic_tpu", "splash_tpu") if op == "sliding_window" else ("mosaic_tpu",)
