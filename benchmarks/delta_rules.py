"""Delta rules on a GPU: kernels, XLA and flash-linear-attention, forward and with all gradients, in one run.

`python -m benchmarks.delta_rules --peers ../flash-linear-attention`; see `--help`. 4 rows of 8,192 tokens, 16 heads of
64 keys and values, bfloat16 with float32 decays. Every candidate is compared with the recurrence, token by token in
float64, before it is timed. The floor is every input read and every output written once; with backward, inputs and
cotangent in, output and gradients out once more.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import tyro

from benchmarks.turns import wait_for_turn
from jaxzoo.ops.delta_rule import Removal, delta_rule
from jaxzoo.utils.host_memory import keep_freed_memory
from pallas_kernels import certificates, pages
from pallas_kernels.benchmark import ceilings, environment, report, run
from pallas_kernels.benchmark.candidates import Candidate, Peers
from pallas_kernels.delta_chunks.problem import GeneralProblem
from pallas_kernels.delta_chunks.workloads import general_in_blocks
from pallas_kernels.workload import Kind, Workload

RULES = {
    "no_decay": ("delta_rule", "chunk_delta_rule"),
    "decay_per_token": ("gated_delta_rule", "chunk_gated_delta_rule"),
    "decay_per_channel": ("kda", "chunk_kda"),
    "general": ("rwkv7", "chunk_rwkv7"),
}
"""Package and function of flash-linear-attention by rule."""
KINDS: tuple[Kind, ...] = ("forward", "forward_backward")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchmarkConfig:
    """Settings of the benchmark; on an H100 the two first decays with peers took three minutes, compilers included."""

    rules: tuple[str, ...] = tuple(RULES)
    """Rules by name."""
    peers: Path | None = None
    """A checkout of flash-linear-attention."""
    b: int = 4
    """Rows."""
    t: int = 8192
    """Tokens of a row."""
    h: int = 16
    """Heads."""
    width: int = 64
    """Channels of keys and values."""
    seconds: float = 0.3
    """Seconds of timing per row."""
    out: Path = Path("benchmarks/results")
    """Folder of the result."""

    def __post_init__(self) -> None:
        unknown = [name for name in self.rules if name not in RULES]
        if unknown:
            raise SystemExit(f"benchmarks.delta_rules: --rules {' '.join(unknown)} must be among {', '.join(RULES)}")


def candidates() -> list[Candidate]:
    settings = {"kernels": "all", "xla": "none"}
    return [
        Candidate(
            name=name,
            build=lambda workload: workload.build(None),
            context=functools.partial(certificates.using, setting),
        )
        for name, setting in settings.items()
    ]


def peers(checkout: Path | None, platform: str) -> Peers:
    if checkout is None:
        return Peers()
    from benchmarks import torch_peers  # imports torch where it is installed

    wanted = {f"fla_{name}": torch_peers.FlaFunction(part, name, _fla(rule)) for rule, (part, name) in RULES.items()}
    return torch_peers.flash_linear_attention(checkout, platform, wanted)


def main(argv: Sequence[str] | None = None) -> None:
    config = tyro.cli(BenchmarkConfig, args=argv)
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # torch takes its memory next to JAX
    keep_freed_memory()
    platform = jax.default_backend()
    found, notes, versions = peers(config.peers, platform)
    about = environment.describe()
    about["versions"] |= versions
    settings = run.Settings(seconds=config.seconds, repeats=10, seeds=2, trace=platform == "gpu")
    workloads = [workload(name, kind, config) for name in config.rules for kind in KINDS]
    cases = [run.Case(workload=w, groups=("rules",)) for w in workloads]
    competitors = [*candidates(), *found]

    def measured(bounds: ceilings.Ceilings, settings: run.Settings) -> Iterator[tuple[int, dict]]:
        return run.all_rows(cases, competitors, bounds, settings)

    quick = dataclasses.replace(settings, seconds=1e-3, trace=False)
    wait_for_turn(lambda: list(measured(ceilings.Ceilings(bandwidth=1.0, flops=1.0, matmul=""), quick)))
    bounds = ceilings.measure(platform, seconds=config.seconds, repeats=10)
    rows: list[dict] = []
    result = {
        "op": "delta_rule", **about, "commit": environment.git_commit(Path(__file__).parents[1]),
        "settings": dataclasses.asdict(settings), "notes": list(notes), "rows": rows,
        "ceilings": dataclasses.asdict(bounds),
    }  # fmt: skip
    path = config.out / f"delta_rule-{environment.slug(about['device'])}-{about['date']}.json"
    for i, row in measured(bounds, settings):
        print(f"[{i + 1}/{len(cases)}] {report.progress(row)}", flush=True)
        if row["status"] != "refused":
            rows.append(row)
            pages.write_json(path, result)
    print(report.markdown(result))
    print(path)


def workload(name: str, kind: Kind, config: BenchmarkConfig) -> Workload:
    size: dict[str, int] = {"b": config.b, "t": config.t, "h": config.h, "k": config.width, "v": config.width}

    def inputs(seed: int) -> tuple:
        arrays = inputs_of(name, GeneralProblem(**size, dtype=jnp.bfloat16), seed)
        if kind == "forward":
            return arrays
        return *arrays, jax.random.normal(jax.random.key(seed + 1), arrays[2].shape, arrays[2].dtype)

    shapes = jax.eval_shape(lambda: inputs(0))
    arrays = shapes if kind == "forward" else shapes[:-1]
    read = sum(x.size * x.dtype.itemsize for x in arrays)
    y = arrays[2].size * arrays[2].dtype.itemsize
    n_bytes = read + y + (0 if kind == "forward" else 2 * read + y)
    sizes: dict[str, int | str] = {**size, "dtype": "bfloat16"}
    return Workload(
        op="delta_rule",
        name=name,
        kind=kind,
        sizes=sizes,
        build=lambda choice: _by_kind(functools.partial(_rule, name), kind),
        truth=_by_kind(_as_general(name), kind),
        inputs=inputs,
        flops=0.0,
        bytes=float(n_bytes),
    )


def inputs_of(name: str, problem: GeneralProblem, seed: int) -> tuple:
    """Returns q, k of length 1, v, rates in [0, 1] or removals, and log decays if the rule has them."""
    q, k, v, u, z, log_decay = problem.inputs(seed)
    if name == "general":
        return q, k, v, u, z, log_decay
    beta = jax.random.uniform(jax.random.key(seed + 2), k.shape[:3]).astype(k.dtype)
    decays = {"no_decay": (), "decay_per_token": (log_decay[..., 0],), "decay_per_channel": (log_decay,)}[name]
    return q, u, v, beta, *decays


def _rule(name: str, q, k, v, *rest):
    if name == "general":
        u, z, log_decay = rest
        return delta_rule(q, k, v, removal=Removal(u, z), log_decay=log_decay)[0]
    beta, *decay = rest
    return delta_rule(q, k, v, beta=beta, log_decay=decay[0] if decay else None)[0]


def _by_kind(forward: Callable, kind: Kind) -> Callable:
    """Returns the function of the inputs, and of a cotangent if the kind includes gradients."""

    def run(*arrays):
        *inputs, dy = arrays
        y, pull_back = jax.vjp(forward, *inputs)
        return y, pull_back(dy)

    return forward if kind == "forward" else run


def _as_general(name: str) -> Callable:
    """Returns the rule in its general form: the recurrence adds beta k (v - (a k)^T S) to a S."""

    def of_delta_rule(q, k, v, beta, *decay):
        zeros = jnp.zeros(k.shape, v.dtype)
        log_decay = zeros if not decay else decay[0] + zeros if decay[0].ndim == 4 else decay[0][..., None] + zeros
        write = beta[..., None] * k
        return general_in_blocks(q, write, v, jnp.exp(log_decay) * k, -write, log_decay)[0]

    return (lambda *x: general_in_blocks(*x)[0]) if name == "general" else of_delta_rule


def _fla(name: str) -> Callable:
    """Adapts a function of flash-linear-attention to the inputs of its rule; scale 1."""

    def forward(workload: Workload, function: Callable) -> Callable:
        if workload.name != name:
            raise NotImplementedError(f"this function computes the rule {name}")

        def call(q, k, v, *rest):
            if name == "general":
                u, z, log_decay = rest
                return function(q, log_decay, k, v, u, z, scale=1.0)[0]
            beta, *decay = rest
            return function(q, k, v, *decay, beta, scale=1.0)[0]

        return call

    return forward


if __name__ == "__main__":
    main()
