"""Train state, created directly with its final sharding."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxzoo.models.adapters import AdaptedBlueprint
from jaxzoo.models.blueprint import Blueprint, Variables, names_of, split_variables
from jaxzoo.models.language_model import LanguageModel, LanguageModelConfig
from jaxzoo.parallel.sharding import named_sharding
from jaxzoo.utils.array_typing import Array, Int


class TrainState(NamedTuple):
    """State that an update reads and writes; a checkpoint adds the data cursor and the config."""

    params: dict[str, Any]
    """Parameters as nested dicts, float32; layers of a repeated period have one leading axis of repeats."""
    buffers: dict[str, Any]
    """Buffers of the model as nested dicts; never updated."""
    opt_state: optax.OptState
    step: Int[Array, ""]
    """Updates so far, int32."""
    key: Int[Array, "words"]
    """Data of the random key of dropout, uint32; never changes."""

    @property
    def variables(self) -> Variables:
        return Variables(self.params, self.buffers)


def init_state(
    config: LanguageModelConfig,
    optimizer: optax.GradientTransformation,
    key_data: Int[Array, "words"],
    adapted: AdaptedBlueprint | None = None,
) -> TrainState:
    """Creates the state before the first update; `key_data` seeds parameters and dropout. To be jitted."""
    params_key, _ = jax.random.split(jax.random.wrap_key_data(key_data))
    variables = split_variables(LanguageModel(config, rngs=nnx.Rngs(params=params_key)))
    return first_state(variables, optimizer, key_data, adapted)


def first_state(
    variables: Variables,
    optimizer: optax.GradientTransformation,
    key_data: Int[Array, "words"],
    adapted: AdaptedBlueprint | None = None,
) -> TrainState:
    """Creates the state before the first update of a model with these variables; `key_data` seeds adapters, and dropout
    as in `init_state`."""
    adapters_key, dropout_key = jax.random.split(jax.random.wrap_key_data(key_data))
    if adapted is not None:
        variables = adapted.adopt(variables, adapters_key)
    return TrainState(
        params=variables.params,
        buffers=variables.buffers,
        opt_state=optimizer.init(variables.params),
        step=jnp.zeros((), jnp.int32),
        key=jax.random.key_data(dropout_key),
    )


def first_not_finite(variables: Variables) -> str | None:
    """Name of the first array with an infinite entry or NaN, such as `params/embedding`; None: all are finite."""
    found = jax.device_get(_all_finite(variables))
    return next((name for name, is_finite in names_of(found).items() if not is_finite), None)


@jax.jit
def _all_finite(variables: Variables) -> Variables:
    return jax.tree.map(lambda x: jnp.isfinite(x).all(), variables)


def state_shardings(blueprint: Blueprint | AdaptedBlueprint, abstract: TrainState, mesh: Mesh) -> TrainState:
    """Sharding of every array of the state.

    Parameters and buffers follow the table of `jaxzoo.parallel.sharding`. An array of the optimizer with the name and
    shape of a parameter (a moment) has its sharding; all others, also Adafactor's rows and columns, are replicated.
    """
    everywhere: Any = NamedSharding(mesh, PartitionSpec())
    variables: Any = jax.tree.map(
        lambda x, traits: named_sharding(x.shape, traits.axes, mesh), blueprint.shapes, blueprint.traits
    )
    shapes = {path: x.shape for path, x in jax.tree.leaves_with_path(blueprint.shapes.params)}
    shardings = dict(jax.tree.leaves_with_path(variables.params))

    def beside_parameter(path: tuple, x: Any) -> Any:
        name = next((path[i:] for i in range(len(path)) if path[i:] in shapes), None)
        return shardings[name] if name is not None and shapes[name] == x.shape else everywhere

    opt_state: Any = jax.tree.map_with_path(beside_parameter, abstract.opt_state)
    return TrainState(variables.params, variables.buffers, opt_state, everywhere, everywhere)
