"""The train state, and how it is born: every array already on the devices where it stays."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxzoo.array_typing import Array, Int
from jaxzoo.models.language_model import LanguageModel, LanguageModelConfig
from jaxzoo.sharding import LOGICAL_AXES, named_sharding


class TrainState(NamedTuple):
    """All that an update reads and writes; a checkpoint adds the data cursor and the config."""

    params: dict
    """Parameters as nested dicts, float32; layers of a repeated period have one leading axis of repeats."""
    opt_state: optax.OptState
    """State of the optimizer."""
    step: Int[Array, ""]
    """Updates so far, int32."""
    key: Int[Array, "words"]
    """Data of the random key that dropout is folded from, uint32; never changes."""


class Blueprint(NamedTuple):
    """A language model without its numbers."""

    graph: nnx.GraphDef
    """What `nnx.merge` needs beside the parameters."""
    params: dict
    """Shape and dtype of each parameter."""
    axes: dict
    """Logical axes of each parameter, without the axis of stacked layers."""

    def model(self, params: dict) -> LanguageModel:
        """The module with these parameters; to be made and used inside one traced function."""
        return nnx.merge(self.graph, nnx.State(params))

    @property
    def n_params(self) -> int:
        """Number of parameters."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.params))


def make_blueprint(config: LanguageModelConfig) -> Blueprint:
    """Reads structure, shapes and axes off the model, without computing anything.

    Raises:
      ValueError: a parameter has no logical axes.
    """
    model = jax.eval_shape(lambda: LanguageModel(config, rngs=nnx.Rngs(0)))
    graph, params = nnx.split(model, nnx.Param)
    for path, parameter in nnx.to_flat_state(params):
        if LOGICAL_AXES not in parameter.get_metadata():
            name = "/".join(map(str, path))
            raise ValueError(f"parameter {name} has no {LOGICAL_AXES}; make it by jaxzoo.layers.linear.parameter")
    axes = nnx.to_pure_dict(params, lambda parameter: parameter.get_metadata()[LOGICAL_AXES])
    return Blueprint(graph, nnx.to_pure_dict(params), axes)


def init_params(config: LanguageModelConfig, key: Array) -> dict:
    """Fresh parameters, as nested dicts."""
    return nnx.to_pure_dict(nnx.split(LanguageModel(config, rngs=nnx.Rngs(params=key)), nnx.Param)[1])


def init_state(
    config: LanguageModelConfig, optimizer: optax.GradientTransformation, key_data: Int[Array, "words"]
) -> TrainState:
    """The state before the first update; `key_data` seeds parameters and dropout. To be jitted."""
    params_key, dropout_key = jax.random.split(jax.random.wrap_key_data(key_data))
    params = init_params(config, params_key)
    return TrainState(
        params=params,
        opt_state=optimizer.init(params),
        step=jnp.zeros((), jnp.int32),
        key=jax.random.key_data(dropout_key),
    )


def state_shardings(
    blueprint: Blueprint, optimizer: optax.GradientTransformation, abstract: TrainState, mesh: Mesh
) -> TrainState:
    """Sharding of every array of the state.

    Parameters follow the table of `jaxzoo.sharding`, Adam's moments their parameters, all else is on every
    device.

    Args:
      blueprint: the model.
      optimizer: the one that made `abstract.opt_state`.
      abstract: shapes of the state.
      mesh: where it lies.
    """
    everywhere: Any = NamedSharding(mesh, PartitionSpec())
    params = jax.tree.map(lambda x, axes: named_sharding(x.shape, axes, mesh), blueprint.params, blueprint.axes)
    opt_state: Any = optax.tree_utils.tree_map_params(
        optimizer,
        lambda _, sharding: sharding,
        abstract.opt_state,
        params,
        transform_non_params=lambda _: everywhere,
    )
    return TrainState(params, opt_state, everywhere, everywhere)
