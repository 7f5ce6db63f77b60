"""Public peers in torch: found where the caller says, never vendored; what is missing is one line.

    flash_linear_attention: `fla.ops` of a checkout of fla-org/flash-linear-attention
    torch_windows: flex_attention and scaled_dot_product_attention of torch, flash_attn where installed

All take our layout, (b, t, h, d), and our scale, d^-1/2 (gated: 1); what a peer does to the layout is part of its
time. Only a peer's own folder of operators is imported: a package's `__init__` may load every model that it has.
"""

import functools
import importlib
import importlib.util
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pallas_kernels.benchmark.candidates import SEQUENCE_KINDS, Candidate
from pallas_kernels.benchmark.environment import git_commit, version
from pallas_kernels.workload import Workload

BASED = ("fused_chunk_based", "parallel_based")
Found = tuple[list[Candidate], list[str], dict[str, str]]


def flash_linear_attention(paths: list[str], platform: str) -> Found:
    """Its Taylor attention, from the first of `paths` that holds `fla/ops/based`."""
    return of_flash_linear_attention(
        paths,
        platform,
        {f"fla_{name.removesuffix('_based')}": ("based", lambda workload, run: run, name) for name in BASED},
    )


def gated_flash_linear_attention(paths: list[str], platform: str) -> Found:
    """Its linear attention with a decay per head and per channel."""

    def forward(workload: Workload, run: Callable, decay: str) -> Callable:
        if workload.sizes["decay"] != decay or _grouped(workload):
            raise NotImplementedError("fla_gla has decays per channel, fla_simple_gla per head; neither groups heads")
        return lambda q, k, v, log_decay: run(q, k, v, log_decay, scale=1.0)[0]

    gated = {
        "fla_simple_gla": ("simple_gla", functools.partial(forward, decay="head"), "chunk_simple_gla"),
        "fla_gla": ("gla", functools.partial(forward, decay="channel"), "chunk_gla"),
    }
    return of_flash_linear_attention(paths, platform, gated)


def of_flash_linear_attention(paths: list[str], platform: str, wanted: dict[str, tuple[str, Callable, str]]) -> Found:
    """Candidates by name: a package of `fla/ops`, the call that makes the function of the inputs, and its function."""
    if not paths:
        return [], [], {}
    roots = [Path(path) for path in paths if (Path(path) / "fla" / "ops" / "based").is_dir()]
    if not roots:
        return [], [f"peers: none of {paths} holds fla/ops/based; fla not run"], {}
    missing = _no_torch(platform, "fla", needs_cuda=True)
    if missing:
        return [], [missing], {}
    found = []
    for package in ("fla", "fla.modules"):  # some ops need a module of the latter, which loads every layer
        _stub(roots[0], package)
    for name, (part, forward, function) in wanted.items():
        try:
            run = getattr(import_part(roots[0], "fla", ("ops",), part), function)
        except ImportError as error:
            return [], [f"peers: {roots[0]} does not import ({error}); fla not run"], {}
        found.append(torch_candidate(name, functools.partial(forward, run=run)))
    written = re.search(r"__version__ = ['\"](.+)['\"]", (roots[0] / "fla" / "__init__.py").read_text())
    commit = git_commit(roots[0])
    version = written[1] if written and commit == "unknown" else commit
    return found, [], _versions() | {"flash-linear-attention": version}


def torch_windows(platform: str) -> Found:
    """Windowed attention of torch, on the device that JAX uses."""
    missing = _no_torch(platform, "flex_attention and sdpa", needs_cuda=False)
    if missing:
        return [], [missing], {}
    found = [torch_candidate("torch_flex", flex_window), torch_candidate("torch_sdpa", sdpa_window)]
    notes = []
    if importlib.util.find_spec("flash_attn") is None:
        notes.append("peers: flash_attn is not installed; not run")
    else:
        found.append(torch_candidate("flash_attn", flash_window))
    return found, notes, _versions()


