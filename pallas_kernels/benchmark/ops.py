"""The ops that have a benchmark, by their short names."""

import importlib
import importlib.util
from typing import Any, NamedTuple, cast

from pallas_kernels.benchmark.candidates import Op
from pallas_kernels.workload import Workload

PACKAGES = {"taylor": "taylor_attention", "window": "sliding_window"}


class Loaded(NamedTuple):
    """The package's workloads and what they are compared with."""

    groups: dict[str, tuple[Workload, ...]]
    op: Op


def load(name: str) -> Loaded:
    """The op by its short name.

    Raises:
      ValueError: there is no such op, or its package lists no workloads.
    """
    if name not in PACKAGES:
        raise ValueError(f"op={name!r} must be one of {', '.join(PACKAGES)}")
    package = f"pallas_kernels.{PACKAGES[name]}"
    if importlib.util.find_spec(package) is None or importlib.util.find_spec(f"{package}.workloads") is None:
        raise ValueError(f"op={name!r}: {package}.workloads does not exist in this version")
    groups = importlib.import_module(f"{package}.workloads").GROUPS
    module: Any = importlib.import_module(f"pallas_kernels.benchmark.{name}")
    return Loaded(groups, cast(Op, module))


def default_groups(groups: dict[str, tuple[Workload, ...]], platform: str) -> list[str]:
    """Groups named cpu... on a CPU, the others elsewhere."""
    return [name for name in groups if name.startswith("cpu") == (platform == "cpu")]
