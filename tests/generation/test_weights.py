"""Weights of generation. Kills: a parameter that is rounded although some operation reads it in float32."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.generation.weights import cast_weights
from jaxzoo.mixers import MIXERS
from jaxzoo.models import LanguageModelConfig
from jaxzoo.models.blueprint import make_blueprint, names_of, split_variables
from tests.models.hybrids import hybrid_config, make_model

EXACT = {"xla_allow_excess_precision": False}  # XLA's CPU programs may leave out roundings of weights, otherwise


def outputs(config, variables):
    """Logits and states of a prefill and two steps."""

    def run(variables, tokens):
        model = make_blueprint(config, scanned=False).model(variables)
        first, state = model.prefill(tokens[:, :5], model.init_state(2, capacity=16))
        second, state = model.step(tokens[:, 5], state)
        third, state = model.step(tokens[:, 6], state)
        return first, second, third, state

    tokens = jnp.asarray(np.random.default_rng(0).integers(13, size=(2, 7)), jnp.int32)
    return jax.tree.map(np.asarray, jax.jit(run, compiler_options=EXACT)(variables, tokens))


def tiny(name: str) -> LanguageModelConfig:
    mixer = MIXERS[name].tiny()
    if name == "rwkv7_time_mix":
        mixer = dataclasses.replace(mixer, value_residual=False)
    return hybrid_config(pattern=(mixer,), d_model=mixer.d_model, n_layers=1, dtype="bfloat16")


STREAMS = [name for name, cls in MIXERS.items() if cls.tiny().capabilities.streams]


@pytest.mark.full
@pytest.mark.parametrize("name", ["hybrid", *(pytest.param(name, marks=pytest.mark.slow) for name in STREAMS)])
def test_outputs_and_states_are_equal_bit_by_bit(name):
    """Kills: rounded taps, norms, rows of the embedding; a tied head that is lost; matrices that stay float32."""
    config = hybrid_config(dtype="bfloat16", n_layers=5) if name == "hybrid" else tiny(name)
    assert config.tie_embeddings
    variables = split_variables(make_model(config).unstacked())
    cast_config, cast = cast_weights(config, variables)
    jax.tree.map(np.testing.assert_array_equal, outputs(config, variables), outputs(cast_config, cast))
    dtypes = {name: x.dtype for name, x in names_of(cast.params).items()}
    assert dtypes["embedding"] == jnp.float32
    assert dtypes["head"] == jnp.bfloat16
    for name, dtype in dtypes.items():
        if name.endswith("proj/kernel"):
            assert dtype == jnp.bfloat16, name
        if name.endswith(("norm/scale", "taps")):
            assert dtype == jnp.float32, name


def test_float32_models_stay_as_they_are():
    """Kills: a copy of the weights that nobody needs."""
    config = hybrid_config(n_layers=1)
    variables = split_variables(make_model(config).unstacked())
    assert cast_weights(config, variables) == (config, variables)
