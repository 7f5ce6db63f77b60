"""Variables of a module: parameters, which learn, and buffers, which do not; each with its metadata.

Logical axes say how a variable is sharded over a mesh (`jaxzoo.parallel.sharding`); a parameter also says what the
optimizer must know. Nothing is guessed from a name or a rank.
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
    """A variable that is not learned (random features, a codebook): in checkpoints, without gradient or decay."""


@dataclasses.dataclass(frozen=True)
class Traits:
    """Metadata of a variable for mesh and optimizer."""

    axes: tuple[str | None, ...]
    """Logical axes, one per dimension, without the axis of stacked layers."""
    decay: bool = True
    """Weight decay applies; False for norms and biases."""
    learning_rate_scale: float = 1.0
    """Factor of the learning rate."""
    is_embedding: bool = False
    """A table of embeddings (or a head), whose decay the optimizer's config decides."""

    def decays(self, *, embeddings: bool = True, everything: bool = False) -> bool:
        """Whether weight decay applies, where tables of embeddings decay or not, and perhaps norms and biases too."""
        return embeddings if self.is_embedding else self.decay or everything


def metadata(axes: tuple[str | None, ...], **traits: Any) -> dict[str, Any]:
    """The metadata of a variable with these axes and other `traits` by their names, as Flax's own layers take them."""
    known = vars(Traits(axes, **traits)).copy()
    return {LOGICAL_AXES: known.pop("axes"), **known}


def parameter(value: jax.Array, axes: tuple[str | None, ...], **traits: Any) -> nnx.Param[jax.Array]:
    """A parameter with its logical axes, one per dimension of `value`, and other `traits` by the names of `Traits`."""
    return nnx.Param(value, **metadata(axes, **traits))


def along_last(value: jax.Array, like: jax.Array) -> jax.Array:
    """`value` in the dtype of `like`, with as many axes: to be combined with its last ones."""
    return value.astype(like.dtype).reshape((1,) * (like.ndim - value.ndim) + value.shape)


def buffer(value: jax.Array, axes: tuple[str | None, ...]) -> Buffer:
    """A buffer with its logical axes, one per dimension of `value`."""
    known: dict[str, Any] = {LOGICAL_AXES: axes}
    return Buffer(value, **known)


def traits_of(variable: nnx.Variable[Any]) -> Traits:
    """The traits of a variable that has logical axes."""
    known = variable.get_metadata()
    names = [field.name for field in dataclasses.fields(Traits)]
    return Traits(known[LOGICAL_AXES], **{name: known[name] for name in names if name in known})


def weight_decay_mask(module: nnx.Module) -> nnx.State:
    """Whether weight decay applies to each parameter of a module, for `optax.adamw(..., mask=...)`.

    Returns:
      True or False in place of each variable of `nnx.state(module, nnx.Param)`; variables that are not of this library
      decay.
    """
    return _of_each(nnx.state(module, nnx.Param), Traits.decays)


def learning_rate_scales(module: nnx.Module) -> nnx.State:
    """Factor of the learning rate of each parameter of a module, as `weight_decay_mask` returns them."""
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
      A `NamedSharding` in place of each variable of `nnx.state(module)`; axes that the mesh lacks, or that do not
      divide a dimension, leave it whole. Variables that are not of this library are replicated.
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
