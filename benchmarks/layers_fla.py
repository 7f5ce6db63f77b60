"""Layers of flash-linear-attention for comparison: the same width and heads, bfloat16 parameters, CUDA graphs.

Its kernels are tuned while other processes compile, which may change the choice.
"""

import argparse
import functools
import importlib
import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Batch = Callable[[int], float]
"""Returns the seconds that n calls of a program take."""
Programs = dict[str, tuple[Callable[[], Batch], int]]
"""For each pass, a function that makes the inputs, and the number of tokens per call."""
LAYERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "delta_net": ("delta_net", "DeltaNet", {}),
    "gated_delta_net": ("gated_deltanet", "GatedDeltaNet", {"expand_v": 1, "head_dim": 64}),
    "gated_linear_attention": ("gla", "GatedLinearAttention", {}),
    "hgrn2": ("hgrn2", "HGRN2Attention", {"expand_ratio": 64}),
    "kimi_delta_attention": ("kda", "KimiDeltaAttention", {"head_dim": 64}),
    "ret_net": ("multiscale_retention", "MultiScaleRetention", {"expand_v": 1}),
    "rwkv6_time_mix": ("rwkv6", "RWKV6Attention", {"expand_k": 1.0, "layer_idx": 0}),
    "rwkv7_time_mix": ("rwkv7", "RWKV7Attention", {"layer_idx": 0, "num_hidden_layers": 24}),
    "taylor_linear_attention": ("based", "BasedLinearAttention", {"feature_dim": 16, "num_key_value_heads": 16}),
}
"""For each mixer, the module of `fla.layers`, the class, and arguments other than width and heads (16 of 64)."""


def prepare(options: argparse.Namespace) -> tuple[dict[str, Any], Programs]:
    """Returns facts of a layer and its passes, which have run once, so that their kernels are compiled and tuned."""
    import torch  # pyright: ignore[reportMissingImports]

    from benchmarks.torch_peers import capture

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    make = {"device": device, "dtype": torch.bfloat16}
    layer = build(options.mixer, options.width, options.heads).to(**make)
    x = torch.randn(options.batch, options.length, options.width, **make, requires_grad=True)
    weights = torch.randn_like(x)
    parameters = list(layer.parameters())

    def output() -> Any:
        found = layer(x)
        return found[0] if isinstance(found, tuple) else found

    def gradients() -> Any:
        return torch.autograd.grad(output(), (x, *parameters), weights, allow_unused=True)

    passes: dict[str, Callable[[], Any]] = {"forward": torch.no_grad()(output), "gradients": gradients}
    refused: dict[str, Exception] = {}
    for name, call in passes.items():
        try:
            call()
        except Exception as error:  # told when its turn comes: the other pass is measured
            refused[name] = error
    versions = {name: importlib.import_module(name).__version__ for name in ("torch", "triton")}
    row = {"mixer": options.mixer, "parameters": sum(p.numel() for p in parameters), **versions}

    def run(name: str) -> Batch:
        if name in refused:
            raise RuntimeError(str(refused[name])) from refused[name]
        replay = passes[name]
        try:
            replay = capture(replay) if device == "cuda" else replay
        except RuntimeError as error:
            row[f"{name} without a CUDA graph"] = str(error)[:300]

        def batch(n: int) -> float:
            start = time.perf_counter()
            for _ in range(n):
                replay()
            if device == "cuda":
                torch.cuda.synchronize()
            return time.perf_counter() - start

        return batch

    return row, {name: (functools.partial(run, name), options.batch * options.length) for name in passes}


def build(mixer: str, width: int, heads: int) -> Any:
    """Imports the layer's module without its package's `__init__`, which loads all models."""
    from benchmarks.torch_peers import import_part

    module, name, arguments = LAYERS[mixer]
    spec = importlib.util.find_spec("fla")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("fla is not installed: pip install fla-core flash-linear-attention")
    part = import_part(Path(spec.origin).parents[1], "fla", ("layers",), module)
    return getattr(part, name)(hidden_size=width, num_heads=heads, **arguments)
