"""Workloads of wkv4: the shapes of `specs.py`, as functions to compile and to time.

Their arrays are k and v; w and u are constants, whose gradients are not among the outputs: as sums over the batch they
could not be checked on some rows alone.
"""

import functools
import math
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from pallas_kernels.wkv4 import mosaic_tpu_layout, specs
from pallas_kernels.wkv4.api import wkv4
from pallas_kernels.wkv4.problem import Problem
from pallas_kernels.wkv4.state import Wkv4State
from pallas_kernels.workload import Kind, Workload


def _forward(spec: Problem, implementation: str | None) -> Callable:
    def run(k, v, **options):
        return wkv4(k, v, *spec.parameters(), implementation=implementation, **options)

    return run


def _forward_backward(spec: Problem, implementation: str | None) -> Callable:
    def run(*arrays):
        *inputs, dy = arrays
        y, pull_back = jax.vjp(_forward(spec, implementation), *inputs)
        return y, pull_back(dy)

    return run


def _step(spec: Problem, implementation: str | None) -> Callable:
    """One token, as a sequence of 1 from a state."""

    def run(state, k, v):
        forward = functools.partial(_forward(spec, implementation), initial_state=state, return_state=True)
        y, state = forward(k[:, None], v[:, None])
        return y[:, 0], state

    return run


def _with_cotangent(spec: Problem, seed: int) -> tuple:
    dy = jax.random.normal(jax.random.key(seed + 1), (spec.b, spec.t, spec.d), jnp.float32).astype(spec.dtype)
    return *spec.inputs(seed), dy


def _token(spec: Problem, seed: int) -> tuple:
    num, scale = jax.random.normal(jax.random.key(seed + 1), (2, spec.b, spec.d), jnp.float32)
    return Wkv4State(num, jnp.ones_like(num), scale), *(x[:, 0] for x in spec.inputs(seed))


def _kept(spec: Problem) -> float:
    """The float32 sums that mosaic_tpu saves."""
    return 0.0 if mosaic_tpu_layout.objection(spec) else 4.0 * math.prod(mosaic_tpu_layout.border_shape(spec))


def _workload(name: str, spec: Problem, kind: Kind) -> Workload:
    build, inputs, flops, n_bytes = {
        "forward": (_forward, Problem.inputs, spec.forward_flops(), spec.forward_bytes()),
        "forward_backward": (
            _forward_backward,
            _with_cotangent,
            spec.forward_flops() + spec.backward_flops(),
            spec.forward_bytes() + spec.backward_bytes(),
        ),
        "step": (_step, _token, spec.step_flops(), spec.step_bytes()),
    }[kind]
    return Workload(
        op="wkv4", name=name, kind=kind, sizes=spec.sizes() | {"dtype": spec.dtype_name},
        build=lambda implementation: build(spec, implementation), inputs=lambda seed: inputs(spec, seed),
        flops=flops, bytes=n_bytes, kept=_kept(spec) if kind == "forward_backward" else 0.0,
    )  # fmt: skip


def _group(shapes: Mapping[str, Problem], *kinds: Kind) -> tuple[Workload, ...]:
    return tuple(_workload(name, spec, kind) for name, spec in shapes.items() for kind in kinds)


GROUPS = {
    "headline": _group(specs.HEADLINE, "forward", "forward_backward"),
    "presets": _group(specs.PRESETS, "forward", "forward_backward"),
    "step": _group(specs.PRESETS, "step"),
    "cpu": _group(specs.CPU, "forward", "forward_backward"),
}
"""Name of a group -> its workloads."""
