"""Conversion of attention layers. Kills: a projection of another head, a gradient that does not reach the mixer."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxzoo.data.base import Batch
from jaxzoo.data.text_data import TextDataConfig
from jaxzoo.linearization import MIXERS
from jaxzoo.linearization.conversion import attention_layers, convert, converted_config
from jaxzoo.linearization.measure import decode_speed
from jaxzoo.linearization.transfer import TransferConfig, transfer
from jaxzoo.loading import Loaded
from jaxzoo.mixers import AttentionConfig, HGRN2Config
from jaxzoo.models.blueprint import Variables, make_blueprint, split_variables
from jaxzoo.models.language_model import LanguageModel
from jaxzoo.models.model_config import LanguageModelConfig
from jaxzoo.train.config import RunConfig
from tests.pallas_kernels.shared import full, slow

ATTENTION = AttentionConfig(n_heads=4, n_kv_heads=2, positions="rotary")


@functools.cache
def model(pattern: Any = (ATTENTION,), **fields: Any) -> tuple[LanguageModelConfig, Variables]:
    """A model whose attention is sharp, so that mixers differ."""
    config = LanguageModelConfig(pattern=pattern, d_model=16, n_layers=4, vocab_size=40, max_length=16, **fields)
    variables = jax.jit(lambda: split_variables(LanguageModel(config, rngs=nnx.Rngs(1))))()
    return config, jax.tree.map(lambda x: x * 20 if x.ndim > 2 else x, variables)


def layers_of(config: LanguageModelConfig, variables: Variables) -> list[dict[tuple, np.ndarray]]:
    """Variables of the layers, by path."""
    stacks = make_blueprint(config).model(variables).unstacked().stacks
    return [{path: np.asarray(x[...]) for path, x in nnx.to_flat_state(nnx.state(stack))} for stack in stacks]


class Batches:
    """Random tokens."""

    def __next__(self) -> Batch:
        tokens = np.random.default_rng(0).integers(0, 40, (4, 17)).astype(np.int32)
        return Batch(tokens=jnp.asarray(tokens[:, :-1]), targets=jnp.asarray(tokens[:, 1:]))

    def get_state(self) -> dict:
        return {}

    def set_state(self, state: dict) -> None:
        raise NotImplementedError


@pytest.mark.slow
def test_a_window_of_all_tokens_leaves_the_model_as_it_was():
    """Kills: a projection of another layer or another head, a norm or MLP that is not taken over."""
    config, old = model()
    new = converted_config(config, attention_layers(config, [1]), "based", window=16)
    made = convert(config, old, new)
    tokens = next(Batches()).tokens
    wanted = jax.jit(make_blueprint(config).model(old))(tokens)
    np.testing.assert_allclose(jax.jit(make_blueprint(new).model(made.variables))(tokens), wanted, atol=1e-4)
    assert {name.rpartition(".")[2] for name in made.new} == {"q_map", "k_map", "log_weight"}


@pytest.mark.full
@pytest.mark.parametrize("mixer", MIXERS)
def test_what_is_copied_is_equal(mixer):
    """Kills: a name or place mixed up where folds differ; heads of keys that are not repeated side by side;
    a short convolution that begins as a delay."""
    config, old = model()
    new = converted_config(config, attention_layers(config, [0, 2]), mixer)
    before, after = layers_of(config, old), layers_of(new, convert(config, old, new).variables)
    for i, (theirs, ours) in enumerate(zip(before, after, strict=True)):
        for path, value in theirs.items():
            wanted = value
            if value.shape != ours[path].shape:  # Gated DeltaNet has a key head for each query head
                assert mixer == "gated-delta-net"
                assert path[-2] in ("k_proj", "v_proj")
                wanted = np.concatenate([value[:, 4 * (h // 2) : 4 * (h // 2) + 4] for h in range(4)], axis=1)
            np.testing.assert_array_equal(ours[path], wanted, err_msg=f"layer {i} {path}")
        for path, taps in ours.items():
            if path[-1] == "taps":  # the convolution of Gated DeltaNet begins as the identity
                np.testing.assert_array_equal(taps, np.eye(len(taps))[0][:, None] * np.ones_like(taps))


@pytest.mark.parametrize("mixer", [full(x) if x == "based" else slow(x) for x in MIXERS])
def test_transfer_lowers_the_error_and_changes_new_mixers_alone(mixer):
    """Kills: a gradient that does not reach a mixer, targets of another layer, an update of a layer that is kept."""
    config, old = model()
    layers = attention_layers(config, [0])
    new = converted_config(config, layers, mixer, window=None if mixer == "gated-delta-net" else 2)
    made = convert(config, old, new)
    seen = list[int]()
    settings = TransferConfig(tokens=64 * 150, learning_rate=3e-3)
    report = lambda i, n, errors: seen.append(n)  # noqa: E731
    done = transfer((config, old), (new, made.variables), layers, Batches(), settings, report=report)
    assert seen == [150] * 150
    assert all(b < 0.5 * a for a, b in zip(done.first_errors, done.last_errors, strict=True))
    before, after = layers_of(new, made.variables), layers_of(new, done.variables)
    for i, (theirs, ours) in enumerate(zip(before, after, strict=True)):
        for path, value in theirs.items():
            changed = not np.array_equal(value, ours[path])
            assert changed == (i in layers and "mixer" in path), f"layer {i} {path}"
    np.testing.assert_array_equal(made.variables.params["embedding"], done.variables.params["embedding"])


@pytest.mark.full
def test_refusals():
    """Kills: a layer that does not exist, a model without attention, or an attention whose parts would be lost."""
    config, _ = model()
    for keep, message in (([7], "--keep 7 must be a layer"), (range(4), "leaves no layer")):
        with pytest.raises(ValueError, match=message):
            attention_layers(config, keep)
    with pytest.raises(ValueError, match="no layer of softmax attention, only HGRN2"):
        attention_layers(dataclasses.replace(config, pattern=(HGRN2Config(n_heads=2),)))
    refused: list[tuple[dict[str, Any], str, str]] = [
        ({"positions": "alibi"}, "based", "positions='alibi', which based cannot take over"),
        ({"positions": "xpos"}, "based", "positions='xpos', which based cannot take over"),
        ({"output_gate": True}, "hedgehog", "output_gate=True"),
        ({"qk_norm": "rms"}, "gated-delta-net", "qk_norm='rms'"),
        ({"qkv_bias": True}, "gated-delta-net", "qkv_bias=True"),
    ]
    for fields, mixer, message in refused:
        other = dataclasses.replace(config, pattern=(AttentionConfig(n_heads=4, **fields),))
        with pytest.raises(ValueError, match=message):
            converted_config(other, [0], mixer)
    with pytest.raises(ValueError, match="attention_post_norm=True, and gated-delta-net would"):
        converted_config(dataclasses.replace(config, attention_post_norm=True), [0], "gated-delta-net")


def test_decoding_at_the_end_of_the_learned_positions():
    """Kills: an error after all stages are done, where the data are as long as the model's position embedding."""
    config, variables = model((AttentionConfig(n_heads=2),), max_positions=16)
    experiment = RunConfig(model=config, data=TextDataConfig(length=16))
    made = make_blueprint(config).model(variables)
    loaded = Loaded(model=made, config=experiment, tokenizer=None, step=0, metrics=[])
    assert not decode_speed(loaded, 16) <= 0  # NaN where it is lost in the noise
    with pytest.raises(ValueError, match="option 'top' must be one of n_ids, temperature, top_k, top_p, seed"):
        loaded.generate([[1, 2]], top=3)
