"""Workloads of the recurrence over chunks and, in the group "channel", of the general delta rule: the shapes of
`specs.py`, as functions to compile and to time."""

import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from pallas_kernels.delta_chunks import specs
from pallas_kernels.delta_chunks.api import delta_chunks
from pallas_kernels.delta_chunks.general import general_delta_rule
from pallas_kernels.delta_chunks.problem import GeneralProblem, Problem
from pallas_kernels.workload import Kind, Workload


def _inputs(spec: Problem | GeneralProblem, kind: Kind, seed: int) -> tuple:
    if kind == "forward":
        return spec.inputs(seed)
    shape = (spec.b, spec.t, spec.h, spec.v)
    dy = jax.random.normal(jax.random.key(seed + 1), shape, jnp.float32).astype(spec.dtype)
    return *spec.inputs(seed), dy


def _build(op, kind: Kind, implementation: str | None):
    forward = functools.partial(op, implementation=implementation)
    if kind == "forward":
        return forward

    def run(*arrays):
        *inputs, dy = arrays
        y, pull_back = jax.vjp(forward, *inputs)
        return y, pull_back(dy)

    return run


def _workload(name: str, spec: Problem | GeneralProblem, kind: Kind) -> Workload:
    op = delta_chunks if isinstance(spec, Problem) else general_delta_rule
    flops, n_bytes = spec.forward_flops(), spec.forward_bytes()
    if kind == "forward_backward":
        flops, n_bytes = flops + spec.backward_flops(), n_bytes + spec.backward_bytes()
    return Workload(
        op="delta_chunks", name=name, kind=kind, sizes=spec.sizes() | {"dtype": spec.dtype_name},
        build=functools.partial(_build, op, kind), inputs=functools.partial(_inputs, spec, kind),
        flops=flops, bytes=n_bytes,
    )  # fmt: skip


def _group(shapes: Mapping[str, Problem | GeneralProblem], *kinds: Kind) -> tuple[Workload, ...]:
    return tuple(_workload(name, spec, kind) for name, spec in shapes.items() for kind in kinds)


GROUPS = {
    "headline": _group(specs.HEADLINE, "forward", "forward_backward"),
    "channel": _group(specs.GENERAL, "forward", "forward_backward"),
    "cpu": _group(specs.CPU, "forward", "forward_backward"),
}
"""Name of a group -> its workloads."""
