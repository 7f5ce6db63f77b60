"""Layers of flash-linear-attention next to ours: the same width and heads, parameters in bfloat16, in CUDA graphs.

Its kernels are tuned while other processes compile; the choice is kept on disk and may differ from one made alone.
"""

import importlib
import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.torch_peers import capture, import_part

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

    refused: dict[str, Exception] = {}
    for call in (forward, gradients):
        try:
            call()
        except Exception as error:  # told when its turn comes: the other pass is measured
            refused[call.__name__] = error

    def run(call: Callable[[], Any]) -> "Batch":
        if call.__name__ in refused:
            raise RuntimeError(str(refused[call.__name__])) from refused[call.__name__]
        return _batch(call)

    versions = {name: importlib.import_module(name).__version__ for name in ("torch", "triton")}
    facts = {"mixer": command.mixer, "parameters": sum(p.numel() for p in parameters), **versions}
    tokens = command.batch * command.length
    return facts, {call.__name__: (lambda call=call: run(call), tokens) for call in (forward, gradients)}


def _layer(command: "Command") -> Any:
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


def _batch(call: Callable[[], Any]) -> "Batch":
    """Replays of a CUDA graph of the call; on a CPU the call itself."""
    import torch  # pyright: ignore[reportMissingImports]

    replay, wait = (capture(call), torch.cuda.synchronize) if torch.cuda.is_available() else (call, lambda: None)

    def batch(n: int) -> float:
        wait()
        start = time.perf_counter()
        for _ in range(n):
            replay()
        wait()
        return time.perf_counter() - start

    return batch