def import_part(root: Path, package: str, parents: tuple[str, ...], part: str) -> types.ModuleType:
    """package.parents.part from the checkout at `root`, without running the `__init__` of package and parents."""
    names = [".".join([package, *parents[:i]]) for i in range(len(parents) + 1)]
    for name in names:
        _stub(root, name)
    return importlib.import_module(f"{names[-1]}.{part}")


def _stub(root: Path, package: str) -> None:
    """An empty module where a package is not imported yet, so that its folders are found and it runs nothing."""
    if package in sys.modules:
        return
    stub = types.ModuleType(package)
    stub.__path__ = [str(root.joinpath(*package.split(".")))]
    vars(stub)["__version__"] = "unknown"
    sys.modules[package] = stub


def torch_candidate(name: str, forward: Callable[[Workload], Callable]) -> Candidate:
    """A candidate of tensors; `forward(workload)` is the function of q, k, v and what else the workload has."""

    def build(workload: Workload) -> Callable:
        torch = _torch()
        f = forward(workload)

        def run(*inputs):
            if workload.kind == "forward":
                with torch.no_grad():
                    return f(*inputs)
            *inputs, dy = inputs
            y = f(*inputs)
            return y, torch.autograd.grad(y, inputs, dy)

        return run

    return Candidate(name=name, build=build, kinds=SEQUENCE_KINDS, framework="torch")


def flex_window(workload: Workload) -> Callable:
    """flex_attention, compiled, with a block mask of the band."""
    torch, flex = _torch(), importlib.import_module("torch.nn.attention.flex_attention")
    t, window = int(workload.sizes["t"]), int(workload.sizes["window"])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and workload.kind != "forward":
        raise NotImplementedError("torch_flex: flex_attention has no backward on a CPU")
    attend = torch.compile(flex.flex_attention, dynamic=False)

    def band(batch, head, i, j):
        return (i >= j) & (i - j < window)

    mask = flex.create_block_mask(band, B=None, H=None, Q_LEN=t, KV_LEN=t, device=device)
    return _heads_first(functools.partial(attend, block_mask=mask, enable_gqa=_grouped(workload)))


def sdpa_window(workload: Workload) -> Callable:
    """scaled_dot_product_attention with a (t, t) mask of the band."""
    torch = _torch()
    t, window = int(workload.sizes["t"]), int(workload.sizes["window"])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    index = torch.arange(t, device=device)
    distance = index[:, None] - index[None, :]
    mask = (distance >= 0) & (distance < window)
    attend = torch.nn.functional.scaled_dot_product_attention
    return _heads_first(functools.partial(attend, attn_mask=mask, enable_gqa=_grouped(workload)))


def flash_window(workload: Workload) -> Callable:
    """flash_attn_func, whose window counts the tokens before a token."""
    window = int(workload.sizes["window"])
    return functools.partial(
        importlib.import_module("flash_attn").flash_attn_func, causal=True, window_size=(window - 1, 0)
    )


def _heads_first(attend: Callable) -> Callable:
    def run(q, k, v):
        return attend(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)

    return run


def _grouped(workload: Workload) -> bool:
    return workload.sizes.get("g", workload.sizes["h"]) != workload.sizes["h"]


def _no_torch(platform: str, who: str, *, needs_cuda: bool) -> str | None:
    """The line for peers that cannot run here, or None."""
    if importlib.util.find_spec("torch") is None:
        return f"peers: torch is not installed; {who} not run"
    cuda = _torch().cuda.is_available()
    if needs_cuda and not cuda:
        return f"peers: torch sees no CUDA device; {who} not run"
    if cuda != (platform == "gpu"):
        return f"peers: JAX is on a {platform} and torch {'on a GPU' if cuda else 'is not'}; {who} not run"
    return None


def _torch() -> Any:
    return importlib.import_module("torch")


def _versions() -> dict[str, str]:
    return {name: found for name in ("torch", "triton", "flash-attn") if (found := version(name))}
