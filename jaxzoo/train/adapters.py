"""Adapters of a stored run: how its variables are read and merged."""

from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from jaxzoo.config.config_io import Json
from jaxzoo.models.adapters import FROZEN, AdaptedBlueprint, Lora
from jaxzoo.models.blueprint import Variables


def stored_lora(config: Json) -> Lora | None:
    """The adapters that a stored config names; None: none."""
    train = config.get("train")
    if not isinstance(train, dict) or not train.get("lora_rank"):
        return None
    return Lora(int(train["lora_rank"]), tuple(train["lora_targets"]), float(train["lora_alpha"]))


def with_adapters(blueprint: AdaptedBlueprint, own: Variables) -> Variables:
    """Shapes and places of a model with adapters, which every device has, by those of its own variables."""
    first = jax.tree.leaves(own)[0].sharding
    place: Any = NamedSharding(first.mesh, PartitionSpec()) if isinstance(first, NamedSharding) else first
    params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), blueprint.shapes.params)
    return Variables(params, {**own.buffers, FROZEN: own.params})


def merge(blueprint: AdaptedBlueprint, variables: Variables) -> Variables:
    """The variables of the merged model, each where that of the adapted one lies."""
    places = jax.tree.map(lambda x: x.sharding, blueprint.own(variables))
    return jax.jit(blueprint.merged, out_shardings=places)(variables)
