"""Which rows a process needs, and where they land."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxzoo.parallel.rows import place_rows, place_whole, rows_of_process

ROWS = PartitionSpec(("data", "fsdp"))


class Elsewhere:
    """The sharding of a mesh, of whose devices only some are of this process."""

    is_fully_addressable = False

    def __init__(self, sharding, ours):
        self.sharding, self.ours = sharding, ours

    def addressable_devices_indices_map(self, shape):
        every = self.sharding.devices_indices_map(shape)
        return {device: index for device, index in every.items() if device.id in self.ours}


def sharding(shape, order=range(8), spec=ROWS):
    devices = np.array([jax.devices("cpu")[i] for i in order]).reshape(shape)
    return NamedSharding(jax.sharding.Mesh(devices, ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3), spec)


def test_rows_follow_from_the_mesh():
    """Kills: rows by process number, which are others where a mesh is not in the order of processes."""
    for shape, order, ours, expected in (
        ((4, 2, 1), range(8), {4, 5, 6, 7}, range(8, 16)),
        ((2, 1, 4), range(8), {0, 1}, range(8)),  # a tensor axis over processes: several need the same rows
        ((8, 1, 1), (0, 1, 4, 5, 2, 3, 6, 7), {0, 1, 2, 3}, [0, 1, 2, 3, 8, 9, 10, 11]),  # a mesh along a torus
    ):
        assert rows_of_process(Elsewhere(sharding(shape, order), ours), 16) == list(expected)


def test_a_process_alone_needs_all():
    """Kills: a run of one process that gathers its batch from parts."""
    assert rows_of_process(sharding((4, 2, 1)), 16) is None


def test_every_row_lands_in_its_place():
    """Kills: rows placed in the order in which they come instead of by their number, and a second axis that is cut."""
    whole = np.arange(16 * 6, dtype=np.int32).reshape(16, 6)
    rows = [3, 2, 1, 0, *range(4, 16)]
    for spec in (ROWS, PartitionSpec(("data", "fsdp"), "tensor")):
        where = sharding((2, 2, 2), spec=spec)
        for placed in (place_rows([whole[rows]], where, 16, rows), place_whole([whole], where)):
            assert placed[0].sharding == where
            np.testing.assert_array_equal(np.asarray(placed[0]), whole)


def test_a_stream_that_heeds_no_rows_is_refused():
    """Kills: a user's data set that gives every process the whole batch, whose first rows would be taken for others."""
    with pytest.raises(ValueError, match="a stream of 4 rows gives 16; it must return `rows`"):
        place_rows([np.zeros((16, 2), np.int32)], sharding((4, 2, 1)), 16, [4, 5, 6, 7])
