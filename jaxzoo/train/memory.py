"""Memory check of a run, from shapes, before an array exists or a file is written.

First a lower bound, from the parameters of one period of layers (`check_estimate`): it takes no time, and no absurd
size gets past it to hang or to abort a compiler. Then what the compiler itself has counted (`check_compiled`).
"""

import dataclasses
import math
import os
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from jaxzoo.models.accounting import abstract_model, count_parameters
from jaxzoo.models.model_config import LanguageModelConfig
from jaxzoo.parallel.sharding import row_devices
from jaxzoo.train.config import RunConfig

FLOAT_BYTES = 4
STATE_COPIES = {"adamw": 4, "lion": 3, "muon": 3, "adafactor": 2}
"""A parameter, its gradient and, by the name of the optimizer, its moments at least, float32 all."""
REMEDY = "make it smaller, share it out by --mesh.fsdp, or try all the same with --allow-oversize"


def check_estimate(config: RunConfig, mesh: Mesh, length: int) -> None:
    """Raises `ValueError` for a run whose parameters, optimizer state and one activation of a batch, with the longest
    sequence of `length` tokens, are beyond a device."""
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


def check_compiled(step: Any, mesh: Mesh) -> None:
    """Raises `ValueError` for a train step whose arrays, as the compiler has counted them, are beyond a device."""
    counted = step.memory_analysis()
    if counted is None:
        return
    needed = counted.argument_size_in_bytes + counted.temp_size_in_bytes
    needed += counted.output_size_in_bytes - counted.alias_size_in_bytes
    room = memory_of_each(_ours(mesh))
    if needed > room:
        raise ValueError(
            f"the compiled training step needs {_gb(needed)} of each device and must fit into {_gb(room)}; take a "
            f"smaller --train.batch-size, {REMEDY}"
        )


def check_model(model: LanguageModelConfig) -> None:
    """Raises `ValueError` for a model whose parameters alone are beyond the first device."""
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
    """Parameters of the model; where the last period of its layers is cut, by the share of it that is there."""
    n_period = len(config.period)
    short = abstract_model(dataclasses.replace(config, n_layers=n_period))
    layers = count_parameters(short.stacks)
    return count_parameters(short) - layers + layers * config.n_layers // n_period


def frozen_entries(config: LanguageModelConfig) -> int:
    """Entries of the frozen tables of pairs; other buffers are small."""
    if not config.pair_values:
        return 0
    return config.d_model * (config.vocab_size // (config.pair_values + 1) + config.padded_vocab_size)


def memory_of_each(devices: Sequence[Any]) -> float:
    """Bytes that each of these devices has for itself; the CPUs of a process share those of the host."""
    limit = (devices[0].memory_stats() or {}).get("bytes_limit")
    if limit:
        return limit
    if devices[0].platform != "cpu":
        return math.inf
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / len(devices)


def _ours(mesh: Mesh) -> list[Any]:
    """The devices of this process, which alone it can ask for their memory."""
    return mesh.local_devices or list(mesh.devices.flat)


def _sizes(model: LanguageModelConfig) -> str:
    names = ("d_model", "n_layers", "vocab_size")
    return ", ".join(f"{name}={getattr(model, name)}" for name in names)


def _frozen(entries: int) -> str:
    return f" and {entries:,} frozen numbers" if entries else ""


def _gb(size: float) -> str:
    return f"{size / 1e9:,.1f} GB"
