"""Checks that batch, model, data, metrics and mesh fit together, before anything is compiled.

Each raises `ValueError` with field, value, rule and remedy.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

import jaxzoo
import pallas_kernels
from jaxzoo.config.checked import nearest, shorten
from jaxzoo.config.config_io import first_difference
from jaxzoo.data.base import Dataset
from jaxzoo.models.model_config import LanguageModelConfig
from jaxzoo.parallel.agreement import gathered, is_one_of_many, together
from jaxzoo.parallel.sharding import row_devices
from jaxzoo.train.config import RunConfig, TrainConfig
from jaxzoo.train.memory import check_estimate
from jaxzoo.train.metrics import metric_names
from jaxzoo.utils.checksums import file_sha256, json_sha256
from pallas_kernels import certificates


def check_session(config: RunConfig, mesh: Mesh, data: Dataset, *, limited: bool) -> None:
    """Refuses data, sequence axis, metric and, if `limited`, sizes beyond the memory of the devices."""
    check_data(config.model, vocab_size=data.vocab_size, max_length=data.max_length, packed=data.packed)
    check_sequence_axis(config.model, mesh, data.max_length)
    check_prefix(config)
    check_metric(config.train, data)
    if limited:
        check_estimate(config, mesh, data.max_length)


def check_batch_size(config: RunConfig, mesh: Mesh) -> None:
    """Refuses a batch size that the devices of a mesh do not divide."""
    size = config.train.batch_size
    devices = row_devices(mesh)
    parts = config.train.accumulate
    n = devices * parts
    if size % n:
        what = f"{n}, the devices over which rows are sharded (mesh data x fsdp)"
        if parts > 1:
            what = f"{n}, the {devices} devices over which rows are sharded (mesh data x fsdp) times accumulate={parts}"
        raise ValueError(f"TrainConfig.batch_size={size} must be divisible by {what}; take {-(-size // n) * n}")


def check_same_everywhere(what: Mapping[str, Any]) -> None:
    """Refuses processes of one run that differ in these JSON values, by the name of the first that differs: each would
    compute a share of another run. Every process must call it, a collective, and it raises in all."""
    values = gathered(what)
    for process, other in enumerate(values):
        if difference := first_difference(other, values[0]):
            here, there = map(shorten, difference[1:])
            rule = "start all processes with the same command, settings, code and data"
            raise ValueError(f"{difference[0]}: process {process} has {here}, process 0 has {there}; {rule}")


def code_digest() -> str:
    """SHA-256 of the Python files of this package and of the kernels, with JAX's version."""
    roots = [Path(package.__file__ or "").parent for package in (jaxzoo, pallas_kernels)]
    files = {str(file.relative_to(root.parent)): file_sha256(file) for root in roots for file in root.rglob("*.py")}
    return json_sha256([jax.__version__, files])


def check_kernels(config: TrainConfig) -> None:
    """Refuses processes that would choose different Pallas kernels: their programs would wait for each other forever.

    It is a collective: every process must call it, and all raise. It also refuses a setting that is neither `all` nor a
    report.
    """
    with together(ValueError), certificates.using(config.pallas_kernels):
        certificates.reports()  # raises where the setting is wrong
        choice = certificates.choice() if is_one_of_many() else []  # hashes of all kernels take a second
    setting = f"TrainConfig.pallas_kernels={config.pallas_kernels!r} or {certificates.SETTING}"
    check_same_everywhere({f"JAX, kernels and verified devices by {setting}": choice})


def check_adapters(config: TrainConfig, *, begins_with: object) -> None:
    """Refuses adapters without `--init-from`, whose base model would be random."""
    if config.lora_rank and begins_with is None:
        raise ValueError(f"TrainConfig.lora_rank={config.lora_rank} needs a trained model; give it by --init-from RUN")


def check_data(model: LanguageModelConfig, *, vocab_size: int, max_length: int, packed: bool) -> None:
    """Refuses data that do not fit a model.

    Args:
      vocab_size: token ids of the data.
      max_length: tokens of their longest sequence.
      packed: whether rows hold several documents.
    """
    for field, needed, what in (
        ("vocab_size", vocab_size, "token ids of the data"),
        ("max_length", max_length, "tokens of the data's longest sequence"),
        ("max_positions", max_length, "tokens of the data's longest sequence"),
    ):
        value = getattr(model, field)
        if value is not None and value < needed:
            flag = f"--model.{field.replace('_', '-')} {needed}"
            raise ValueError(f"LanguageModelConfig.{field}={value} must be at least the {needed} {what}; set {flag}")
    for index, layer in enumerate(model.layers if packed else ()):
        if not layer.capabilities.segments:
            raise ValueError(
                f"layer {index}: {type(layer).__name__} does not honour segment_ids: a document would leak into "
                "the next; set --data.packing concatenate, or take another mixer"
            )


def check_prefix(config: RunConfig) -> None:
    """Refuses a prefix that contains targets: without a causal mask the model would read them in its input."""
    length, first = config.model.prefix_length, config.data.first_target
    if length > first:
        raise ValueError(
            f"LanguageModelConfig.prefix_length={length} must be at most {first}, the first tokens of a row that are "
            f"never targets of {type(config.data).__name__}; set --model.prefix-length {first}"
        )


def check_metric(config: TrainConfig, data: Dataset) -> None:
    """Refuses a metric for the best checkpoints that validation does not compute."""
    metric = config.best_metric
    if metric == TrainConfig.best_metric:  # every data set has it: the validation sets need not be built yet
        return
    names = metric_names(data.valid(), data.bytes_per_token)
    if metric not in names:
        hint = nearest(metric, names) or f"; there are {', '.join(names)}"
        raise ValueError(f"TrainConfig.best_metric={metric!r} must be a metric of these validations{hint}")


def check_sequence_axis(model: LanguageModelConfig, mesh: Mesh, max_length: int) -> None:
    """Refuses a sequence axis that does not divide the longest sequence (`max_length` tokens), or that a mixer does not
    support."""
    devices = mesh.shape["sequence"]
    if devices == 1:
        return
    if model.prefix_length:
        raise ValueError(
            f"LanguageModelConfig.prefix_length={model.prefix_length} is not implemented for sequences over "
            f"MeshConfig.sequence={devices} devices; set --mesh.sequence 1"
        )
    if max_length % devices:
        raise ValueError(
            f"MeshConfig.sequence={devices} must divide the {max_length} tokens of the data's longest sequence; set "
            f"--mesh.sequence 1, or another length"
        )
    for index, layer in enumerate(model.layers):
        if not layer.capabilities.sequence_parallel:
            raise ValueError(
                f"layer {index}: {type(layer).__name__} cannot shard a sequence over MeshConfig.sequence="
                f"{devices} devices; set --mesh.sequence 1, or take another mixer"
            )
