"""A mixer is built from its config or from the config's fields, and says in one line what it cannot take."""

import dataclasses
import inspect

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jaxzoo import weight_decay_mask
from jaxzoo.mixers import MIXERS, Context, RetNet, RetNetConfig
from jaxzoo.testing.mixer_inputs import MAX_LENGTH, ready


@pytest.mark.parametrize("name", sorted(MIXERS))
def test_fields_in_place_of_a_config(name):
    """Kills a mixer that drops a field, or that is another one than that of the config."""
    config = MIXERS[name].tiny()
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    of_fields = nnx.eval_shape(lambda: config.mixer_class(**fields, rngs=nnx.Rngs(0)))
    of_config = nnx.eval_shape(lambda: config.build(rngs=nnx.Rngs(0)))
    assert of_fields.config == config
    assert jax.tree.map(jnp.shape, nnx.state(of_fields)) == jax.tree.map(jnp.shape, nnx.state(of_config))


def test_wrong_arguments():
    """Kills a misspelt field that is ignored, two sources of one field, and an input of another width that ends in an
    error of `dot_general`."""
    rngs = nnx.Rngs(0)
    with pytest.raises(TypeError, match=r"RetNet has no field n_head; did you mean n_heads\?"):
        RetNet(d_model=8, n_head=2, rngs=rngs)
    with pytest.raises(TypeError, match=r"RetNet takes a config or its fields \(n_heads\), not both"):
        RetNet(RetNetConfig(d_model=8), n_heads=2, rngs=rngs)
    mixer = RetNet(d_model=8, n_heads=2, rngs=rngs)
    with pytest.raises(ValueError, match=r"RetNet got an input of shape \(1, 3, 6\); its last axis must be d_model=8"):
        mixer(jnp.zeros((1, 3, 6)))
    with pytest.raises(ValueError, match=r"RetNet got an input of shape \(1, 6\)"):
        mixer.step(jnp.zeros((1, 6)), mixer.init_state(1))


@pytest.mark.parametrize("name", sorted(MIXERS))
def test_dtypes_as_in_flax(name):
    """Kills: a dtype that is ignored, parameters that are not cast, a mixer that fails with bfloat16 parameters."""
    config = MIXERS[name].tiny()
    needs = config.capabilities
    context = Context(
        tokens=jnp.zeros((1, 5), jnp.int32) if needs.needs_tokens else None,
        first_values=jnp.zeros((1, 5, config.width), jnp.bfloat16) if needs.needs_values else None,
    )
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}

    def build():
        return config.mixer_class(**fields, rngs=nnx.Rngs(0), dtype=jnp.bfloat16, param_dtype=jnp.bfloat16)

    mixer = nnx.eval_shape(build)
    decays = jax.tree.leaves(weight_decay_mask(mixer))
    cast = [x.dtype == jnp.bfloat16 for x in jax.tree.leaves(nnx.state(mixer, nnx.Param))]
    assert any(cast)
    assert cast == decays
    with jax.numpy_dtype_promotion("standard"):
        x = jax.ShapeDtypeStruct((1, 5, config.width), jnp.float32)
        assert jax.eval_shape(lambda x: build()(x, context), x).dtype == jnp.bfloat16


@pytest.mark.parametrize("name", sorted(MIXERS))
def test_empty_batch(name):
    """Kills: a division by zero for a batch of no rows, in one form, with documents, or in the gradient."""
    config, t = ready(MIXERS[name].tiny()), 33
    can, d = config.capabilities, config.width

    def context(*shape):
        values = jnp.zeros((*shape, d)) if can.needs_values else None
        return Context(tokens=jnp.zeros(shape, jnp.int32), first_values=values)

    def forms(x):
        mixer = config.build(rngs=nnx.Rngs(0))
        whole = context(0, t)
        found = {"call": mixer(x, whole), "gradient": jax.grad(lambda x: mixer(x, whole).sum())(x)}
        if can.segments:
            documents = dataclasses.replace(whole, segment_ids=jnp.zeros((0, t), jnp.int32))
            found["documents"] = mixer(x, documents)
        if can.streams:
            found["prefill"], state = mixer.prefill(x, mixer.init_state(0, capacity=MAX_LENGTH), whole)
            found["step"] = mixer.step(x[:, 0], state, context(0))[0][:, None].repeat(t, axis=1)
        return found

    shapes = jax.eval_shape(forms, jax.ShapeDtypeStruct((0, t, d), jnp.float32))
    assert {form: y.shape for form, y in shapes.items()} == dict.fromkeys(shapes, (0, t, d))


def test_signatures_are_readable():
    """Kills: `Annotated[int, Rule(...)]` in `help(RetNet)`, and a signature without the config's fields."""
    shown = str(inspect.signature(RetNet))
    assert "n_heads: int = " in shown
    assert "rngs: flax.nnx.rnglib.Rngs" in shown
    assert "Rule" not in shown + str(inspect.signature(RetNetConfig))
