"""Public kernels in PyTorch that `python -m pallas_kernels.benchmark OP --peers benchmarks/torch_peers.py` adds.

- flash-linear-attention (`fla`), installed or a checkout on PYTHONPATH: Taylor attention, gated linear attention.
- torch's flex_attention and scaled_dot_product_attention, and flash_attn where installed: sliding windows.

All take our layout, (b, t, h, d), and our scale, d^-1/2 (gated: 1); what a peer does to the layout is part of its
time. Of fla only the folders of its operators are imported: its `__init__` loads every model that it has.
"""

import functools
import importlib
import importlib.util
import re
import sys
import time
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.benchmark.candidates import Candidate, Peers
from pallas_kernels.benchmark.environment import git_commit, version
from pallas_kernels.benchmark.programs import Memory
from pallas_kernels.workload import SEQUENCE_KINDS, Workload

torch: Any = importlib.import_module("torch") if importlib.util.find_spec("torch") else None


class FlaFunction(NamedTuple):
    package: str
    function: str
    call: Callable[[Workload, Callable], Callable]
    """Maps (workload, the function) to the function of the workload's inputs."""


def peers(op: str, platform: str) -> Peers:
    """Returns the available peers of an op, and a note for each absent one."""
    if op == "sliding_window":
        return torch_windows(platform)
    if op not in FLA:
        return Peers()
    spec = importlib.util.find_spec("fla")
    if spec is None or spec.origin is None:
        return Peers(notes=["peers: fla is not on PYTHONPATH; not run"])
    return flash_linear_attention(Path(spec.origin).parents[1], platform, FLA[op])


def flash_linear_attention(root: Path, platform: str, wanted: Mapping[str, FlaFunction]) -> Peers:
    """Returns candidates from the checkout or site-packages at `root`."""
    if not (root / "fla" / "ops").is_dir():
        return Peers(notes=[f"peers: {root} holds no fla/ops; fla not run"])
    missing = _no_torch(platform, "fla", needs_cuda=True)
    if missing:
        return Peers(notes=[missing])
    for package in ("fla", "fla.modules"):  # some ops need a module of the latter, which loads every layer
        _stub(root, package)
    found = []
    for name, entry in wanted.items():
        try:
            function = getattr(import_part(root, "fla", ("ops",), entry.package), entry.function)
        except ImportError as error:
            return Peers(notes=[f"peers: {root} does not import ({error}); fla not run"])
        found.append(torch_candidate(name, lambda work, call=entry.call, run=function: call(work, run)))
    commit = git_commit(root)
    named = _written_version(root, "fla") if commit == "unknown" else commit
    return Peers(found, versions=_versions() | {"flash-linear-attention": named})


def _gated(decay: str, workload: Workload, function: Callable) -> Callable:
    if workload.sizes["decay"] != decay or _grouped(workload):
        raise NotImplementedError("fla_gla has decays per channel, fla_simple_gla per head; neither groups heads")
    return lambda q, k, v, log_decay: function(q, k, v, log_decay, scale=1.0)[0]


FLA = {
    "taylor_attention": {
        "fla_fused_chunk": FlaFunction("based", "fused_chunk_based", lambda _, function: function),
        "fla_parallel": FlaFunction("based", "parallel_based", lambda _, function: function),
    },
    "gated_linear_attention": {
        "fla_simple_gla": FlaFunction("simple_gla", "chunk_simple_gla", functools.partial(_gated, "head")),
        "fla_gla": FlaFunction("gla", "chunk_gla", functools.partial(_gated, "channel")),
    },
}
"""Functions by op. The eps of `based` is 1e-6, added to sums of at least 1/2."""


def torch_windows(platform: str) -> Peers:
    missing = _no_torch(platform, "flex_attention and sdpa", needs_cuda=False)
    if missing:
        return Peers(notes=[missing])
    found = [torch_candidate("torch_flex", flex_window), torch_candidate("torch_sdpa", sdpa_window)]
    if importlib.util.find_spec("flash_attn") is None:
        return Peers(found, ["peers: flash_attn is not installed; not run"], _versions())
    return Peers([*found, torch_candidate("flash_attn", flash_window)], versions=_versions())


def import_part(root: Path, package: str, parents: tuple[str, ...], part: str) -> types.ModuleType:
    """Imports package.parents.part from the checkout at `root` without running `__init__` of package and parents."""
    names = [".".join([package, *parents[:i]]) for i in range(len(parents) + 1)]
    for name in names:
        _stub(root, name)
    return importlib.import_module(f"{names[-1]}.{part}")


def _stub(root: Path, package: str) -> None:
    """Puts an empty module in place of a package that is not imported yet: its folders are found and nothing runs."""
    if package in sys.modules:
        return
    stub = types.ModuleType(package)
    stub.__path__ = [str(root.joinpath(*package.split(".")))]
    vars(stub)["__version__"] = _written_version(root, package.partition(".")[0])
    sys.modules[package] = stub


def _written_version(root: Path, package: str) -> str:
    """Reads the version in the `__init__` of a package, which the package may parse; "0" if it has none."""
    written = re.search(r"__version__ = ['\"](.+)['\"]", (root / package / "__init__.py").read_text())
    return written[1] if written else "0"


