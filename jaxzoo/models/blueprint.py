"""A language model without its numbers: structure, shapes, and what mesh and optimizer must know of each variable."""

from typing import Any, NamedTuple

import jax
from flax import nnx

from jaxzoo.layers.variables import Buffer, traits_of
from jaxzoo.models.language_model import LanguageModel, LanguageModelConfig
from jaxzoo.parallel.sharding import LOGICAL_AXES

Shapes = dict[str, tuple[int, ...]]
"""Shapes by name of the variable, such as `stacks/0/blocks/1/mixer/q/kernel`."""


class Variables(NamedTuple):
    """Variables of a model, as nested dicts; layers of a repeated period have one leading axis of repeats."""

    params: dict[str, Any]
    buffers: dict[str, Any]
    """Buffers, which are never updated."""


class Blueprint(NamedTuple):
    """Structure of a language model without its arrays."""

    graph: nnx.GraphDef[LanguageModel]
    shapes: Variables
    traits: Variables

    def model(self, variables: Variables) -> LanguageModel:
        """Returns the module with these variables; for use inside one traced function."""
        return nnx.merge(self.graph, *map(nnx.State, variables))

    def own(self, variables: Variables) -> Variables:
        """Returns the variables of the model itself: all, if there are no adapters (`jaxzoo.models.adapters`)."""
        return variables

    @property
    def n_params(self) -> int:
        return sum(leaf.size for leaf in jax.tree.leaves(self.shapes.params))


def make_blueprint(config: LanguageModelConfig, *, scanned: bool = True) -> Blueprint:
    """Reads structure, shapes and traits of the model without computing anything. Raises `ValueError` if a variable is
    neither parameter nor buffer, or has no logical axes."""
    model = nnx.eval_shape(lambda: LanguageModel(config, rngs=nnx.Rngs(0), scanned=scanned))
    graph, params, buffers, others = nnx.split(model, nnx.Param, Buffer, ...)
    for path, variable in nnx.to_flat_state(others):
        raise ValueError(
            f"variable {_name(path)} is of kind {type(variable).__name__}; a mixer holds parameters and buffers, made "
            "by jaxzoo.layers.variables"
        )
    return Blueprint(
        graph, Variables(*map(nnx.to_pure_dict, (params, buffers))), Variables(*map(_traits, (params, buffers)))
    )


def split_variables(model: LanguageModel) -> Variables:
    _, params, buffers = nnx.split(model, nnx.Param, Buffer)
    return Variables(nnx.to_pure_dict(params), nnx.to_pure_dict(buffers))


def names_of(tree: Any, separator: str = "/") -> dict[str, Any]:
    """Returns the leaves of a tree by name, such as `stacks/0/blocks/1/mixer/q/kernel`."""
    leaves = jax.tree.leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator=separator): leaf for path, leaf in leaves}


def _traits(state: nnx.State) -> dict:
    for path, variable in nnx.to_flat_state(state):
        if LOGICAL_AXES not in variable.get_metadata():
            raise ValueError(f"variable {_name(path)} has no {LOGICAL_AXES}; make it by jaxzoo.layers.variables")
    return nnx.to_pure_dict(state, traits_of)


def _name(path: tuple) -> str:
    return "/".join(map(str, path))
