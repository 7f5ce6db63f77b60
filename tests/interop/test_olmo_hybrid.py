"""Layouts of OLMo Hybrid's folders. Kills: a layout of another version of transformers that is refused or mixed up."""

import numpy as np

from jaxzoo.interop.families.olmo_hybrid import CONVOLUTIONS, OLMO_HYBRID, read_names
from jaxzoo.interop.fields import Fields
from jaxzoo.interop.mapping import slots, their_shapes
from jaxzoo.models.blueprint import make_blueprint
from tests.interop import published
from tests.interop.published_configs import MODELS, tiny

CONFIG = tiny(MODELS["allenai/Olmo-Hybrid-7B"])
LINEAR = "model.layers.0.linear_attn"
NEWER = {"attention_layer_norm": "input_layernorm", "feedforward_layer_norm": "post_attention_layernorm"}


def released():
    """Tensors of the released layout: convolutions of 16, 16 and 32 channels."""
    config = OLMO_HYBRID.read(Fields(CONFIG, "config.json"), {})
    places = slots(config, make_blueprint(config))
    shapes = [their_shapes(move, places) for move in OLMO_HYBRID.moves(config)]
    return {name: published.numbers(name, shape) for found in shapes for name, shape in found.items()}


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_layouts():
    """Kills: equal parts of the convolutions taken for those of q, k and v; a norm after attention taken for the norm
    before a linear layer; the tensors as transformers computes with them, refused."""
    expected = released()
    assert [expected[f"{LINEAR}.{name}.weight"].shape[0] for name in CONVOLUTIONS] == [16, 16, 32]
    assert_equal(read_names(expected), expected)

    def joint(tensors, prefix):
        return np.concatenate([tensors.pop(f"{prefix}.{name}.weight") for name in CONVOLUTIONS])

    prefixes = [f"model.layers.{i}.linear_attn" for i in range(2)]
    saved, computed = dict(expected), dict(expected)
    for prefix in prefixes:
        parts = np.array_split(joint(saved, prefix), 3)
        saved |= {f"{prefix}.{name}.weight": part for name, part in zip(CONVOLUTIONS, parts, strict=True)}
        computed[f"{prefix}.conv1d.weight"] = joint(computed, prefix)
        for old, new in NEWER.items():
            layer = prefix.removesuffix(".linear_attn")
            computed[f"{layer}.{new}.weight"] = computed.pop(f"{layer}.{old}.weight")
    saved["model.layers.2.feedforward_layer_norm.weight"] = saved.pop("model.layers.2.post_attention_layernorm.weight")
    assert_equal(read_names(saved), expected)
    assert_equal(read_names(computed), expected)


def test_positions():
    """Kills: a base of null, in either place, that is read as the default, or a base that is given and ignored."""
    for fields, expected in (
        ({"rope_theta": None}, None),
        ({"rope_parameters": {"rope_theta": None, "rope_type": "default"}}, None),
        ({"rope_theta": None, "rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}}, 500.0),
        ({"rope_parameters": None, "rope_theta": 500.0}, 500.0),
    ):
        others = {name: value for name, value in CONFIG.items() if name != "rope_theta"}
        attention = OLMO_HYBRID.read(Fields(others | fields, "config.json"), {}).layers[-1]
        assert (attention.rotary_base if attention.positions == "rotary" else None) == expected
