"""The table from logical axes to mesh axes."""

from jax.sharding import AbstractMesh, PartitionSpec as P

from jaxzoo.sharding import MESH_AXES, partition_spec


def test_a_dimension_that_its_mesh_axes_do_not_divide_stays_whole():
    """Kills: an uneven shard, names of the leading dimensions instead of the trailing ones."""
    mesh = AbstractMesh((2, 3, 1, 4), MESH_AXES)
    assert partition_spec((12, 5, 8), ("batch", "time", "heads"), mesh) == P(
        ("data", "fsdp"), ("sequence",), ("tensor",)
    )
    assert partition_spec((9, 5, 6), ("batch", "time", "heads"), mesh) == P(None, ("sequence",), None)
    assert partition_spec((4, 6, 8), ("embed", None), mesh) == P(None, ("fsdp",), None)
