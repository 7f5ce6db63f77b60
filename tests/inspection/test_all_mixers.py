"""`jaxzoo.capture` of every mixer. Kills: scores that are shifted by a token."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxzoo
from jaxzoo.inspection import shown
from jaxzoo.mixers import MIXERS
from jaxzoo.mixers.base import Context
from jaxzoo.models.language_model import LanguageModel, LanguageModelConfig

T = 9
TOKENS = np.random.default_rng(0).integers(32, size=(2, T), dtype=np.int32)
SCORES = {
    "attention": set(),
    "convolution_augmented_attention": set(),
    "delta_net": {"beta"},
    "gated_delta_net": {"beta", "log_decay"},
    "gated_linear_attention": {"log_decay"},
    "hgrn2": {"log_decay"},
    "kimi_delta_attention": {"beta", "log_decay"},
    "lin_cat": set(),
    "linear_attention": set(),
    "mamba2": {"log_decay"},
    "ret_net": {"log_decay"},
    "rwkv5_time_mix": {"log_decay"},
    "rwkv6_time_mix": {"log_decay"},
    "rwkv7_time_mix": {"log_decay"},
    "selective_attention": set(),
    "sliding_window_attention": set(),
    "taylor_linear_attention": set(),
    "windowed_linear_attention": set(),
}
"""Mixers that are linear in their values, and what else they show."""
SHOWN = {"scores", "log_decay"}
"""Names that a mixer of neither table may show."""
OTHERS = {"mamba": {"delta"}, "rg_lru": {"recurrence_gate_logits", "input_gate_logits"}}


@pytest.mark.slow
@pytest.mark.parametrize("name", MIXERS)
def test_every_mixer_shows_what_it_has(name):
    """Kills: scores of a part passed off as the whole's, or shifted by a token; states before their token, or of
    another layer; a capture that changes the result, or that has no gradient."""
    tiny = MIXERS[name].tiny()
    if name == "rwkv7_time_mix":
        tiny = dataclasses.replace(tiny, value_residual=False)
    config = LanguageModelConfig(
        d_model=tiny.width, n_layers=2, pattern=(tiny,), mlp="none", max_length=16, vocab_size=32, init_std=0.3
    )
    own = {key.removeprefix("layers.1.mixer.") for key in shown(config) if key.startswith("layers.1.mixer.")}
    streams = {"state"} if tiny.capabilities.streams else set()
    scores = {"scores", *SCORES[name]} if name in SCORES else OTHERS.get(name, own & SHOWN)
    assert own - {"in", "out", "influence"} == streams | scores

    model = LanguageModel(config, rngs=nnx.Rngs(0))
    assert model.config.n_layers > len(model.stacks), "the layers must be scanned"
    logits, seen = jax.jit(jaxzoo.capture(model, "layers.1.mixer.*"))(TOKENS)
    mixer, x = model.unstacked().stacks[1].blocks[0].mixer, seen["layers.1.mixer.in"]

    @jax.jit
    def truth(x):
        read = lambda cut: Context(tokens=jnp.asarray(TOKENS[:, :cut]))  # noqa: E731
        cuts = (4, T) if streams else ()
        states = [mixer.prefill(x[:, :cut], mixer.init_state(2, capacity=T), read(cut))[1] for cut in cuts]
        return mixer(x, read(T)), states, model(jnp.asarray(TOKENS))

    out, states, expected = truth(x)
    np.testing.assert_allclose(logits, expected, atol=1e-4)
    np.testing.assert_allclose(seen["layers.1.mixer.out"], out, atol=1e-4 * np.abs(out).max())
    for kind in ("scores", "influence"):
        weights = np.abs(np.asarray(seen.get(f"layers.1.mixer.{kind}", np.tril(np.ones((T, T)))), np.float64))
        assert np.isfinite(weights).all()
        assert np.diagonal(weights, axis1=-2, axis2=-1).max() > 0
        if tiny.capabilities.causal:
            assert np.triu(weights, 1).max() <= 1e-6 * weights.max(), kind
    for cut, state in zip((4, T), states, strict=bool(states)):
        for after, leaf in zip(jax.tree.leaves(state), jax.tree.leaves(seen["layers.1.mixer.state"]), strict=True):
            np.testing.assert_allclose(leaf[:, cut - 1], after, rtol=1e-4, atol=1e-5)

    def loss(scale):
        return jaxzoo.capture(model, replace={"layers.0.mixer.out": lambda y: scale * y})(TOKENS)[0].std()

    assert jax.eval_shape(jax.grad(loss), 1.0).shape == ()
