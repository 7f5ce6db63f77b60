"""RWKV-7's time and channel mixing against their equations in float64, head by head; their initialisation."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxzoo.mixers.base import Context
from jaxzoo.mixers.linear.rwkv7 import RWKV7TimeMix, RWKV7TimeMixConfig
from jaxzoo.mixers.linear.rwkv7_channel_mix import RWKV7ChannelMix, RWKV7ChannelMixConfig
from jaxzoo.models import LanguageModelConfig
from tests.mixers.moved import moved, quick_rngs
from tests.mixers.recurrent_truth import check, inputs, sigmoid
from tests.models.hybrids import make_model, random_tokens

D = 6


def to_last(x):
    return np.concatenate([np.zeros_like(x[:, :1]), x[:, :-1]], axis=1) - x


def truth(config, p, x, first_values=None):
    r, w, k, v, a, g = (x + to_last(x) * p["shifts"][j] for j in range(6))
    low = lambda x, name, f: f(x @ p[f"{name}.down.kernel"]) @ p[f"{name}.up.kernel"] + p.get(f"{name}.up.bias", 0)  # noqa: E731
    decay = np.exp(-sigmoid(low(w, "decay", np.tanh)) / np.sqrt(np.e))
    a, g = sigmoid(low(a, "rate", lambda x: x)), low(g, "gate", sigmoid)
    share = sigmoid(low(v, "value_share", lambda x: x)) if config.mixes_values else 0
    r, k, v = r @ p["receptance.kernel"], k @ p["key.kernel"], v @ p["value.kernel"]
    v = v if first_values is None else (1 - share) * v + share * first_values
    removal, k = k * p["removal_scale"], k * (1 + (a - 1) * p["rate_share"])
    width, heads = config.head_width, []
    for h in range(config.n_heads):
        own = slice(h * width, (h + 1) * width)
        kappa = removal[..., own] / np.linalg.norm(removal[..., own], axis=-1, keepdims=True)
        s, rows = np.zeros((2, width, width)), []  # the paper's orientation: value, key
        for i in range(x.shape[1]):
            transition = np.einsum("bk,kl->bkl", decay[:, i, own], np.eye(width))
            transition = transition - kappa[:, i, :, None] * (a[:, i, own] * kappa[:, i])[:, None]
            s = s @ transition + v[:, i, own, None] * k[:, i, None, own]
            rows.append(np.einsum("bvk,bk->bv", s, r[:, i, own]))
        o = np.stack(rows, axis=1)
        o = o - o.mean(-1, keepdims=True)
        o = o / np.sqrt((o**2).mean(-1, keepdims=True) + config.norm_eps) * p["norm_scale"][own] + p["norm_bias"][own]
        bonus = (r[..., own] * k[..., own] * p["bonus"][h]).sum(-1, keepdims=True)
        heads.append(o + bonus * v[..., own])
    return (np.concatenate(heads, axis=-1) * g) @ p["output.kernel"]


def test_equation():
    """Kills: a removal after the decay, by the unscaled or the written key, a transposed state, a rate of another head,
    a bonus inside the norm; in parallel, and streamed."""
    config = RWKV7TimeMixConfig(d_model=D, n_heads=2, decay_rank=2, rate_rank=3, gate_rank=4)
    mixer, p = moved(lambda: RWKV7TimeMix(config, rngs=quick_rngs()))
    x = inputs(D)
    check(mixer, truth(config, p, x), x)


def test_equation_of_a_later_layer():
    """Kills a share of the layer's own values for the share of the first layer's."""
    config = RWKV7TimeMixConfig(d_model=D, n_heads=2, layer_index=1, n_layers=2, value_rank=2)
    mixer, p = moved(lambda: RWKV7TimeMix(config, rngs=quick_rngs()))
    x = inputs(D)
    first_values = np.cos(7 * x)
    call = nnx.jit(lambda mixer, x, values: mixer(x, Context(first_values=values)))
    found = call(mixer, np.float32(x), np.float32(first_values))
    expected = truth(config, p, x, first_values)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def stack_of(n):
    """A model of time mixes alone: the first stands alone, the others are scanned."""
    return LanguageModelConfig(
        pattern=tuple(RWKV7TimeMixConfig(n_heads=2, layer_index=i, n_layers=n, value_rank=2) for i in range(n)),
        d_model=D,
        n_layers=n,
        vocab_size=11,
        mlp="none",
    )


def parameters(model):
    """Parameters of each block, and the shared ones, in float64."""
    of = lambda module: {".".join(map(str, k)): np.float64(v[...]) for k, v in nnx.to_flat_state(nnx.state(module))}  # noqa: E731
    flat = model.unstacked()
    return [of(stack.blocks[0]) for stack in flat.stacks], {k: v for k, v in of(flat).items() if "stacks" not in k}


def model_truth(config, blocks, others, tokens):
    """Logits."""

    def norm(x, p, name):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return x * p[f"{name}.scale"] + p[f"{name}.bias"]

    residual, first_values = others["embedding"][tokens], None
    for mixer, block in zip(config.layers, blocks, strict=True):
        x, p = norm(residual, block, "mixer_norm"), {k.removeprefix("mixer."): v for k, v in block.items()}
        own = x + to_last(x) * p["shifts"][3]
        first_values = own @ p["value.kernel"] if first_values is None else first_values
        residual = residual + truth(mixer, p, x, first_values)
    return norm(residual, others, "final_norm") @ others["embedding"].T


@pytest.mark.full
def test_value_residual_of_a_model():
    """Kills: a share of the layer's own values for the share of the first layer's, values of another layer than the
    first, of another token when streamed, or of the whole sequence where a prompt continues; a scan that loses them."""
    config = stack_of(4)
    assert [fold.repeats for fold in config.folds] == [1, 3]
    model, tokens = make_model(config), random_tokens(config)
    expected = model_truth(config, *parameters(model), tokens)

    @nnx.jit
    def all_ways(model, tokens):
        head, state = model.prefill(tokens[:, :3], model.init_state(2))
        one, state = model.step(tokens[:, 3], state)
        return model(tokens), jnp.concatenate([head, one[:, None], model.prefill(tokens[:, 4:], state)[0]], axis=1)

    for found in all_ways(model, tokens):
        np.testing.assert_allclose(found[..., :11], expected[..., :11], atol=1e-4 * np.abs(expected).max())


@pytest.mark.slow
def test_gradient_of_the_value_residual():
    """Kills: values of the first layer that later layers read, and through which no gradient flows back."""
    config, rng = stack_of(3), np.random.default_rng(0)
    model, tokens = make_model(config), random_tokens(config)
    blocks, others = parameters(model)
    cotangent, direction = rng.normal(size=(*tokens.shape, 11)), rng.normal(size=(D, D))
    kernel = blocks[0]["mixer.value.kernel"]

    def value(step):
        moved = [{**blocks[0], "mixer.value.kernel": kernel + step * direction}, *blocks[1:]]
        return (model_truth(config, moved, others, tokens)[..., :11] * cotangent).sum()

    @nnx.jit
    @nnx.grad
    def gradient(model):
        return (model(tokens)[..., :11] * cotangent.astype(np.float32)).sum()

    found = (gradient(model).stacks[0].blocks[0].mixer.value.kernel[...] * direction.astype(np.float32)).sum()
    np.testing.assert_allclose(found, (value(1e-5) - value(-1e-5)) / 2e-5, rtol=1e-3)


def test_equation_of_the_channel_mix():
    """Kills a share of the token for one of the token before, and a missing square."""
    mixer, p = moved(lambda: RWKV7ChannelMix(RWKV7ChannelMixConfig(d_model=D, hidden_width=7), rngs=quick_rngs()))
    x = inputs(D)
    hidden = np.maximum((x + to_last(x) * p["shift"]) @ p["key.kernel"], 0) ** 2
    check(mixer, hidden @ p["value.kernel"], x)


@pytest.mark.full
def test_initialisation():
    """Kills maps that do not start at their bias, and a depth that nothing reads: layer 1 of 3, 2 heads of 4."""
    config = RWKV7TimeMixConfig(d_model=8, n_heads=2, layer_index=1, n_layers=3, decay_rank=2)
    mixer, i = RWKV7TimeMix(config, rngs=quick_rngs()), np.arange(8)
    np.testing.assert_array_equal(mixer.decay.down.kernel[...], 0)
    zigzag = np.tile([-1, -1 / 9, 1 / 9, 1], 2)
    base = -6 + 6 * (i / 7) ** (1 + 0.5**0.3)
    np.testing.assert_allclose(mixer.decay.up.bias[...], base + 0.5 + 2.5 * zigzag, atol=1e-5)
    np.testing.assert_allclose(mixer.rate.up.bias[...], -0.19 + 0.3 * zigzag + 0.4 * (i / 7 - 0.5), atol=1e-5)
    np.testing.assert_allclose(mixer.shifts[...][2], 1 - (i / 8) ** (0.7 * 2 / 3), atol=1e-6)
    np.testing.assert_allclose(mixer.norm_scale[...], (2 / 3) ** 0.7, rtol=1e-6)
    up = np.asarray(mixer.decay.up.kernel[...])
    np.testing.assert_allclose(up @ up.T, 0.01 * np.eye(2), atol=1e-7)
