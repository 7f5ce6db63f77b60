"""The parallel residual of GPT-NeoX against a model written out in float64."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxzoo.mixers import AttentionConfig
from jaxzoo.models import LanguageModel
from tests.models.hybrids import LENGTH, hybrid_config, make_model, random_tokens
from tests.pallas_kernels.shared import full, slow

HEADS, D = 2, 8
ERF = np.vectorize(math.erf)


def config_of(**fields):
    """GPT-NeoX without positions: biases everywhere, GELU, LayerNorm, a head of its own; three layers, scanned."""
    return hybrid_config(
        pattern=(AttentionConfig(n_heads=HEADS, qkv_bias=True, out_bias=True),),
        **{
            "mlp": "gelu",
            "mlp_bias": True,
            "tie_embeddings": False,
            "parallel_residual": True,
            "n_layers": 3,
            **fields,
        },
    )


def layers_of(model):
    """Parameters of each layer by dotted path, float64, out of the stack."""
    (stack,) = model.stacks
    flat = nnx.to_flat_state(nnx.state(stack.blocks, nnx.Param))
    arrays = {".".join(map(str, path[1:])): np.asarray(leaf[...], np.float64) for path, leaf in flat}
    return [{path: array[i] for path, array in arrays.items()} for i in range(stack.repeats)]


def normed(x, p, name):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * p[f"{name}.scale"] + p[f"{name}.bias"]


def linear(x, p, name):
    return x @ p[f"{name}.kernel"] + p[f"{name}.bias"]


def attention(x, p):
    q, k, v = (linear(x, p, f"mixer.{name}").reshape(-1, HEADS, D // HEADS) for name in ("q_proj", "k_proj", "v_proj"))
    rows = []
    for i in range(len(x)):
        scores = np.einsum("hk,shk->hs", q[i], k[: i + 1]) / math.sqrt(D // HEADS)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        rows.append(np.einsum("hs,shk->hk", weights / weights.sum(-1, keepdims=True), v[: i + 1]).reshape(D))
    return linear(np.stack(rows), p, "mixer.out_proj")


def gelu_mlp(x, p):
    up = linear(x, p, "mlp.up_proj")
    return linear(up * (1 + ERF(up / math.sqrt(2))) / 2, p, "mlp.down_proj")


def truth(model, tokens):
    """Logits of one row, token ids to head, in float64."""
    table, head = (np.asarray(each[...], np.float64) for each in (model.embedding, model.head))
    r = table[np.asarray(tokens)]
    for p in layers_of(model):
        r = r + attention(normed(r, p, "mixer_norm"), p) + gelu_mlp(normed(r, p, "mlp_norm"), p)
    final = {
        f"final.{name}": np.asarray(getattr(model.final_norm, name)[...], np.float64) for name in ("scale", "bias")
    }
    return normed(r, final, "final") @ head[:13].T


def expected_rows(model, tokens):
    return np.stack([truth(model, row) for row in tokens])


@functools.partial(jax.jit, static_argnums=2)
def streamed(model, tokens, cut):
    head, state = model.prefill(tokens[:, :cut], model.init_state(tokens.shape[0]))

    def step(state, token):
        logits, state = model.step(token, state)
        return state, logits

    _, tail = jax.lax.scan(step, state, tokens[:, cut:].T)
    return jnp.concatenate([head, tail.swapaxes(0, 1)], axis=1)


def test_logits_in_all_ways_to_run():
    """Kills an MLP that reads what the mixer has added, a norm that both share, a branch that is added twice; all at
    once and streamed."""
    model = make_model(config_of())
    tokens = random_tokens(model.config)
    expected = expected_rows(model, tokens)
    for found in (jax.jit(LanguageModel.__call__)(model, tokens), streamed(model, tokens, 4)):
        np.testing.assert_allclose(found[..., :13], expected, rtol=0, atol=2e-5 * np.abs(expected).max())


def test_packed_documents():
    """Kills a second branch that would see another document."""
    model = make_model(config_of())
    tokens = random_tokens(model.config, batch_size=1)
    ids = jnp.asarray([[3] * 4 + [1] * 7], jnp.int32)
    found = jax.jit(lambda model: model(tokens, segment_ids=ids))(model)[0, :, :13]
    expected = np.concatenate([truth(model, tokens[0, :4]), truth(model, tokens[0, 4:])])
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("remat", [full("nothing"), slow("projections")])
def test_gradients(remat):
    """Kills a gradient that flows through one of the two branches alone, and what remat would lose: the derivative
    along a random direction of all parameters, by differences of the float64 model."""
    model = make_model(config_of(remat=remat))
    tokens = random_tokens(model.config, batch_size=1)
    rng = np.random.default_rng(5)
    weights = rng.normal(size=(1, LENGTH, 13))
    definition, parameters = nnx.split(model)
    direction = jax.tree.map(lambda x: np.float32(rng.normal(size=x.shape)), parameters)

    def loss(parameters):
        return jnp.sum(jnp.float32(weights) * nnx.merge(definition, parameters)(tokens)[..., :13])

    gradient = jax.jit(jax.grad(loss))(parameters)
    products = jax.tree.map(lambda g, d: np.vdot(np.float64(g), np.float64(d)), gradient, direction)
    h = 2.0**-10  # rounding of the parameters over h is 1e-4, and the third derivative adds some of h^2
    up, down = (
        np.vdot(weights, expected_rows(nnx.merge(definition, _moved(parameters, direction, s)), tokens))
        for s in (h, -h)
    )
    assert sum(jax.tree.leaves(products)) == pytest.approx((up - down) / (2 * h), rel=2e-3)


def _moved(parameters, direction, step):
    return jax.tree.map(lambda x, d: np.asarray(x) + np.float32(step) * d, parameters, direction)


@pytest.mark.slow
@pytest.mark.parametrize("silent", ["mixer.out_proj", "mlp.down_proj"])
def test_dropout_reaches_both_branches(silent):
    """Kills a branch without a mask: with the other branch silent, two keys still give two outputs."""
    model = make_model(config_of(residual_dropout=0.4))
    (stack,) = model.stacks
    branch, projection = silent.split(".")
    last = getattr(getattr(stack.blocks[0], branch), projection)
    last.kernel[...], last.bias[...] = jnp.zeros_like(last.kernel[...]), jnp.zeros_like(last.bias[...])
    tokens = random_tokens(model.config)
    run = jax.jit(lambda model, key: model(tokens, key=key)[..., :13])
    first, again, other = (run(model, jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.all(np.any(np.asarray(first != other), axis=-1))
