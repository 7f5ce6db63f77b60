"""Gated linear attention against its truth, its definition token by token, and public peers."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.benchmark.candidates import Candidate, implementation
from pallas_kernels.gated_linear_attention import reference
from pallas_kernels.gated_linear_attention.api import IMPLEMENTATIONS
from pallas_kernels.workload import Workload

BLOCK = 128
"""Tokens whose states the gradients of the truth keep at once."""


def candidates(platform: str) -> list[Candidate]:
    del platform
    return [implementation(name) for name in ("auto", *IMPLEMENTATIONS)]


def default_names(platform: str) -> tuple[str, ...]:
    return ("auto", "xla", *{"cpu": ("reference",), "gpu": ("mosaic_gpu",), "tpu": ("mosaic_tpu",)}[platform])


def truth(workload: Workload, inputs: Any) -> Any:
    """The reference; a step is a sequence of one token."""
    if workload.kind == "forward":
        return _forward(*inputs)
    if workload.kind == "step":
        state, *token = inputs
        y, state = reference.recurrence(*(x[:, None] for x in token), initial_state=state)
        return y[:, 0], state
    *arrays, dy = inputs
    y, pull_back = jax.vjp(_forward, *arrays)
    return y, pull_back(dy)


def _forward(*arrays: jax.Array) -> jax.Array:
    """A block of tokens after the other, so that the gradients keep the states of the blocks' borders alone."""
    b, t, h, v = arrays[2].shape
    block = math.gcd(t, BLOCK)
    blocks = [jnp.moveaxis(x.reshape(b, t // block, block, *x.shape[2:]), 1, 0) for x in arrays]

    @jax.checkpoint
    def body(state, tokens):
        y, state = reference.recurrence(*tokens, initial_state=state)
        return state, y

    state = jnp.zeros((b, h, arrays[1].shape[3], v), arrays[2].dtype)
    return jnp.moveaxis(jax.lax.scan(body, state, blocks)[1], 0, 1).reshape(b, t, h, v)
