"""Workloads of Taylor attention: shapes, their calls, and their truth."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.taylor_attention import reference
from pallas_kernels.taylor_attention.api import taylor_attention
from pallas_kernels.taylor_attention.features import n_features
from pallas_kernels.taylor_attention.problem import Problem
from pallas_kernels.taylor_attention.state import TaylorState, taylor_attention_step
from pallas_kernels.workload import OpWorkloads, in_blocks

BLOCK = 256
"""Tokens whose scores the truth has at once."""
EPS = 1e-12
PAPER: dict[str, Any] = {"h": 16, "k": 16, "v": 64}
"""Heads and widths of Based's kernel benchmarks."""
HEADLINE = Problem(b=4, t=8192, **PAPER)
MQAR: dict[str, Any] = {"b": 64, "h": 1, "k": 16, "v": 64, "dtype": jnp.float32}
SHAPES = {
    "headline": {"b4_h16_t8192": HEADLINE},
    "key_dims": {f"b4_h16_t8192_k{k}": dataclasses.replace(HEADLINE, k=k) for k in (24, 32)},
    "float32": {"b4_h16_t8192_float32": dataclasses.replace(HEADLINE, dtype=jnp.float32)},
    "fig5_batch": {f"fig5_b{b}_t1024": Problem(b=b, t=1024, **PAPER) for b in (1, 4, 16, 64, 128, 256)},
    "fig5_length": {f"fig5_b4_t{t}": Problem(b=4, t=t, **PAPER) for t in (1024, 2048, 4096, 8192, 16384, 32768)},
    "step": {f"step_b{b}": Problem(b=b, t=1, **PAPER) for b in (1, 4, 16, 64, 128, 256)},
    "cpu": {
        "mqar_t64": Problem(t=64, **MQAR),
        "mqar_t256": Problem(t=256, **MQAR),
        "text_t2048": Problem(b=4, t=2048, dtype=jnp.float32, **PAPER),
    },
    "cpu_length": {
        f"cpu_b1_h4_t{t}": Problem(b=1, t=t, h=4, k=16, v=64, dtype=jnp.float32) for t in (64, 256, 1024, 4096)
    },
}
"""The shape of the floors in README.md, with the wider features of Based's ablations, and in float32; Based, Fig. 5
left (batch at 1024 tokens) and right (length at batch 4); decoding by batch; what a CPU can run, and where the memory
of other forms grows there."""


def _call(problem: Problem, implementation: str | None) -> Callable:
    del problem
    return functools.partial(taylor_attention, implementation=implementation)


def _step(problem: Problem, implementation: str | None) -> Callable:
    del problem
    if implementation not in (None, "xla"):
        raise NotImplementedError(f"taylor_attention_step: implementation={implementation!r} must be 'xla' or None")
    return taylor_attention_step


def _state(problem: Problem, seed: int) -> TaylorState:
    f = n_features(problem.k)
    keys = jax.random.split(jax.random.key(seed), 2)
    return TaylorState(
        jax.random.normal(keys[0], (problem.b, problem.h, f, problem.v), jnp.float32),
        1.0 + jax.random.uniform(keys[1], (problem.b, problem.h, f), jnp.float32),
    )


def _truth(problem: Problem) -> Callable:
    def run(q, k, v, state):
        if state is None:
            shape = (q.shape[0], problem.h, n_features(problem.k))
            state = TaylorState(jnp.zeros((*shape, problem.v), q.dtype), jnp.zeros(shape, q.dtype))
        return in_blocks(_quadratic, state, (q, k, v), BLOCK)

    return run


def _quadratic(q, k, v, state):
    return reference.quadratic(q, k, v, scale=q.shape[-1] ** -0.5, eps=EPS, normalize=True, initial_state=state)


WORKLOADS = OpWorkloads(op="taylor_attention", call=_call, truth=_truth, state=_state, step=_step)
GROUPS = WORKLOADS.groups(SHAPES)
