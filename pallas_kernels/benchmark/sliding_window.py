"""Sliding-window attention against its truth, cuDNN and public peers.

Reads from a workload: sizes b, t, h, g (key/value heads) and window, a token itself and the window - 1 before it. A
step's inputs are a cache (k (b, window, g, .), v, position (b,): tokens so far) and one token's q, k, v (b, h or g, .).
"""

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.benchmark import softmax
from pallas_kernels.benchmark.candidates import SEQUENCE_KINDS, Candidate, by_kind, implementation
from pallas_kernels.sliding_window.api import IMPLEMENTATIONS
from pallas_kernels.workload import Workload


def candidates(platform: str) -> list[Candidate]:
    dense = by_kind(lambda workload: softmax.jax_attention("cpu", int(workload.sizes["window"])))
    return [
        *(implementation(name) for name in ("auto", *IMPLEMENTATIONS)),
        Candidate(name="jax_nn", build=dense, kinds=SEQUENCE_KINDS),
    ]


def default_names(platform: str) -> tuple[str, ...]:
    return {
        "cpu": ("auto", "xla", "reference", "jax_nn"),
        "gpu": ("auto", "xla", "mosaic_gpu", "cudnn"),
        "tpu": ("auto", "xla", "mosaic_tpu", "splash_tpu", "jax_nn"),
    }[platform]


def truth(workload: Workload, inputs: Any) -> Any:
    """Softmax over the window, from its definition; a step: over a ring whose slot p % window holds position p."""
    if workload.kind == "step":
        return _step(*inputs)
    window = int(workload.sizes["window"])

    def forward(q, k, v):
        return softmax.truth(q, k, v, window=window)

    if workload.kind == "forward":
        return forward(*inputs)
    y, pull_back = jax.vjp(forward, *inputs[:3])
    return y, pull_back(inputs[3])


def _step(cache, q, k, v):
    window, group = cache.k.shape[1], q.shape[1] // k.shape[1]
    put = jax.vmap(lambda ring, token, position: ring.at[position % window].set(token))
    cache = cache._replace(k=put(cache.k, k, cache.position), v=put(cache.v, v, cache.position))
    keys, values = (jnp.repeat(x, group, axis=2) for x in (cache.k, cache.v))
    scores = jnp.einsum("bhd,bwhd->bhw", q, keys, precision="highest") * jnp.asarray(q.shape[-1] ** -0.5, q.dtype)
    seen = jnp.arange(window, dtype=cache.position.dtype)[None, None, :] <= cache.position[:, None, None]
    y = jnp.einsum("bhw,bwhv->bhv", jax.nn.softmax(jnp.where(seen, scores, -jnp.inf)), values, precision="highest")
    return y, cache._replace(position=cache.position + 1)
