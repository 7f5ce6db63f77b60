"""Functions on a mesh with Explicit axes, the default of `jax.make_mesh`.

The axes are Auto inside the function, so that the compiler chooses the sharding of intermediate arrays, and Explicit
again for its outputs.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

Function = TypeVar("Function", bound=Callable[..., Any])


def explicit_mesh(arrays: Any) -> Mesh | AbstractMesh | None:
    """Mesh of the first array on a mesh with Explicit axes; None: there is none."""
    for leaf in jax.tree.leaves(arrays):
        mesh = jax.typeof(leaf).sharding.mesh
        if AxisType.Explicit in mesh.axis_types:
            return mesh
    return None


def with_auto_axes(function: Callable[..., Any], operands: tuple, like: Any) -> Any:
    """Calls `function(*operands)` with Auto axes in place of Explicit ones.

    Args:
      function: function of trees of arrays, which must not close over sharded arrays.
      like: prefix of the output tree; its leaves are arrays whose sharding an output takes, or specs.
    """
    mesh = explicit_mesh(operands)
    if mesh is None:
        return function(*operands)

    def sharding(leaf: Any) -> NamedSharding:
        return NamedSharding(mesh, leaf if isinstance(leaf, PartitionSpec) else jax.typeof(leaf).sharding.spec)

    shardings = jax.tree.map(sharding, like, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec))
    return jax.sharding.auto_axes(function, out_sharding=shardings)(*operands)


def recurrence_on_any_mesh(op: Function) -> Function:
    """Decorator: lets an op `(..., v, ..., initial_state=None) -> (y, state)` run on Explicit axes.

    The output has the sharding of `v`, `(b, t, ...)`; the state that of the initial state, or of `v` without time.
    """
    signature = inspect.signature(op)

    @functools.wraps(op)
    def run(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        arrays = {name: value for name, value in given.items() if _is_array_tree(value)}
        if explicit_mesh(arrays) is None:
            return op(*args, **kwargs)
        rest = {name: value for name, value in given.items() if name not in arrays}
        spec = jax.typeof(arrays["v"]).sharding.spec
        state = arrays.get("initial_state", PartitionSpec(spec[0], *spec[2:-1]))
        return with_auto_axes(lambda arrays: op(**arrays, **rest), (arrays,), (arrays["v"], state))

    return run  # type: ignore[return-value]


def _is_array_tree(value: Any) -> bool:
    leaves = jax.tree.leaves(value)
    return bool(leaves) and all(hasattr(leaf, "ndim") for leaf in leaves)
