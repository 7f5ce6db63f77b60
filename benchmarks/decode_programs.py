"""Launches and memory traffic of decode steps, in programs for an absent H100: a JSON file, a table.

`python -m benchmarks.decode_programs` (extra `aot`); nothing runs. The programs are those of `generate`, a block of 16
steps; kernels verified for the device are used. Capacity of growing states: 1,024 tokens. `ideal` is every weight read
once, in the dtype in which generation keeps it, and every state read and written once (a key-value cache only read).
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import tyro
from jax.sharding import SingleDeviceSharding

from benchmarks.generation.models import SIZES
from benchmarks.op_programs import launches
from jaxzoo.generation.decode import Rules, decode_block, first_rows, row_keys
from jaxzoo.generation.sampling import Sampling, knobs
from jaxzoo.generation.weights import cast_weights
from jaxzoo.models.blueprint import Variables, make_blueprint
from jaxzoo.models.language_model import LanguageModelConfig
from jaxzoo.plan.hlo import Hlo
from jaxzoo.plan.memory_traffic import memory_bytes
from pallas_kernels import certificates
from pallas_kernels.compile_check.targets import TARGETS
from pallas_kernels.dispatch import lowering_for

STEPS, CAPACITY = 16, 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchmarkConfig:
    """Settings; a program of 360m takes about a minute of a core."""

    size: Literal["tiny", "360m", "1.3b"] = "360m"
    """Size of the models of `benchmarks.generation`."""
    models: tuple[str, ...] = ("Based", "Transformer++")
    """Names of models of that size."""
    batches: tuple[int, ...] = (1, 128)
    """Batch sizes."""
    kernels: bool = False
    """With all kernels, verified or not, in rows of their own."""
    out: Path = Path("benchmarks/results/decode_programs.json")
    """File to which the numbers are written; entries of other programs in it are kept."""


def main(argv: Sequence[str] | None = None) -> None:
    config = tyro.cli(BenchmarkConfig, args=argv)
    found = json.loads(config.out.read_text()) if config.out.exists() else {}
    for name in config.models:
        for batch in config.batches:
            row = measure(SIZES[config.size].models()[name], batch, kernels=config.kernels)
            found[f"{name} {config.size} batch {batch}{', kernels' * config.kernels}"] = row
            print(f"{name}, {config.size}, batch {batch}: {row}", flush=True)
            config.out.write_text(json.dumps(found, indent=1) + "\n")


def measure(model: LanguageModelConfig, batch: int, target: str = "h100", *, kernels: bool = False) -> dict[str, int]:
    """Returns launches, bytes and ideal bytes of one decode step in bfloat16."""
    jax.clear_caches()  # traces do not know which kernels are certified
    device = TARGETS[target]
    model = dataclasses.replace(model, dtype="bfloat16")
    placed = SingleDeviceSharding(device.devices()[0])

    def on_device(tree: Any) -> Any:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=placed), tree)

    chosen = certificates.using("all" if kernels else None)
    with lowering_for(device.platform, multiprocessors=device.cores), chosen:
        config, weights = _cast(model)
        rows = jax.eval_shape(lambda tree: first_rows(config, tree, batch, CAPACITY), weights)
        rules = jax.eval_shape(lambda: _rules(batch))
        arguments = on_device((weights, rows, jax.ShapeDtypeStruct((batch,), bool), rules))
        traced = decode_block.trace(config, *arguments, block_size=STEPS)
        compiled: Any = traced.lower(lowering_platforms=(device.platform,)).compile()
    hlo = Hlo(compiled.as_text())
    moved = memory_bytes(hlo) - _unwritten_slots(hlo)
    return {"launches": launches(hlo) // STEPS, "bytes": moved // STEPS, "ideal": _ideal(weights, rows)}


def _unwritten_slots(hlo: Hlo) -> int:
    """Bytes of the rings (b, w, g, k) that alias results of `decode_step`'s kernel, which writes one slot of w."""
    return sum(
        times * (ring.bytes - ring.bytes // ring.dims[1])
        for _, each, times in hlo.steps()
        if each.opcode == "custom-call" and "/window_kernel/" in each.attributes
        for ring in each.results[1:]
    )


def _cast(model: LanguageModelConfig) -> tuple[LanguageModelConfig, Any]:
    """Returns the config of generation and the shapes of its weights."""
    configs: list[LanguageModelConfig] = []

    def cast(variables: Variables) -> Variables:
        config, variables = cast_weights(model, variables)
        configs.append(config)
        return variables

    weights = jax.eval_shape(cast, make_blueprint(model, scanned=False).shapes)
    return configs[0], weights


def _rules(batch: int) -> Rules:
    none = jnp.zeros((batch,), jnp.int32)
    stops = jnp.zeros((0,), jnp.int32)
    return Rules(none[:, None], none, row_keys(0, none), knobs(Sampling(temperature=0)), jnp.int32(STEPS), stops)


def _ideal(weights: Any, rows: Any) -> int:
    """Bytes of the weights without the embedding, and of the states; what has the capacity's length is a cache."""
    kept = [x for path, x in jax.tree.leaves_with_path(weights) if "embedding" not in jax.tree_util.keystr(path)]
    states = [(1 if CAPACITY in x.shape else 2, x) for x in jax.tree.leaves(rows.state)]
    return sum(x.size * x.dtype.itemsize for x in kept) + sum(n * x.size * x.dtype.itemsize for n, x in states)


if __name__ == "__main__":
    main()
