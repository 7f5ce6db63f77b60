"""Candidates of a comparison: implementations of a package, other forms of its function, public peers."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pallas_kernels.workload import KINDS, Kind, Workload


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """One competitor."""

    name: str
    build: Callable[[Workload], Callable]
    """The function of the inputs; NotImplementedError: the candidate refuses the workload, and why."""
    kinds: tuple[Kind, ...] = KINDS
    """Workloads that it is meant for; others have no row of it."""
    inputs: Callable[[Workload, int], tuple] | None = None
    """Workload and seed -> its own inputs; None: the workload's."""
    truth: Callable[[Workload], Callable] | None = None
    """Workload -> its own function of float64 inputs; None: the workload's."""
    program: Callable | None = None
    """(function, input sets, calls, gradients=...) -> `programs.Program` of another framework; None: JAX compiles."""
    context: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext
    """Context in which its program is built, traced and lowered."""
    same_function: bool = True
    """Whether the floor of the workload is a floor of this candidate."""


class Peers(NamedTuple):
    """Public peers of an op, as `peers(op, platform)` of a file of `--peers` returns them."""

    candidates: Sequence[Candidate] = ()
    notes: Sequence[str] = ()
    """A line for each peer that is absent."""
    versions: Mapping[str, str] = {}
