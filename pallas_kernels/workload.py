"""Workloads of compile checks and benchmarks, the same for every kernel package.

A package lists its workloads in `workloads.py`: `GROUPS`, from the name of a group to its workloads.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels.shape import Shape

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
    kept: float = 0.0
    """Bytes that a TPU kernel keeps for its backward pass, apart from inputs and outputs."""

    def abstract_inputs(self) -> tuple:
        """Shapes and dtypes of the inputs."""
        return jax.eval_shape(lambda: self.inputs(0))


class Attention(NamedTuple):
    """An op on q, k, v, .. as the maker of its workloads: functions of its spec, a `Shape`, and an implementation."""

    op: str
    """Name of the kernel package."""
    forward: Callable[[Any, str | None], Callable]
    """(spec, implementation) -> the function of the inputs of the spec."""
    step: Callable[[Any, str | None], Callable]
    """(spec, implementation) -> the function of a state and one token's inputs."""
    state: Callable[[Any, int], Any]
    """(spec, seed) -> a state to step from."""
    kept: Callable[[Any], float] = lambda spec: 0.0
    """Spec -> bytes that a TPU kernel keeps for its backward pass, apart from inputs and outputs."""

    def workload(self, name: str, spec: Shape, kind: Kind) -> Workload:
        """The workload of `kind` at `spec`; a step has `spec.b` rows and no length."""
        build, inputs, flops, n_bytes = {
            "forward": (self.forward, _sequence, spec.forward_flops(), spec.forward_bytes()),
            "forward_backward": (
                self._forward_backward,
                _sequence_and_cotangent,
                spec.forward_flops() + spec.backward_flops(),
                spec.forward_bytes() + spec.backward_bytes(),
            ),
            "step": (self.step, self._token, spec.step_flops(), spec.step_bytes()),
        }[kind]
        sizes = spec.sizes() | {"g": spec.kv_heads, "dtype": spec.dtype_name}
        return Workload(
            op=self.op, name=name, kind=kind, sizes=sizes,
            build=lambda implementation: build(spec, implementation), inputs=lambda seed: inputs(spec, seed),
            flops=flops, bytes=n_bytes, kept=self.kept(spec) if kind == "forward_backward" else 0.0,
        )  # fmt: skip

    def group(self, shapes: Mapping[str, Shape], *kinds: Kind) -> tuple[Workload, ...]:
        """The workloads of every shape and kind."""
        return tuple(self.workload(name, spec, kind) for name, spec in shapes.items() for kind in kinds)

    def _forward_backward(self, spec: Shape, implementation: str | None) -> Callable:
        def run(*arrays):
            *inputs, dy = arrays
            y, pull_back = jax.vjp(self.forward(spec, implementation), *inputs)
            return y, pull_back(dy)

        return run

    def _token(self, spec: Shape, seed: int) -> tuple:
        return self.state(spec, seed + 1), *(x[:, 0] for x in dataclasses.replace(spec, t=1).inputs(seed))


def _sequence(spec: Shape, seed: int) -> tuple:
    return spec.inputs(seed)


def _sequence_and_cotangent(spec: Shape, seed: int) -> tuple:
    shape = (spec.b, spec.t, spec.h, spec.v)
    dy = jax.random.normal(jax.random.key(seed + 1), shape, jnp.float32).astype(spec.dtype)
    return *spec.inputs(seed), dy
