"""Sliding-window attention against its truth, cuDNN and public peers.

Reads from a workload: sizes b, t, h, g (key/value heads), d and window, a token itself and the window - 1 before it.
"""

from typing import Any

import jax

from pallas_kernels.benchmark import peers as peers_module
from pallas_kernels.benchmark import softmax
from pallas_kernels.benchmark.candidates import SEQUENCE_KINDS, Candidate, by_kind, implementation
from pallas_kernels.workload import Workload


def candidates(platform: str) -> list[Candidate]:
    names = ("auto", "xla", "mosaic_gpu", "mosaic_tpu", "reference")
    vendor = by_kind(lambda workload: softmax.jax_attention(platform, int(workload.sizes["window"])))
    return [
        *(implementation(name, platform) for name in names),
        Candidate(name="cudnn" if platform == "gpu" else "jax_nn", build=vendor, kinds=SEQUENCE_KINDS),
    ]


def default_names(platform: str) -> tuple[str, ...]:
    return {
        "cpu": ("auto", "xla", "reference", "jax_nn"),
        "gpu": ("auto", "xla", "mosaic_gpu", "cudnn"),
        "tpu": ("auto", "xla", "mosaic_tpu", "jax_nn"),
    }[platform]


def peers(paths: list[str], platform: str) -> tuple[list[Candidate], list[str], dict[str, str]]:
    """torch's flex_attention and scaled_dot_product_attention, flash-attn where it is installed."""
    del paths
    return peers_module.torch_windows(platform)


def truth(workload: Workload, inputs: Any) -> Any:
    """Softmax over the window, from its definition; a step: the package's reference."""
    if workload.kind == "step":
        return workload.build("reference")(*inputs)
    window = int(workload.sizes["window"])

    def forward(q, k, v):
        return softmax.truth(q, k, v, window=window)

    if workload.kind == "forward":
        return forward(*inputs)
    y, pull_back = jax.vjp(forward, *inputs[:3])
    return y, pull_back(inputs[3])
