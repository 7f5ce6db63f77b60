"""Workloads of compile checks and benchmarks.

`GROUPS` in an op's `workloads.py` maps the name of a group to its workloads. Groups named step... are decode steps of
one token, groups named cpu... are for a CPU.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp

Kind = Literal["forward", "forward_backward", "step"]
"""`forward_backward` returns the output and the gradients of every input; `step` is a decode step of one token."""
KINDS: tuple[Kind, ...] = ("forward", "forward_backward", "step")
SEQUENCE_KINDS: tuple[Kind, ...] = ("forward", "forward_backward")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
    """One kind of call at one shape."""

    op: str
    """Name of the kernel package."""
    name: str
    """Name of the shape."""
    kind: Kind
    sizes: dict[str, int | str]
    """Sizes by dimension, for tables."""
    build: Callable[[str | None], Callable]
    """Implementation (None: the automatic choice) -> function of `inputs`."""
    truth: Callable
    """Reference function: float64 outputs of float64 inputs, under `jax.enable_x64`."""
    inputs: Callable[[int], tuple]
    """Seed -> random arrays."""
    flops: float
    """Useful matmul FLOPs: the compute floor."""
    bytes: float
    """Compulsory memory traffic: the bandwidth floor."""
    kept: float = 0.0
    """Bytes of the residuals of a TPU kernel, beyond inputs and outputs."""

    def abstract_inputs(self) -> tuple:
        """Shapes and dtypes of the inputs."""
        return jax.eval_shape(lambda: self.inputs(0))


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpWorkloads:
    """Makes an op's workloads from its problems, which define shapes, inputs, FLOPs and bytes."""

    op: str
    """Name of the kernel package."""
    call: Callable[[Any, str | None], Callable]
    """(problem, implementation) -> function of the problem's inputs, `initial_state` and `return_state`."""
    truth: Callable[[Any], Callable]
    """Problem -> reference function of the inputs and a state (or None): output and last state."""
    state: Callable[[Any, int], Any] | None = None
    """(problem, seed) -> random state of a decode step."""
    step: Callable[[Any, str | None], Callable] | None = None
    """(problem, implementation) -> function of a state and one token's inputs; None: `call` of one token."""
    step_truth: Callable | None = None
    """Reference of `step`; None: `truth` of one token."""
    outputs: Callable[[Any, Any], Any] = lambda found, problem: found
    """(results of `call`, problem) -> results that are computed, i.e. neither constants nor inputs."""
    kept: Callable[[Any], float] = lambda problem: 0.0
    """Problem -> `Workload.kept`."""

    def workload(self, name: str, problem: Any, kind: Kind) -> Workload:
        """Workload of a kind and a problem; a step has `problem.b` rows and no length."""
        if kind == "step":
            flops, moved = problem.step_flops(), problem.step_bytes()
        else:
            flops, moved = problem.forward_flops(), problem.forward_bytes()
        if kind == "forward_backward":
            flops, moved = flops + problem.backward_flops(), moved + problem.backward_bytes()
        groups = {"g": problem.kv_heads} if hasattr(problem, "kv_heads") else {}
        return Workload(
            op=self.op, name=name, kind=kind, sizes=problem.sizes() | groups | {"dtype": problem.dtype_name},
            build=lambda implementation: self._function(problem, kind, implementation),
            truth=self._truth(problem, kind), inputs=lambda seed: self._inputs(problem, kind, seed),
            flops=flops, bytes=moved, kept=self.kept(problem) if kind == "forward_backward" else 0.0,
        )  # fmt: skip

    def group(self, shapes: Mapping[str, Any], *kinds: Kind) -> tuple[Workload, ...]:
        """Workloads of every shape and kind."""
        return tuple(self.workload(name, problem, kind) for name, problem in shapes.items() for kind in kinds)

    def groups(self, shapes: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[Workload, ...]]:
        """Workloads of groups of shapes."""
        return {
            name: self.group(group, *(("step",) if name.startswith("step") else SEQUENCE_KINDS))
            for name, group in shapes.items()
        }

    def _function(self, problem: Any, kind: Kind, implementation: str | None) -> Callable:
        call = self.call(problem, implementation)
        if kind == "step":
            return self.step(problem, implementation) if self.step is not None else _one_token(call)
        return self._evaluated(call, problem, kind)

    def _truth(self, problem: Any, kind: Kind) -> Callable:
        definition = self.truth(problem)
        if kind != "step":
            return self._evaluated(lambda *inputs: definition(*inputs, None)[0], problem, kind)

        def one(*token, initial_state, return_state):
            return definition(*token, initial_state)

        return self.step_truth or _one_token(one)

    def _evaluated(self, call: Callable, problem: Any, kind: Kind) -> Callable:
        """Function that returns outputs, and for forward_backward the gradients of all inputs."""

        def forward(*inputs):
            return self.outputs(call(*inputs), problem)

        def forward_backward(*arrays):
            with jax.enable_x64(False):
                n = len(jax.eval_shape(problem.inputs))
            found, pull_back = jax.vjp(call, *arrays[:n])
            cotangents = jax.tree.unflatten(jax.tree.structure(found), arrays[n:])
            return self.outputs(found, problem), pull_back(cotangents)

        return forward if kind == "forward" else forward_backward

    def _inputs(self, problem: Any, kind: Kind, seed: int) -> tuple:
        """Inputs of the op, followed by cotangents of its results, or for a step after a state."""
        if kind == "step":
            assert self.state is not None
            token = dataclasses.replace(problem, t=1).inputs(seed)
            return self.state(problem, seed + 1), *(x[:, 0] for x in token)
        inputs = problem.inputs(seed)
        if kind == "forward":
            return inputs
        outputs = jax.tree.leaves(jax.eval_shape(self.call(problem, "xla"), *inputs))
        keys = jax.random.split(jax.random.key(seed + 2), len(outputs))
        normal = (jax.random.normal(key, x.shape, jnp.float32) for key, x in zip(keys, outputs, strict=True))
        return *inputs, *(z.astype(x.dtype) for z, x in zip(normal, outputs, strict=True))


def _one_token(call: Callable) -> Callable:
    """Function of a state and one token's inputs: `call` with a sequence of length 1."""

    def run(state, *token):
        y, state = call(*(x[:, None] for x in token), initial_state=state, return_state=True)
        return y[:, 0], state

    return run


def in_blocks(recurrence: Callable, state: Any, arrays: tuple, size: int = 128) -> tuple[jax.Array, Any]:
    """Output and last state of `recurrence(*arrays, state)`, whose gradients keep one state per block of tokens."""
    b, t = arrays[0].shape[:2]
    whole = t - t % size

    @jax.checkpoint
    def body(state, tokens):
        y, state = recurrence(*tokens, state)
        return state, y

    blocks = [jnp.moveaxis(x[:, :whole].reshape(b, -1, size, *x.shape[2:]), 1, 0) for x in arrays]
    parts = []
    if whole:
        state, y = jax.lax.scan(body, state, blocks)
        parts.append(jnp.moveaxis(y, 0, 1).reshape(b, whole, *y.shape[3:]))
    if whole < t:
        state, y = body(state, [x[:, whole:] for x in arrays])
        parts.append(y)
    return jnp.concatenate(parts, axis=1), state
