"""Workloads of an op, and the module of this package that names its competitors."""

import importlib
from typing import Any, NamedTuple, cast

from pallas_kernels import registry
from pallas_kernels.benchmark.candidates import Op
from pallas_kernels.workload import Workload


class Loaded(NamedTuple):
    """The package's workloads and what they are compared with."""

    groups: dict[str, tuple[Workload, ...]]
    op: Op


def load(name: str) -> Loaded:
    """An op by its name.

    Raises:
      ValueError: there is no such op.
    """
    groups = registry.load(name, "workloads").GROUPS
    module: Any = importlib.import_module(f"pallas_kernels.benchmark.{name}")
    return Loaded(groups, cast(Op, module))


def default_groups(groups: dict[str, tuple[Workload, ...]], platform: str) -> list[str]:
    """Groups named cpu... on a CPU, the others elsewhere."""
    return [name for name in groups if name.startswith("cpu") == (platform == "cpu")]
