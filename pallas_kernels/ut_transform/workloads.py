"""Workloads of the UT transform: the shapes of `specs.py`, as functions to compile and to time."""

import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from pallas_kernels.ut_transform import specs
from pallas_kernels.ut_transform.api import ut_transform
from pallas_kernels.ut_transform.problem import Problem, ValuesProblem
from pallas_kernels.ut_transform.values import delta_values
from pallas_kernels.workload import Kind, Workload


def outputs(found, spec: Problem):
    """What a call computes: without decays write is the keys, and keep is 1; the keys are an input."""
    return found[:1] if isinstance(spec, ValuesProblem) else found[:2] if spec.decay == "none" else found[:4]


def form(spec: Problem, implementation: str | None):
    """The op of a shape, as a function to a tuple."""
    op = delta_values if isinstance(spec, ValuesProblem) else ut_transform
    return lambda *inputs: tuple(op(*inputs, implementation=implementation))


def _inputs(spec: Problem, kind: Kind, seed: int) -> tuple:
    """Of the op; then cotangents of all that it returns."""
    if kind == "forward":
        return spec.inputs(seed)
    shapes = jax.eval_shape(form(spec, "xla"), *spec.inputs(seed))
    keys = jax.random.split(jax.random.key(seed + 2), len(shapes))
    normal = (jax.random.normal(key, x.shape, jnp.float32).astype(x.dtype) for key, x in zip(keys, shapes, strict=True))
    return *spec.inputs(seed), *normal


def evaluate(run, spec: Problem, kind: Kind, arrays):
    """Outputs, and gradients, of run as `form` makes it."""
    if kind == "forward":
        return outputs(run(*arrays), spec)
    n = len(jax.eval_shape(lambda: spec.inputs(0)))
    found, pull_back = jax.vjp(run, *arrays[:n])
    return outputs(found, spec), pull_back(tuple(arrays[n:]))


def _build(spec: Problem, kind: Kind, implementation: str | None):
    return lambda *arrays: evaluate(form(spec, implementation), spec, kind, arrays)


def _workload(name: str, spec: Problem, kind: Kind) -> Workload:
    flops, n_bytes = spec.forward_flops(), spec.forward_bytes()
    if kind == "forward_backward":
        flops, n_bytes = flops + spec.backward_flops(), n_bytes + spec.backward_bytes()
    return Workload(
        op="ut_transform", name=name, kind=kind, sizes=spec.sizes() | {"dtype": spec.dtype_name},
        build=functools.partial(_build, spec, kind), inputs=functools.partial(_inputs, spec, kind),
        flops=flops, bytes=n_bytes,
    )  # fmt: skip


def _group(shapes: Mapping[str, Problem], *kinds: Kind) -> tuple[Workload, ...]:
    return tuple(_workload(name, spec, kind) for name, spec in shapes.items() for kind in kinds)


GROUPS = {
    "headline": _group(specs.HEADLINE, "forward", "forward_backward"),
    "channel": _group(specs.CHANNEL, "forward", "forward_backward"),
    "cpu": _group(specs.CPU, "forward", "forward_backward"),
}
"""Name of a group -> its workloads."""
