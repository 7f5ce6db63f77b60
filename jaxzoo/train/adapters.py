"""Adapters of a run: its blueprint with them, and how its variables are read and merged."""

import dataclasses
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from jaxzoo.config import ExperimentConfig
from jaxzoo.config_io import Json
from jaxzoo.models.adapters import FROZEN, AdaptedBlueprint, Lora, adapt
from jaxzoo.models.blueprint import Blueprint, Variables, make_blueprint


def blueprint_of(config: ExperimentConfig) -> Blueprint | AdaptedBlueprint:
    """The model of an experiment, with the adapters that it trains.

    Raises:
      ValueError: a target is no projection of the model.
    """
    base, train = make_blueprint(config.model), config.train
    if not train.lora_rank:
        return base
    return adapt(base, Lora(train.lora_rank, train.lora_targets, train.lora_alpha))


def without_adapters(config: ExperimentConfig) -> ExperimentConfig:
    """The experiment, for its merged model."""
    return dataclasses.replace(config, train=dataclasses.replace(config.train, lora_rank=0, lora_targets=()))


def stored_without_adapters(config: Json) -> Json:
    """The same of a config as a checkpoint has it."""
    if stored_lora(config) is None:
        return config
    train = {key: value for key, value in config["train"].items() if not key.startswith("lora_")}
    return {**config, "train": train}


def stored_lora(config: Json) -> Lora | None:
    """The adapters that a stored config names; None: none."""
    train = config.get("train")
    if not isinstance(train, dict) or not train.get("lora_rank"):
        return None
    return Lora(int(train["lora_rank"]), tuple(train["lora_targets"]), float(train["lora_alpha"]))


def with_adapters(blueprint: AdaptedBlueprint, own: Variables) -> Variables:
    """Shapes and places of a model with adapters, which every device of the model has.

    Args:
      own: shapes and shardings of its own variables.
    """
    first = jax.tree.leaves(own)[0].sharding
    place: Any = NamedSharding(first.mesh, PartitionSpec()) if isinstance(first, NamedSharding) else first
    params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), blueprint.shapes.params)
    return Variables(params, {**own.buffers, FROZEN: own.params})


def merge(blueprint: AdaptedBlueprint, variables: Variables) -> Variables:
    """The variables of the merged model, each where that of the adapted one lies."""
    places = jax.tree.map(lambda x: x.sharding, blueprint.own(variables))
    return jax.jit(blueprint.merged, out_shardings=places)(variables)
