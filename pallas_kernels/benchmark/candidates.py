"""Candidates of a comparison: implementations of an op, other forms of its function, public peers."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pallas_kernels.workload import KINDS, Kind, Workload


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """One candidate."""

    name: str
    build: Callable[[Workload], Callable]
    """Workload -> function of the inputs; raises NotImplementedError for unsupported workloads."""
    kinds: tuple[Kind, ...] = KINDS
    """Kinds of workloads that it supports."""
    inputs: Callable[[Workload, int], tuple] | None = None
    """(workload, seed) -> inputs; None: the workload's."""
    truth: Callable[[Workload], Callable] | None = None
    """Workload -> reference function of float64 inputs; None: the workload's."""
    program: Callable | None = None
    """(function, input sets, calls, gradients=...) -> program of another framework, like `JaxProgram`; None: JAX."""
    context: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext
    """Context for building, tracing and lowering its program."""
    same_function: bool = True
    """Whether the floor of the workload holds for this candidate."""


class Peers(NamedTuple):
    """Public peers of an op: result of `peers(op, platform)` in a file of `--peers`."""

    candidates: Sequence[Candidate] = ()
    notes: Sequence[str] = ()
    """A line for each missing peer."""
    versions: Mapping[str, str] = {}
