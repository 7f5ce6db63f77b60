"""Peers of `mixers_cpu.py` in PyTorch: `python mixers_cpu_torch.py ZOOLOGY NAME WIDTH BATCH LENGTH`.

`mixers_cpu.py --peers` starts it, under a Python that has torch, and what the peers import: einops, pydantic,
opt_einsum and scipy (zoology), or transformers. ZOOLOGY is a checkout of HazyResearch/zoology. The first line of output
is the number of parameters; then each line of input, a number of seconds, is answered by the CPU-ms of forward and
backward.
"""

import statistics
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import torch  # pyright: ignore[reportMissingImports]

FEWEST_CALLS, MOST_CALLS = 3, 50
LONG_SECONDS = 20.0
"""If the first call takes longer, it is the only one, and is counted."""


def build(name: str, width: int, length: int) -> Any:
    """Builds the released module with the settings of our defaults."""
    if name.startswith("zoology"):  # whose zoology.utils imports both for its logs, which nobody writes here
        for missing in ("wandb", "pandas"):
            sys.modules.setdefault(missing, types.SimpleNamespace(DataFrame=None))  # type: ignore[arg-type]
    if name == "zoology_hyena":
        from zoology.mixers.hyena import Hyena  # pyright: ignore[reportMissingImports]

        return Hyena(width, length)
    if name == "zoology_h3":
        from zoology.mixers.h3 import H3  # pyright: ignore[reportMissingImports]

        return H3(width, d_state=64, l_max=length, head_dim=1)
    if name.startswith("zoology_base_conv"):
        from zoology.mixers.base_conv import BaseConv  # pyright: ignore[reportMissingImports]

        return BaseConv(width, length, kernel_size=-1 if name.endswith("implicit") else 3)
    if name == "zoology_based":
        from zoology.mixers.based import Based  # pyright: ignore[reportMissingImports]

        heads = {"num_heads": 1, "num_key_value_heads": 1}
        return Based(width, length, feature_dim=16, train_view="quadratic", **heads)  # "linear" is slower
    if name == "transformers_mamba":
        from transformers import MambaConfig  # pyright: ignore[reportMissingImports]
        from transformers.models.mamba.modeling_mamba import MambaMixer  # pyright: ignore[reportMissingImports]

        return MambaMixer(MambaConfig(hidden_size=width), 0)
    if name == "transformers_rwkv":
        from transformers import RwkvConfig  # pyright: ignore[reportMissingImports]
        from transformers.models.rwkv.modeling_rwkv import (  # pyright: ignore[reportMissingImports]
            RwkvSelfAttention,
        )

        module = RwkvSelfAttention(RwkvConfig(hidden_size=width, context_length=length), 0)
        for parameter in module.parameters():  # it leaves them as they lie in memory
            torch.nn.init.normal_(parameter, std=0.02)
        return module
    raise SystemExit(f"no peer {name}")


def cpu_ms(call: Callable[[], None], seconds: float) -> float:
    """Returns the median CPU ms per call, of as many calls as fit into the time; the first is not counted."""
    times = [_seconds(call)]
    if times[0] < LONG_SECONDS:
        times = []
        while len(times) < FEWEST_CALLS or (sum(times) < seconds and len(times) < MOST_CALLS):
            times.append(_seconds(call))
    return 1e3 * statistics.median(times)


def _seconds(call: Callable[[], None]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def main() -> None:
    zoology, name, *sizes = sys.argv[1:]
    width, batch, length = map(int, sizes)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    answers, sys.stdout = sys.stdout, sys.stderr  # the peers print while they are imported
    sys.path.insert(0, zoology)
    module = build(name, width, length)
    x = torch.randn(batch, length, width, requires_grad=True)
    weights = torch.randn(batch, length, width)

    def forward_and_backward() -> None:
        module.zero_grad(set_to_none=True)
        x.grad = None
        y = module(x)
        (y[0] if isinstance(y, tuple) else y).backward(weights)

    print(sum(parameter.numel() for parameter in module.parameters()), file=answers, flush=True)
    for line in sys.stdin:
        print(cpu_ms(forward_and_backward, float(line)), file=answers, flush=True)


if __name__ == "__main__":
    main()