def torch_candidate(name: str, forward: Callable[[Workload], Callable]) -> Candidate:
    """Makes a candidate of tensors; `forward(workload)` returns the function of the workload's inputs."""

    def build(workload: Workload) -> Callable:
        f = forward(workload)

        def run(*inputs):
            if workload.kind == "forward":
                with torch.no_grad():
                    return f(*inputs)
            *inputs, dy = inputs
            y = f(*inputs)
            return y, torch.autograd.grad(y, inputs, dy)

        return run

    return Candidate(name=name, build=build, kinds=SEQUENCE_KINDS, program=TorchProgram)


def flex_window(workload: Workload) -> Callable:
    """Compiles flex_attention with a block mask of the band."""
    flex = importlib.import_module("torch.nn.attention.flex_attention")
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
    """Uses scaled_dot_product_attention with a (t, t) mask of the band."""
    t, window = int(workload.sizes["t"]), int(workload.sizes["window"])
    index = torch.arange(t, device="cuda" if torch.cuda.is_available() else "cpu")
    distance = index[:, None] - index[None, :]
    mask = (distance >= 0) & (distance < window)
    attend = torch.nn.functional.scaled_dot_product_attention
    return _heads_first(functools.partial(attend, attn_mask=mask, enable_gqa=_grouped(workload)))


def flash_window(workload: Workload) -> Callable:
    """Uses flash_attn_func, whose window counts the tokens before a token."""
    window = int(workload.sizes["window"])
    attend = importlib.import_module("flash_attn").flash_attn_func
    return functools.partial(attend, causal=True, window_size=(window - 1, 0))


def _heads_first(attend: Callable) -> Callable:
    def run(q, k, v):
        return attend(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)

    return run


def _grouped(workload: Workload) -> bool:
    return workload.sizes.get("g", workload.sizes["h"]) != workload.sizes["h"]


def _no_torch(platform: str, who: str, *, needs_cuda: bool) -> str | None:
    """Returns the note for peers that cannot run here, or None."""
    if torch is None:
        return f"peers: torch is not installed; {who} not run"
    cuda = torch.cuda.is_available()
    if needs_cuda and not cuda:
        return f"peers: torch sees no CUDA device; {who} not run"
    if cuda != (platform == "gpu"):
        return f"peers: JAX is on a {platform} and torch {'on a GPU' if cuda else 'is not'}; {who} not run"
    return None


def _versions() -> dict[str, str]:
    return {name: found for name in ("torch", "triton", "flash-attn") if (found := version(name))}


class TorchProgram:
    """A `programs.JaxProgram` of tensors; its calls are a CUDA graph if they can be captured, so that they follow each
    other without launches from Python, as JAX programs do. `note` says why there is no graph."""

    def __init__(self, function: Callable, sets: list[tuple], calls: int, *, gradients: bool):
        self.calls = calls
        self.note: str | None = None
        self._sets = [tuple(_tensor(x, gradients) for x in inputs) for inputs in sets]
        self._function = function
        self._turn = 0
        self._cuda = self._sets[0][0].is_cuda
        self._programs: list[Callable[[], Any]] = []
        self._memory = Memory(None, None)

    def outputs(self, rows):
        """Runs twice, so that stale outputs, overwritten by NaN, cannot pass for new ones."""
        stale = self._function(*self._sets[0])
        with torch.no_grad():
            for x in jax.tree.leaves(stale):
                x.fill_(float("nan"))
        del stale
        self._count_memory()
        outs = jax.tree.leaves(self._function(*self._sets[0]))
        finite = all(bool(torch.isfinite(x).all()) for x in outs)
        index = torch.as_tensor(rows, device=outs[0].device)
        return [_array(x.detach()[index]) for x in outs], finite

    def batch(self, n):
        programs = self._programs or self._make_programs()
        if not self._cuda:
            start = time.perf_counter()
            self._enqueue(programs, n)
            return time.perf_counter() - start
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        self._enqueue(programs, n)
        end.record()
        end.synchronize()
        return 1e-3 * start.elapsed_time(end)

    def memory(self):
        return self._memory

    def _enqueue(self, programs, n):
        for _ in range(n):
            programs[self._turn]()
            self._turn = (self._turn + 1) % len(programs)

    def _make_programs(self) -> list[Callable[[], Any]]:
        groups = [self._sets[i : i + self.calls] for i in range(0, len(self._sets), self.calls)]
        self._programs = [functools.partial(self._run_all, group) for group in groups]
        if self._cuda:
            try:
                self._programs = [capture(run) for run in self._programs]
            except RuntimeError as error:
                self.note = f"launches included, no CUDA graph: {str(error).splitlines()[0]}"
        return self._programs

    def _run_all(self, group: list[tuple]) -> Any:
        return [self._function(*inputs) for inputs in group][-1]

    def _count_memory(self) -> None:
        if self._cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            self._function(*self._sets[0])
            torch.cuda.synchronize()
            peak = torch.cuda.max_memory_allocated()
            self._memory = Memory(peak - before, peak)


def capture(run: Callable[[], Any]) -> Callable[[], Any]:
    """Runs `run` three times on another stream, as torch's notes on graphs ask, then captures it as a graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # JAX has threads of its own
        run()
    return graph.replay


def _tensor(x: jax.Array, gradients: bool) -> Any:
    """Copies a JAX array on its device."""
    return torch.from_dlpack(jax.block_until_ready(x)).clone().requires_grad_(gradients)


def _array(x: Any) -> np.ndarray:
    """Returns a NumPy array of the same dtype; bfloat16 is transferred as bits."""
    x = x.contiguous().cpu()
    return x.view(torch.int16).numpy().view(jnp.bfloat16) if x.dtype == torch.bfloat16 else x.numpy()
