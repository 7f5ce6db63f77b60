"""Embedding lookup, also on a mesh."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from jaxzoo.parallel.sharding import mesh_axes, partition_spec
from jaxzoo.utils.array_typing import Array, Float, Int


def look_up(
    table: Float[Array, "n d"], ids: Int[Array, "b t"], axes: tuple[str | None, str | None]
) -> Float[Array, "b t d"]:
    """`table[ids]`; NaN for an id beyond the table.

    The compiler would gather the whole table, or the whole gradient of the output, on every device of a mesh. Instead
    each device looks up ids in its shard of the table; the results are summed over shards of the rows and exchanged
    over shards of the columns (all-to-all). The backward pass does the reverse, so no device holds more than its shard.

    Args:
      table: rows to look up.
      ids: not negative; `b` may be 1.
      axes: the logical axes of the table.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.manual_axes or mesh.size == 1:
        return table.at[ids].get(mode="fill", fill_value=jnp.nan)
    rows, columns = (mesh_axes(entry) for entry in partition_spec(table.shape, axes, mesh))
    batch, time = (mesh_axes(entry) for entry in partition_spec(ids.shape, ("batch", "time"), mesh))
    if not set(columns) <= set(batch):
        return table.at[ids].get(mode="fill", fill_value=jnp.nan)  # a short prompt: ids are replicated

    def local(table: Array, ids: Array) -> Array:
        if columns:
            ids = lax.all_gather(ids, columns, axis=0, tiled=True)
        here = ids - (lax.axis_index(rows) * table.shape[0] if rows else 0)
        found = (here >= 0) & (here < table.shape[0])
        values = table[jnp.where(found, here, 0)]
        values = jnp.where(found[..., None], values, jnp.zeros_like(values))
        if rows:
            values = lax.psum(values, rows)
        return lax.all_to_all(values, columns, split_axis=0, concat_axis=2, tiled=True) if columns else values

    values = jax.shard_map(
        local,
        in_specs=(PartitionSpec(rows, columns), PartitionSpec(batch, time)),
        out_specs=PartitionSpec(batch, time),
        check_vma=False,
    )(table, ids)
    known = (ids >= 0) & (ids < table.shape[0])
    return jnp.where(known[..., None], values, jnp.nan)
