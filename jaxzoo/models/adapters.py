"""LoRA: low-rank adapters of chosen matrices, which are trained while the adapted model is frozen.

W' = W + alpha / rank A B     (Hu et al. 2021, arXiv 2106.09685, Eq. 3; their B A acts from the left)

A begins normal with variance 1 / d_in and B at 0, so that training begins at the adapted model exactly.

Adapters are variables next to those of the model instead of modules around its layers: they work with any mixer, on any
mesh and in scanned layers. W' is computed once per step, at `rank` multiplications per entry, and so is its gradient,
which the paper's x A B avoids; Adam's moments exist for A and B only. There is no dropout of x.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import NamedSharding, PartitionSpec

from jaxzoo.config.checked import PositiveFloat, PositiveInt, unknown
from jaxzoo.config.config_io import Json
from jaxzoo.layers.variables import Traits
from jaxzoo.models.blueprint import Blueprint, Variables
from jaxzoo.models.language_model import LanguageModel
from jaxzoo.utils.array_typing import PRNGKeyArray

FROZEN = "frozen"
"""Key of the buffers that hold the parameters of the adapted model."""


class Lora(NamedTuple):
    """Rank, targets and scale of the adapters of a model."""

    rank: PositiveInt
    targets: tuple[str, ...]
    """Names of projections, such as `q_proj`."""
    alpha: PositiveFloat

    @property
    def scale(self) -> float:
        """Factor of A B."""
        return self.alpha / self.rank


class AdaptedBlueprint(NamedTuple):
    """Language model with adapters: its parameters are A and B of each adapter, the model's own are buffers."""

    base: Blueprint
    """The model without adapters."""
    lora: Lora
    shapes: Variables
    traits: Variables

    @property
    def n_params(self) -> int:
        return sum(leaf.size for leaf in jax.tree.leaves(self.shapes.params))

    def model(self, variables: Variables) -> LanguageModel:
        """Returns the module with merged matrices; for use inside one traced function."""
        return self.base.model(self.merged(variables))

    def merged(self, variables: Variables) -> Variables:
        """Returns the variables of the model with W' instead of W."""
        own = self.own(variables)
        flat = _flat(own.params)
        for path, a in _flat(variables.params).items():
            if path[-1] == "a":
                b = _flat(variables.params)[*path[:-1], "b"]
                change = jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
                flat[path[:-1]] = flat[path[:-1]] + self.lora.scale * change
        return Variables(unflatten_dict(flat), own.buffers)

    def own(self, variables: Variables) -> Variables:
        """Returns the variables of the model before adaptation."""
        buffers = dict(variables.buffers)
        return Variables(buffers.pop(FROZEN), buffers)

    def adopt(self, own: Variables, key: PRNGKeyArray) -> Variables:
        """Adds fresh adapters to the variables of a model."""
        fresh = {}
        for path, shape in _flat(self.shapes.params).items():
            key, drawn = jax.random.split(key)
            d_in = shape.shape[-2]
            is_a = path[-1] == "a"
            fresh[path] = jax.random.normal(drawn, shape.shape) * d_in**-0.5 if is_a else jnp.zeros(shape.shape)
        return Variables(unflatten_dict(fresh), {**own.buffers, FROZEN: own.params})


def adapt(base: Blueprint, lora: Lora) -> AdaptedBlueprint:
    """Makes the blueprint of a model with adapters. Raises `ValueError` if a target is no matrix of the model (with the
    nearest name)."""
    traits, shapes = _flat(base.traits.params), _flat(base.shapes.params)
    matrices = {path: of for path, of in traits.items() if len(of.axes) == 2 and path[-1] == "kernel"}
    known = sorted({str(path[-2]) for path in matrices})
    for target in lora.targets:
        if target not in known:
            raise ValueError(f"TrainConfig.lora_targets: {unknown('projection', target, known)}")
    new_shapes, new_traits = {}, {}
    for path, of in matrices.items():
        if path[-2] in lora.targets:
            *stacked, d_in, d_out = shapes[path].shape
            for name, sizes, axes in (
                ("a", (d_in, lora.rank), (of.axes[0], None)),
                ("b", (lora.rank, d_out), (None, of.axes[1])),
            ):
                new_shapes[*path, name] = jax.ShapeDtypeStruct((*stacked, *sizes), jnp.float32)
                new_traits[*path, name] = Traits(axes, learning_rate_scale=of.learning_rate_scale)

    def joined(adapters: dict, own: Variables) -> Variables:
        return Variables(unflatten_dict(adapters), {**own.buffers, FROZEN: own.params})

    return AdaptedBlueprint(base, lora, joined(new_shapes, base.shapes), joined(new_traits, base.traits))


def stored_lora(config: Json) -> Lora | None:
    """Returns the adapters that a stored config names, or None."""
    train = config.get("train")
    if not isinstance(train, dict) or not train.get("lora_rank"):
        return None
    return Lora(int(train["lora_rank"]), tuple(train["lora_targets"]), float(train["lora_alpha"]))


def with_adapters(blueprint: AdaptedBlueprint, own: Variables) -> Variables:
    """Returns the sharding of a model with adapters: adapters are replicated, other variables keep their sharding."""
    first = jax.tree.leaves(own)[0].sharding
    place: Any = NamedSharding(first.mesh, PartitionSpec()) if isinstance(first, NamedSharding) else first
    params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), blueprint.shapes.params)
    return Variables(params, {**own.buffers, FROZEN: own.params})


def merge(blueprint: AdaptedBlueprint, variables: Variables) -> Variables:
    """Returns the variables of the merged model, with the sharding of the adapted one."""
    places = jax.tree.map(lambda x: x.sharding, blueprint.own(variables))
    return jax.jit(blueprint.merged, out_shardings=places)(variables)


def _flat(tree: dict) -> dict[tuple, Any]:
    return dict(flatten_dict(tree))
