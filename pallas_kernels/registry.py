"""The kernel packages, and where their parts are: what compile checks and benchmarks go through."""

import importlib
from types import ModuleType

OPS = (
    "taylor_attention", "sliding_window", "gated_linear_attention", "selective_scan", "delta_chunks", "ut_transform",
    "wkv4",
)  # fmt: skip
"""Packages next to this file, each with `backends.py` (`BACKENDS`) and `workloads.py` (`GROUPS`)."""


def load(op: str, part: str) -> ModuleType:
    """A module of an op's package.

    Raises:
      ValueError: there is no such op.
    """
    if op not in OPS:
        raise ValueError(f"op={op!r} must be one of {', '.join(OPS)}")
    return importlib.import_module(f"pallas_kernels.{op}.{part}")
