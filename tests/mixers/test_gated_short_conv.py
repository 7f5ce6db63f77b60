"""GatedShortConv against eq. 7 of the Based paper, and LFM2's form, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.mixers.conv.gated_short_conv import GatedShortConv, GatedShortConvConfig
from tests.mixers.moved import moved_mixer, quick_rngs

D = 5


def truth(p, x, lfm2):
    """Outputs, and the branch that is convolved, token by token."""
    branches = x @ p["in_proj.kernel"] + p.get("in_proj.bias", 0.0)
    if lfm2:
        before, u2, u1 = np.split(branches, 3, axis=-1)
        u1 = before * u1
    else:
        u1, u2 = np.split(branches, 2, axis=-1)
    convolved = np.zeros_like(u1) + p.get("conv_bias", 0.0)
    for i in range(x.shape[1]):
        for a in range(min(i + 1, len(p["taps"]))):
            convolved[:, i] += p["taps"][a] * u1[:, i - a]
    silu = convolved if lfm2 else convolved / (1 + np.exp(-convolved))
    return (silu * u2) @ p["out_proj.kernel"] + p.get("out_proj.bias", 0.0), u1


@pytest.mark.parametrize(
    "config",
    [
        GatedShortConvConfig(d_model=D, init_std=0.3),
        GatedShortConvConfig(d_model=D, init_std=0.3, expansion=6, n_taps=4, conv_bias=True),
        GatedShortConvConfig.lfm2(d_model=D, init_std=0.3),
        GatedShortConvConfig.lfm2(d_model=D, init_std=0.3, conv_bias=True, projection_bias=True),
    ],
    ids=str,
)
def test_equation_7(config):
    """Kills branches in the wrong order, a gate inside the silu, a missing bias, taps in reverse, and a state
    that holds the inputs or the gate instead of the convolved branch."""
    mixer, parameters = moved_mixer(config)
    x = np.random.default_rng(0).normal(size=(2, 9, D)).astype(np.float32)
    expected, u1 = truth(parameters, x.astype(np.float64), config.input_gate)
    scale = np.abs(expected).max()

    @jax.jit
    def run(x):
        head, state = mixer.prefill(x[:, :1], mixer.init_state(2))
        tail, state = mixer.prefill(x[:, 1:], state)
        return mixer(x), jnp.concatenate([head, tail], axis=1), state

    y, streamed, state = run(jnp.asarray(x))
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5 * scale)
    np.testing.assert_allclose(streamed, expected, rtol=0, atol=1e-5 * scale)
    np.testing.assert_allclose(state.history, u1[:, -(config.n_taps - 1) :], rtol=0, atol=1e-5)


def test_released_shapes():
    """Kills a default expansion of 4 for each branch: the released models have 4 d channels for both, and no
    bias after the convolution."""
    mixer = GatedShortConv(GatedShortConvConfig(d_model=8, out_init_std=0.5), rngs=quick_rngs())
    assert mixer.in_proj.kernel.shape == (8, 32)
    assert mixer.out_proj.kernel.shape == (16, 8)
    assert mixer.taps.shape == (3, 16)
    assert not hasattr(mixer, "conv_bias")
    assert np.abs(mixer.taps[...]).max() <= 3**-0.5
    assert np.asarray(mixer.out_proj.kernel[...]).std() > 10 * np.asarray(mixer.in_proj.kernel[...]).std()
