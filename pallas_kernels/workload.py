"""What compile checks and benchmarks run, the same for every kernel package.

A package lists its workloads in `workloads.py`: `GROUPS`, from the name of a group to its workloads.
"""

import dataclasses
from collections.abc import Callable
from typing import Literal

import jax

Kind = Literal["forward", "forward_backward", "step"]
"""`forward_backward` returns the output and the gradients of every input; `step` is one token of decoding."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
    """One kind of call at one shape."""

    op: str
    """Name of the kernel package."""
    name: str
    """Name of the shape, as in the package's `specs.py`."""
    kind: Kind
    sizes: dict[str, int | str]
    """The shape, by dimension, for tables."""
    build: Callable[[str | None], Callable]
    """The function of `inputs` by implementation; None: the automatic choice."""
    inputs: Callable[[int], tuple]
    """Seed -> random arrays; `abstract_inputs` gives their shapes without making them."""
    flops: float
    """Useful matmul operations: the compute floor."""
    bytes: float
    """Compulsory traffic with the main memory: the bandwidth floor."""

    def abstract_inputs(self) -> tuple:
        """Shapes and dtypes of the inputs."""
        return jax.eval_shape(lambda: self.inputs(0))
