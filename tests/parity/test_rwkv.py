"""RWKV-4 against Hugging Face's RwkvModel. Their one-token decode is wrong for more than one row, and their eval mode
divides weights by powers of two (`rescale_every`), so neither is used."""

import jax.numpy as jnp
import pytest
from flax import nnx

from jaxzoo.mixers import RWKV4ChannelMix, RWKV4ChannelMixConfig, RWKV4TimeMix, RWKV4TimeMixConfig
from tests.parity.carry import (
    OUTPUT_TOLERANCE,
    assert_close,
    compare,
    filled,
    inputs,
    randomize,
)

pytestmark = pytest.mark.parity

PARTS = {
    "time": (("time_mix_key", "time_mix_value", "time_mix_receptance"), ("key", "value", "receptance", "output")),
    "channel": (("time_mix_key", "time_mix_receptance"), ("key", "receptance", "value")),
}


def carry_mixer(get, part):
    shares, projections = PARTS[part]
    values = {name: get(name).reshape(-1) for name in shares}
    values |= {f"{name}.kernel": get(f"{name}.weight").T for name in projections}
    return values | ({name: get(name) for name in ("time_decay", "time_first")} if part == "time" else {})


def small(transformers, **options):
    return transformers.RwkvConfig(
        hidden_size=24, attention_hidden_size=40, intermediate_size=56, num_hidden_layers=3, rescale_every=0, **options
    )


def time_mix():
    return RWKV4TimeMix(RWKV4TimeMixConfig(d_model=24, value_width=40), rngs=nnx.Rngs(0))


@pytest.fixture
def layers(torch, transformers):
    """Theirs, with random parameters: they are made without values."""
    from transformers.models.rwkv.modeling_rwkv import RwkvFeedForward, RwkvSelfAttention

    made = {"time": RwkvSelfAttention(small(transformers)), "channel": RwkvFeedForward(small(transformers))}
    for layer in made.values():
        for parameter in layer.parameters():
            torch.nn.init.zeros_(parameter)
        randomize(layer, torch)
    return made


def test_time_mix(torch, layers):
    """Kills: a bonus, decay, share or gate in another place than theirs; in values and all gradients."""
    compare(
        time_mix(),
        layers["time"],
        lambda get: carry_mixer(get, "time"),
        inputs(),
        run=lambda layer, x: layer(x)[0],
        torch=torch,
    )


def test_channel_mix(torch, layers):
    """Kills: a share or gate in another place than theirs; in values and all gradients."""
    compare(
        RWKV4ChannelMix(RWKV4ChannelMixConfig(d_model=24, hidden_width=56), rngs=nnx.Rngs(0)),
        layers["channel"],
        lambda get: carry_mixer(get, "channel"),
        inputs(),
        run=lambda layer, x: layer(x)[0],
        torch=torch,
    )


def test_states_of_the_time_mix(torch, layers):
    """Kills: another scale, sum or last input than theirs: numerator, denominator and largest exponent one by one."""
    ours, x = filled(time_mix(), layers["time"], lambda get: carry_mixer(get, "time")), inputs()
    states = [torch.zeros(3, width, 1) for width in (24, 24, 40, 40, 40)]
    states[4] -= 1e38
    with torch.no_grad():
        expected, states = layers["time"](torch.tensor(x), state=states, use_cache=True)
    y, state = ours.prefill(jnp.asarray(x), ours.init_state(3))
    assert_close(y, expected.numpy(), OUTPUT_TOLERANCE)
    for found, theirs in zip(state, states[1:], strict=True):
        assert_close(found, theirs[..., 0].numpy(), OUTPUT_TOLERANCE)
