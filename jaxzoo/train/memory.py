"""Memory checks of a run, from shapes, before any array is made or file is written.

First a lower bound, from the parameters of one period of layers (`check_estimate`): it is fast, and refuses absurd
sizes, which would hang or abort a compiler. Then the compiler's own count (`check_compiled`).
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from jaxzoo.models.accounting import abstract_model, count_parameters
from jaxzoo.models.model_config import LanguageModelConfig
from jaxzoo.parallel.agreement import gathered
from jaxzoo.parallel.sharding import row_devices
from jaxzoo.train.config import RunConfig
from jaxzoo.utils.devices import memory_of_each
from jaxzoo.utils.screen import Failure

FLOAT_BYTES = 4
ROOM = 0.7
"""Share of the memory that an evaluation takes at most; the host holds the variables and the data as well."""
STATE_COPIES = {"adamw": 4, "lion": 3, "muon": 3, "adafactor": 2}
"""Bytes per parameter by optimizer: parameter, gradient and moments in float32."""
REMEDY = "make it smaller, shard it by --mesh.fsdp, or try anyway with --allow-oversize"


def check_estimate(config: RunConfig, mesh: Mesh, length: int) -> None:
    """Raises `ValueError` for a run whose parameters, optimizer state and one activation of a batch, with sequences of
    `length` tokens, exceed the memory of a device."""
    model = config.model
    rows = config.train.batch_size
    n_parameters = estimate_parameters(model)
    copies = 1 if config.train.lora_rank else STATE_COPIES[config.optimizer.name]
    frozen = frozen_entries(model)
    numbers = copies * n_parameters + frozen
    state = FLOAT_BYTES * numbers / (mesh.shape["fsdp"] * mesh.shape["tensor"])
    parts = row_devices(mesh) * mesh.shape["sequence"]
    batch = FLOAT_BYTES * rows * length * model.d_model / parts
    room = memory_of_each(_ours(mesh))
    if state + batch > room:
        raise ValueError(
            f"LanguageModelConfig: {_sizes(model)} and TrainConfig.batch_size={rows} need at least "
            f"{_gb(state + batch)} of each device, {_gb(state)} of it for {n_parameters:,} parameters with gradients "
            f"and optimizer state{_frozen(frozen)}, and must fit into {_gb(room)}; {REMEDY}"
        )


def rows_that_fit(compiled: Callable[[int], Any], rows: int, devices: Sequence[Any], multiple: int = 1) -> int:
    """Returns the most rows, at most `rows` and a multiple of `multiple`, of which a program fits into `ROOM` of the
    memory of each device, free or not: the same machine gives the same sums. `compiled` makes the program for a number
    of rows. Every process must call it. Raises `Failure` if none fits."""
    room = ROOM * min(gathered(memory_of_each(devices)))
    while sum(found := _counted(compiled(rows))) > room:
        if rows <= multiple:
            rule = f"needs {_gb(sum(found))} of each device and must fit into {_gb(room)}"
            raise Failure(f"a batch of {rows} {rule}; take shorter sequences, or more devices")
        fewer = min(int(rows * max(room - found[0], 0) / found[1]), rows - 1)
        rows = max(fewer // multiple, 1) * multiple
    return rows


def _counted(program: Any) -> tuple[int, int]:
    """Bytes of each device for a program, as the compiler has counted them: of its arguments, and of all else."""
    counted = program.memory_analysis()
    if counted is None:
        return 0, 0
    made = counted.temp_size_in_bytes + counted.output_size_in_bytes - counted.alias_size_in_bytes
    return counted.argument_size_in_bytes, made


def check_compiled(step: Any, mesh: Mesh) -> None:
    """Raises `ValueError` for a train step whose arrays, by the compiler's count, exceed the memory of a device."""
    needed = sum(_counted(step))
    room = memory_of_each(_ours(mesh))
    if needed > room:
        raise ValueError(
            f"the compiled training step needs {_gb(needed)} of each device and must fit into {_gb(room)}; take a "
            f"smaller --train.batch-size, {REMEDY}"
        )


def check_model(model: LanguageModelConfig) -> None:
    """Raises `ValueError` for a model whose parameters alone exceed the memory of the first device."""
    n_parameters = estimate_parameters(model)
    frozen = frozen_entries(model)
    needed = FLOAT_BYTES * (n_parameters + frozen)
    room = memory_of_each(jax.devices()[:1])
    if needed > room:
        raise ValueError(
            f"LanguageModelConfig: {_sizes(model)} needs {_gb(needed)} for {n_parameters:,} parameters"
            f"{_frozen(frozen)} and must fit into the {_gb(room)} of the device"
        )


def estimate_parameters(config: LanguageModelConfig) -> int:
    """Number of parameters of the model; an incomplete last period of layers counts in proportion."""
    n_period = len(config.period)
    short = abstract_model(dataclasses.replace(config, n_layers=n_period))
    layers = count_parameters(short.stacks)
    return count_parameters(short) - layers + layers * config.n_layers // n_period


def frozen_entries(config: LanguageModelConfig) -> int:
    """Entries of the frozen tables of pairs; other buffers are small."""
    if not config.pair_values:
        return 0
    return config.d_model * (config.vocab_size // (config.pair_values + 1) + config.padded_vocab_size)


def _ours(mesh: Mesh) -> list[Any]:
    """The devices of this process; others do not report their memory."""
    return mesh.local_devices or list(mesh.devices.flat)


def _sizes(model: LanguageModelConfig) -> str:
    names = ("d_model", "n_layers", "vocab_size")
    return ", ".join(f"{name}={getattr(model, name)}" for name in names)


def _frozen(entries: int) -> str:
    return f" and {entries:,} frozen numbers" if entries else ""


def _gb(size: float) -> str:
    return f"{size / 1e9:,.1f} GB"
