"""Calls of Triton kernels: rows of batches, and which GPUs they are for."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import triton_call


def test_a_batch_of_calls_is_one_call_with_more_rows():
    """Kills a batching rule that mixes up rows, that batches what is shared, or that calls more than once."""
    shapes = []

    def scaled(x, pair):
        shapes.append(x.shape)
        return x * pair[0][:, None], None if pair[1] is None else pair[1] + 1

    x, a = jnp.arange(24.0).reshape(3, 2, 4), jnp.array([10.0, 100.0])
    found, more = jax.vmap(lambda x: triton_call.as_rows(scaled)(x, (a, None)))(x)
    np.testing.assert_array_equal(found, x * a[None, :, None])
    assert more is None
    assert shapes[-1] == (6, 4)


@pytest.mark.parametrize(("capability", "served"), [("7.5", False), ("8.0", True), ("12.0", True), (None, True)])
def test_gpus_before_ampere_are_refused(capability, served):
    """Kills a comparison of strings, in which 12.0 comes before 8.0."""
    device = None if capability is None else SimpleNamespace(compute_capability=capability)
    assert (triton_call.needs_ampere(None, device) is None) == served
