"""Variables of a module, with metadata: parameters, which are trained, and buffers, which are not.

Logical axes define how a variable is sharded over a mesh (`jaxzoo.parallel.sharding`); parameters also have flags for
the optimizer. Nothing depends on names or ranks.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.typing import DTypeLike

from jaxzoo.parallel.sharding import LOGICAL_AXES, named_sharding


class Buffer(nnx.Variable[jax.Array]):
    """Variable that is saved but not trained (random features, a codebook): no gradient, no weight decay."""


@dataclasses.dataclass(frozen=True)
class Traits:
    """Metadata of a variable for sharding and the optimizer."""

    axes: tuple[str | None, ...]
    """Logical axes, one per dimension, without the axis of stacked layers."""
    decay: bool = True
    """Weight decay applies; False for norms and biases."""
    learning_rate_scale: float = 1.0
    """Learning-rate factor."""
    is_embedding: bool = False
    """Embedding table or head, whose weight decay is an option of the optimizer."""

    def decays(self, *, embeddings: bool = True, everything: bool = False) -> bool:
        """Whether weight decay applies, given the optimizer's options for embeddings and for norms and biases."""
        return embeddings if self.is_embedding else self.decay or everything


def metadata(axes: tuple[str | None, ...], **traits: Any) -> dict[str, Any]:
    """Metadata of a variable in the form that Flax's layers accept; `traits`: fields of `Traits`."""
    known = vars(Traits(axes, **traits)).copy()
    return {LOGICAL_AXES: known.pop("axes"), **known}


def parameter(value: jax.Array, axes: tuple[str | None, ...], **traits: Any) -> nnx.Param[jax.Array]:
    """Parameter with logical axes, one per dimension of `value`; `traits`: fields of `Traits`."""
    return nnx.Param(value, **metadata(axes, **traits))


def along_last(value: jax.Array, like: jax.Array) -> jax.Array:
    """`value` in the dtype of `like`, with leading axes of size 1 up to its rank."""
    return value.astype(like.dtype).reshape((1,) * (like.ndim - value.ndim) + value.shape)


def buffer(value: jax.Array, axes: tuple[str | None, ...]) -> Buffer:
    """Buffer with logical axes, one per dimension of `value`."""
    known: dict[str, Any] = {LOGICAL_AXES: axes}
    return Buffer(value, **known)


def traits_of(variable: nnx.Variable[Any]) -> Traits:
    """Traits of a variable with logical axes."""
    known = variable.get_metadata()
    names = [field.name for field in dataclasses.fields(Traits)]
    return Traits(known[LOGICAL_AXES], **{name: known[name] for name in names if name in known})


def weight_decay_mask(module: nnx.Module) -> nnx.State:
    """Whether weight decay applies to each parameter of a module, for `optax.adamw(..., mask=...)`.

    Returns:
      A pytree of bools like `nnx.state(module, nnx.Param)`; True for variables without this metadata.
    """
    return _of_each(nnx.state(module, nnx.Param), Traits.decays)


def learning_rate_scales(module: nnx.Module) -> nnx.State:
    """Learning-rate factor of each parameter of a module, in a pytree as of `weight_decay_mask`."""
    return _of_each(nnx.state(module, nnx.Param), lambda traits: traits.learning_rate_scale)


def cast_matrices(module: nnx.Module, dtype: DTypeLike) -> None:
    """Casts the parameters of a module that weight decay applies to, in place."""

    def cast(variable: nnx.Variable[Any], decays: bool) -> nnx.Variable[Any]:
        return variable.replace(variable[...].astype(dtype)) if decays else variable

    state = nnx.state(module, nnx.Param)
    nnx.update(module, jax.tree.map(cast, state, weight_decay_mask(module), is_leaf=_is_variable))


def shardings(module: nnx.Module, mesh: Mesh) -> nnx.State:
    """Sharding of each variable of a module on a mesh with axes named as in `jaxzoo.parallel.sharding.RULES`.

    Returns:
      A pytree of `NamedSharding` like `nnx.state(module)`; mesh axes that are absent or do not divide a dimension are
      not used for it. Variables without this metadata are replicated.
    """

    def sharding(variable: nnx.Variable[Any]) -> NamedSharding:
        axes = variable.get_metadata().get(LOGICAL_AXES, (None,) * variable.ndim)
        return named_sharding(variable.shape, axes, mesh)

    return jax.tree.map(sharding, nnx.state(module), is_leaf=_is_variable)


def _of_each(state: nnx.State, trait: Callable[[Traits], Any]) -> nnx.State:
    def read(variable: nnx.Variable[Any]) -> Any:
        return trait(traits_of(variable) if LOGICAL_AXES in variable.get_metadata() else Traits(()))

    return jax.tree.map(read, state, is_leaf=_is_variable)


def _is_variable(node: Any) -> bool:
    return isinstance(node, nnx.Variable)
