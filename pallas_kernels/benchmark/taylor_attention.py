"""Taylor attention against its truth, its definition as cumulative sums, softmax attention and public peers."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.benchmark import softmax
from pallas_kernels.benchmark.candidates import SEQUENCE_KINDS, Candidate, by_kind, implementation
from pallas_kernels.taylor_attention import TaylorState, empty_state, reference
from pallas_kernels.taylor_attention.api import IMPLEMENTATIONS
from pallas_kernels.workload import Workload

BLOCK = 256
"""Chunk length of the truth."""
EPS = 1e-12


def candidates(platform: str) -> list[Candidate]:
    return [
        *(implementation(name) for name in ("auto", *IMPLEMENTATIONS)),
        Candidate(name="naive", build=by_kind(lambda workload: cumulative_sums), kinds=SEQUENCE_KINDS),
        Candidate(
            name="softmax", build=by_kind(lambda workload: softmax.jax_attention(platform)), kinds=SEQUENCE_KINDS,
            inputs=softmax_inputs, truth=softmax_truth, same_function=False,
        ),
    ]  # fmt: skip


def default_names(platform: str) -> tuple[str, ...]:
    others = {"cpu": ("reference", "naive"), "gpu": ("mosaic_gpu",), "tpu": ("mosaic_tpu",)}
    return ("auto", "xla", *others[platform], "softmax")


def truth(workload: Workload, inputs: Any) -> Any:
    """The reference, a block of tokens after the other through its own state, so that memory is linear in t."""
    if workload.kind == "step":
        state, q, k, v = inputs
        y, state = _reference(q[:, None], k[:, None], v[:, None], state)
        return y[:, 0], state
    return _forward(*inputs) if workload.kind == "forward" else _with_gradients(_forward, *inputs)


def _forward(q, k, v):
    b, t, h, k_dim = q.shape
    block = t if t <= 2 * BLOCK else math.gcd(t, BLOCK)
    state = jax.tree.map(lambda x: x.astype(q.dtype), empty_state(b, h, k_dim, v.shape[3]))
    blocks = [jnp.moveaxis(x.reshape(b, t // block, block, *x.shape[2:]), 1, 0) for x in (q, k, v)]

    @jax.checkpoint
    def body(state, qkv):
        q, k, v = qkv
        y, state = _reference(q, k, v, state)
        return state, y

    y = jax.lax.scan(body, state, tuple(blocks))[1]
    return jnp.moveaxis(y, 0, 1).reshape(b, t, h, v.shape[3])


def _reference(q, k, v, state: TaylorState):
    return reference.quadratic(q, k, v, scale=q.shape[-1] ** -0.5, eps=EPS, normalize=True, initial_state=state)


def cumulative_sums(q, k, v):
    """Listing 1 of Based, from eqs. 2-4: y_i = phi(q_i) cumsum(phi(k) v^T)_i / phi(q_i).cumsum(phi(k))_i.

    Materialises (t, b, h, 1 + k + k^2, v); phi(x) = [1, x / k^(1/4), (x x^T) / (2 k)^(1/2)]. The cumulative sum is
    a scan, because `jnp.cumsum` is far slower on a CPU.
    """
    group, dtype = q.shape[2] // k.shape[2], v.dtype
    q, k, v = (jnp.moveaxis(x.astype(jnp.float32), 1, 0) for x in (q, k, v))
    phi_q, phi_k, v = _paper_features(q), *(jnp.repeat(x, group, axis=2) for x in (_paper_features(k), v))
    zero = jnp.zeros((*phi_k.shape[1:], v.shape[3] + 1), jnp.float32)
    values = jnp.concatenate([v, jnp.ones_like(v[..., :1])], axis=-1)

    def add(total, token):
        total = total + token[0][..., :, None] * token[1][..., None, :]
        return total, total

    sums = jax.lax.scan(add, zero, (phi_k, values))[1]
    y = (phi_q[..., None] * sums).sum(-2)
    return jnp.moveaxis(y[..., :-1] / (y[..., -1:] + np.float32(EPS)), 0, 1).astype(dtype)


def _paper_features(x):
    k_dim = x.shape[-1]
    x = x * np.float32(k_dim**-0.25)
    products = (x[..., :, None] * x[..., None, :] * np.float32(0.5**0.5)).reshape(*x.shape[:-1], k_dim**2)
    return jnp.concatenate([jnp.ones_like(x[..., :1]), x, products], axis=-1)


def softmax_inputs(workload: Workload, seed: int) -> tuple:
    """The workload's values and cotangent, with queries and keys as wide as the values."""
    _, _, v, *cotangent = workload.inputs(seed)
    h = int(workload.sizes["h"])
    keys = jax.random.split(jax.random.key(seed + 2), 2)
    q, k = (
        jax.random.normal(key, (*v.shape[:2], heads, v.shape[3]), jnp.float32).astype(v.dtype)
        for key, heads in zip(keys, (h, v.shape[2]), strict=True)
    )
    return q, k, v, *cotangent


def softmax_truth(workload: Workload, inputs: Any) -> Any:
    """Softmax attention at the head dimension of the values."""
    return softmax.truth(*inputs) if workload.kind == "forward" else _with_gradients(softmax.truth, *inputs)


def _with_gradients(f, q, k, v, dy):
    y, pull_back = jax.vjp(f, q, k, v)
    return y, pull_back(dy)
