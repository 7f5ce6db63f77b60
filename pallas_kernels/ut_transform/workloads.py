"""Workloads of the UT transform: the shapes of `specs.py`, as functions to compile and to time."""

import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from pallas_kernels.ut_transform import specs
from pallas_kernels.ut_transform.api import ut_transform
from pallas_kernels.ut_transform.problem import Problem
from pallas_kernels.workload import Kind, Workload


def outputs(found, problem_decay: str):
    """What a call computes: without decays write is the keys, and keep is 1."""
    return found[:2] if problem_decay == "none" else found[:4]


def _forward(spec: Problem, implementation: str | None):
    return lambda *inputs: outputs(ut_transform(*inputs, implementation=implementation), spec.decay)


def _inputs(spec: Problem, kind: Kind, seed: int) -> tuple:
    """Of the transform, and cotangents of all outputs, the keys' last."""
    if kind == "forward":
        return spec.inputs(seed)
    shapes = jax.eval_shape(lambda *inputs: ut_transform(*inputs, implementation="xla"), *spec.inputs(seed))
    keys = jax.random.split(jax.random.key(seed + 1), len(shapes))
    normal = (jax.random.normal(key, x.shape, jnp.float32).astype(x.dtype) for key, x in zip(keys, shapes, strict=True))
    return *spec.inputs(seed), *normal


def _build(spec: Problem, kind: Kind, implementation: str | None):
    if kind == "forward":
        return _forward(spec, implementation)

    def run(*arrays):
        inputs, cotangents = arrays[:-5], arrays[-5:]
        found, pull_back = jax.vjp(lambda *x: tuple(ut_transform(*x, implementation=implementation)), *inputs)
        return outputs(found, spec.decay), pull_back(cotangents)

    return run


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
    "cpu": _group(specs.CPU, "forward", "forward_backward"),
}
"""Name of a group -> its workloads."""
