"""The table from logical axes to mesh axes."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, PartitionSpec as P

from jaxzoo.mixers import AttentionConfig, LongConvConfig
from jaxzoo.models import LanguageModel, LanguageModelConfig
from jaxzoo.parallel.sharding import MESH_AXES, partition_spec


def test_a_dimension_that_its_mesh_axes_do_not_divide_stays_whole():
    """Kills: an uneven shard, names of the leading dimensions instead of the trailing ones."""
    mesh = AbstractMesh((2, 3, 1, 4), MESH_AXES)
    assert partition_spec((12, 5, 8), ("batch", "time", "heads"), mesh) == P(
        ("data", "fsdp"), ("sequence",), ("tensor",)
    )
    assert partition_spec((9, 5, 6), ("batch", "time", "heads"), mesh) == P(None, ("sequence",), None)
    assert partition_spec((4, 6, 8), ("embed", None), mesh) == P(None, ("fsdp",), None)


@pytest.mark.parametrize("axes", [("data", "model"), ("data", "sequence"), ("x", "y")])
def test_a_model_runs_on_a_mesh_of_the_users_own(axes):
    """Kills: a KeyError for mesh axes that only a mesh of `make_mesh` has."""
    mesh = AbstractMesh((4, 2), axes)
    assert partition_spec((12, 6, 8), ("batch", "time", "heads"), mesh) == P(
        ("data",) if "data" in axes else None, ("sequence",) if "sequence" in axes else None, None
    )
    pattern = (AttentionConfig(n_heads=2, positions="alibi"), LongConvConfig())
    config = LanguageModelConfig(pattern=pattern, d_model=8, n_layers=2, vocab_size=40, max_length=8)
    model = nnx.eval_shape(lambda: LanguageModel(config, rngs=nnx.Rngs(0)))
    with jax.set_mesh(jax.make_mesh((4, 2), axes, axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:8])):
        logits = nnx.eval_shape(lambda model: model(jnp.zeros((8, 6), jnp.int32)), model)
    assert logits.shape == (8, 6, config.padded_vocab_size)
