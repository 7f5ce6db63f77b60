"""Taylor attention's workloads: the shapes of `specs.py`, as functions to compile and to time."""

import dataclasses

import jax
import jax.numpy as jnp

from pallas_kernels.taylor_attention import specs
from pallas_kernels.taylor_attention.api import taylor_attention, taylor_attention_step
from pallas_kernels.taylor_attention.features import n_features
from pallas_kernels.taylor_attention.specs import Spec
from pallas_kernels.taylor_attention.state import TaylorState
from pallas_kernels.workload import Kind, Workload


def workload(name: str, spec: Spec, kind: Kind) -> Workload:
    """The workload of `kind` at `spec`; a step has `spec.b` rows and no length."""
    build, inputs, flops, n_bytes = {
        "forward": (_forward, _sequence, spec.forward_flops(), spec.forward_bytes()),
        "forward_backward": (
            _forward_backward,
            _sequence_and_cotangent,
            spec.forward_flops() + spec.backward_flops(),
            spec.forward_bytes() + spec.backward_bytes(),
        ),
        "step": (_step, _token, spec.step_flops(), spec.step_bytes()),
    }[kind]
    sizes = {f.name: getattr(spec, f.name) for f in dataclasses.fields(spec) if f.name not in ("dtype", "g")}
    sizes |= {"g": spec.kv_heads, "dtype": jnp.dtype(spec.dtype).name}
    return Workload(
        op="taylor_attention", name=name, kind=kind, sizes=sizes, build=build,
        inputs=lambda seed: inputs(spec, seed), flops=flops, bytes=n_bytes,
    )  # fmt: skip


def _forward(implementation):
    return lambda q, k, v: taylor_attention(q, k, v, implementation=implementation)


def _forward_backward(implementation):
    def run(q, k, v, dy):
        y, pull_back = jax.vjp(_forward(implementation), q, k, v)
        return y, pull_back(dy)

    return run


def _step(implementation):
    if implementation not in (None, "xla"):
        raise NotImplementedError(f"taylor_attention_step: implementation={implementation!r} must be 'xla' or None")
    return taylor_attention_step


def _sequence(spec: Spec, seed: int) -> tuple:
    return spec.inputs(seed)


def _sequence_and_cotangent(spec: Spec, seed: int) -> tuple:
    shape = (spec.b, spec.t, spec.h, spec.v)
    dy = jax.random.normal(jax.random.key(seed + 1), shape, jnp.float32).astype(spec.dtype)
    return *spec.inputs(seed), dy


def _token(spec: Spec, seed: int) -> tuple:
    f = n_features(spec.k)
    keys = jax.random.split(jax.random.key(seed + 1), 2)
    state = TaylorState(
        jax.random.normal(keys[0], (spec.b, spec.h, f, spec.v), jnp.float32),
        1.0 + jax.random.uniform(keys[1], (spec.b, spec.h, f), jnp.float32),
    )
    q, k, v = dataclasses.replace(spec, t=1).inputs(seed)
    return state, q[:, 0], k[:, 0], v[:, 0]


def _group(shapes: dict[str, Spec], *kinds: Kind) -> tuple[Workload, ...]:
    return tuple(workload(name, spec, kind) for name, spec in shapes.items() for kind in kinds)


GROUPS = {
    "headline": _group(specs.HEADLINE, "forward", "forward_backward"),
    "fig5_batch": _group(specs.FIGURE_5_BATCH, "forward", "forward_backward"),
    "fig5_length": _group(specs.FIGURE_5_LENGTH, "forward", "forward_backward"),
    "step": _group(specs.STEP, "step"),
    "cpu": _group(specs.CPU, "forward", "forward_backward"),
    "cpu_length": _group(specs.CPU_LENGTH, "forward", "forward_backward"),
}
"""Name of a group -> its workloads: the paper's figures, decoding, and what a CPU can run."""
