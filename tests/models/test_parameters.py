import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxzoo.mixers import AttentionConfig, GatedShortConvConfig
from jaxzoo.models import LanguageModel
from jaxzoo.models.accounting import count_parameters
from jaxzoo.parallel.sharding import LOGICAL_AXES, RULES
from tests.models.hybrids import hybrid_config, initialised, make_model, random_tokens, run


def parameters(model: LanguageModel) -> dict[str, nnx.Param]:
    """Every parameter by its path, `stacks/0/blocks/1/mixer/out_proj/kernel`."""
    return {"/".join(map(str, path)): leaf for path, leaf in nnx.to_flat_state(nnx.state(model, nnx.Param))}


def repeats_of(model: LanguageModel, path: str) -> int:
    """Length of the leading stacked axis of a parameter; 1 where there is none."""
    parts = path.split("/")
    return model.stacks[int(parts[1])].repeats if parts[0] == "stacks" else 1


@pytest.mark.parametrize("tie_embeddings", [False, pytest.param(True, marks=pytest.mark.full)])
def test_every_parameter_names_its_logical_axes(tie_embeddings):
    """Kills a parameter that no rule of the sharding table covers, and axes that count the stacked one."""
    model = make_model(hybrid_config(tie_embeddings=tie_embeddings, max_positions=12, mlp_bias=True))
    for path, parameter in parameters(model).items():
        axes = parameter.get_metadata()[LOGICAL_AXES]
        stacked = repeats_of(model, path) > 1
        assert len(axes) == parameter[...].ndim - stacked, path
        assert set(axes) <= {*RULES, None}, path
        named = [axis for axis in axes if axis is not None]
        assert len(set(named)) == len(named), path


@pytest.mark.slow
def test_every_parameter_gets_a_gradient():
    """Kills a parameter that the forward pass leaves out, in any repeat of a scanned period."""
    pattern = (AttentionConfig(n_heads=2), GatedShortConvConfig())
    config = hybrid_config(pattern=pattern, n_layers=5, tie_embeddings=False, max_positions=12, mlp_bias=True)
    model, tokens = make_model(config), random_tokens(config, batch_size=3, length=12)
    weights = jax.random.normal(jax.random.key(5), (3, 12, 16))

    def loss(model):
        logits = model(tokens)
        return jnp.sum(jnp.where(logits > -1e29, logits, jnp.zeros_like(logits)) * weights)

    for path, gradient in parameters(nnx.jit(nnx.grad(loss))(model)).items():
        values = np.asarray(gradient[...]).reshape(repeats_of(model, path), -1)
        assert np.all(np.isfinite(values)), path
        assert np.all(np.abs(values).max(1) > 1e-6), path


def test_initialisation():
    """Kills output projections without the 1 / sqrt(2 n_layers), a mixer deaf to the model's init_std, repeats that
    start equal, and a bias or norm that starts as noise."""
    pattern = (GatedShortConvConfig(), AttentionConfig(n_heads=2, qkv_bias=True, out_bias=True))
    config = hybrid_config(pattern=pattern, n_layers=4, d_model=64, mlp_width=96, mlp_bias=True, init_std=0.03)
    model = initialised(config, 3)
    flat = parameters(model)
    out_std = 0.03 / math.sqrt(2 * 4)
    kernels = {path: np.asarray(leaf[...]) for path, leaf in flat.items() if path.endswith("proj/kernel")}
    assert len(kernels) == 12
    for path, values in kernels.items():
        expected = out_std if "out_proj" in path or "down_proj" in path else 0.03
        assert abs(values.std() / expected - 1) < 0.1, path
        if repeats_of(model, path) > 1:
            assert abs(np.corrcoef(values[0].ravel(), values[1].ravel())[0, 1]) < 0.1, path
    assert abs(np.asarray(flat["embedding"][...]).std() / 0.03 - 1) < 0.1
    constants = {path: 0 for path in flat if path.endswith(("proj/bias", "norm/bias"))}
    constants |= {path: 1 for path in flat if path.endswith("norm/scale")}
    for path, value in constants.items():
        np.testing.assert_array_equal(flat[path][...], value)


@pytest.mark.full
def test_initialisation_of_gpt_neox():
    """Kills a head with another standard deviation than the embedding, or equal to it, and output projections of mixer
    or MLP that miss their own: GPT-NeoX's small init, sqrt(2 / (5 d)), and wang init, 2 / (n_layers sqrt(d))."""
    small, wang = math.sqrt(2 / (5 * 64)), 2 / (6 * math.sqrt(64))
    config = hybrid_config(
        pattern=(AttentionConfig(n_heads=2),),
        n_layers=6,
        d_model=64,
        vocab_size=97,
        mlp="gelu",
        mlp_width=96,
        tie_embeddings=False,
        init_std=small,
        out_init_std=wang,
    )
    flat = parameters(initialised(config, 3))
    assert not np.array_equal(flat["head"][...], flat["embedding"][...])
    tables = [path for path in flat if path.endswith(("proj/kernel", "head", "embedding"))]
    assert len(tables) == 8
    for path in tables:
        expected = wang if "out_proj" in path or "down_proj" in path else small
        assert abs(np.asarray(flat[path][...]).std() / expected - 1) < 0.05, path


def test_an_untied_head_is_its_own_table():
    """Kills a head that is made and then ignored, or that moves with the embedding."""
    shared = {"pattern": (GatedShortConvConfig(),)}
    tied, untied = hybrid_config(**shared), hybrid_config(**shared, tie_embeddings=False)
    assert count_parameters(untied) - count_parameters(tied) == 16 * 8
    model = make_model(untied)
    tokens = random_tokens(untied)
    features, logits = nnx.jit(LanguageModel.features)(model, tokens), run(model, tokens)
    model.head[...] = 2 * model.head[...]
    np.testing.assert_array_equal(nnx.jit(LanguageModel.features)(model, tokens), features)
    np.testing.assert_allclose(run(model, tokens)[..., :13], 2 * logits[..., :13], rtol=1e-6)
