"""Layers of flash-linear-attention next to ours: the same width and heads, parameters in bfloat16, in CUDA graphs.

Its kernels are tuned while other processes compile; the choice is kept on disk and may differ from one made alone.
"""

import functools
import importlib
import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.layers import Batch, Command, Prepared

LAYERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "delta_net": ("delta_net", "DeltaNet", {}),
    "gated_delta_net": ("gated_deltanet", "GatedDeltaNet", {"expand_v": 1, "head_dim": 64}),
    "gated_linear_attention": ("gla", "GatedLinearAttention", {}),
    "hgrn2": ("hgrn2", "HGRN2Attention", {"expand_ratio": 64}),
    "kimi_delta_attention": ("kda", "KimiDeltaAttention", {"head_dim": 64}),
    "ret_net": ("multiscale_retention", "MultiScaleRetention", {"expand_v": 1}),
    "rwkv6_time_mix": ("rwkv6", "RWKV6Attention", {"expand_k": 1.0, "layer_idx": 0}),
    "rwkv7_time_mix": ("rwkv7", "RWKV7Attention", {"layer_idx": 0, "num_hidden_layers": 24}),
    "taylor_linear_attention": ("based", "BasedLinearAttention", {"feature_dim": 16}),
}
"""By mixer: module of `fla.layers`, class, and its arguments besides width and heads."""


def prepare(command: "Command") -> "tuple[dict[str, Any], Prepared]":
    """Builds the layer and runs each pass once, which compiles and tunes its kernels."""
    import torch  # pyright: ignore[reportMissingImports]

    from benchmarks.torch_peers import capture

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    make = {"device": device, "dtype": torch.bfloat16}
    layer = _layer(command).to(**make)
    x = torch.randn(command.batch, command.length, command.width, **make, requires_grad=True)
    weights = torch.randn_like(x)
    parameters = list(layer.parameters())

    def forward() -> Any:
        with torch.no_grad():
            return _output(layer(x))

    def gradients() -> Any:
        return torch.autograd.grad(_output(layer(x)), (x, *parameters), weights, allow_unused=True)

    calls: dict[str, Callable[[], Any]] = {"forward": forward, "gradients": gradients}
    refused: dict[str, Exception] = {}
    for name, call in calls.items():
        try:
            call()
        except Exception as error:  # told when its turn comes: the other pass is measured
            refused[name] = error
    versions = {name: importlib.import_module(name).__version__ for name in ("torch", "triton")}
    facts = {"mixer": command.mixer, "parameters": sum(p.numel() for p in parameters), **versions}

    def run(name: str) -> "Batch":
        if name in refused:
            raise RuntimeError(str(refused[name])) from refused[name]
        try:
            replay = capture(calls[name]) if device == "cuda" else calls[name]
        except RuntimeError as error:
            facts[f"{name} without a CUDA graph"] = str(error)[:300]
            replay = calls[name]

        def batch(n: int) -> float:
            start = time.perf_counter()
            for _ in range(n):
                replay()
            if device == "cuda":
                torch.cuda.synchronize()
            return time.perf_counter() - start

        return batch

    return facts, {name: (functools.partial(run, name), command.batch * command.length) for name in calls}


def _layer(command: "Command") -> Any:
    from benchmarks.torch_peers import import_part

    module, name, options = LAYERS[command.mixer]
    if name == "BasedLinearAttention":
        options = {**options, "num_key_value_heads": command.heads}
    spec = importlib.util.find_spec("fla")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("fla is not installed: pip install fla-core flash-linear-attention")
    root = Path(next(iter(spec.submodule_search_locations))).parent
    part = import_part(root, "fla", ("layers",), module)  # the package's own __init__ loads every model that it has
    return getattr(part, name)(hidden_size=command.width, num_heads=command.heads, **options)


def _output(found: Any) -> Any:
    return found[0] if isinstance(found, tuple) else found
