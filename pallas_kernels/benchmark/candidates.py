"""Candidates of a comparison: implementations of a package, other forms of its function, public peers."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax

from pallas_kernels.workload import Kind, Workload

KINDS: tuple[Kind, ...] = ("forward", "forward_backward", "step")
SEQUENCE_KINDS: tuple[Kind, ...] = ("forward", "forward_backward")


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
    truth: Callable[[Workload, Any], Any] | None = None
    """Its own float64 outputs from float64 inputs; None: the op's."""
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


class Op(Protocol):
    """Description of an op by its module in this package (`taylor_attention.py`, `sliding_window.py`)."""

    def candidates(self, platform: str) -> list[Candidate]:
        """Everything but peers, on "cpu", "gpu" or "tpu"."""
        ...

    def default_names(self, platform: str) -> tuple[str, ...]:
        """Candidates that run unless others are asked for; peers always do."""
        ...

    def truth(self, workload: Workload, inputs: Any) -> Any:
        """float64 inputs -> float64 outputs, under `jax.enable_x64`."""
        ...


def implementation(name: str) -> Candidate:
    """An implementation of the op's package; "auto": its own choice."""
    return Candidate(name=name, build=lambda workload: workload.build(None if name == "auto" else name))


def by_kind(forward: Callable[[Workload], Callable]) -> Callable[[Workload], Callable]:
    """`Candidate.build` of y = forward(q, k, v), with the gradients of all three where the kind asks for them."""

    def build(workload: Workload) -> Callable:
        f = forward(workload)

        def run(q, k, v, dy):
            y, pull_back = jax.vjp(f, q, k, v)
            return y, pull_back(dy)

        return f if workload.kind == "forward" else run

    return build
