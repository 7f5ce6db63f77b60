"""LinearAttention against its equation in float64, head by head, for every feature map."""

from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxzoo.layers.feature_maps import orthogonal_gaussian, performer_features
from jaxzoo.layers.variables import Buffer
from jaxzoo.mixers.base import Inherited, state_bytes
from jaxzoo.mixers.linear.linear_attention import FeatureMap, LinearAttention, LinearAttentionConfig

D = 6


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def weights(config, mixer, q, k):
    """(b, i, j): the kernels in their own words, without features where they have a closed form."""
    dot = lambda q, k: np.einsum("bif,bjf->bij", q, k)  # noqa: E731
    if config.feature_map == "cosformer":
        i, j = np.indices((q.shape[1], k.shape[1]))
        return dot(np.maximum(q, 0), np.maximum(k, 0)) * np.cos(np.pi / 2 * (i - j) / config.n_positions)
    if config.feature_map == "performer":
        w = np.asarray(mixer.random_features[...], np.float64)
        q, k = (x / config.feature_dim**0.25 for x in (q, k))
        phi = [np.exp(x @ w.T) * np.exp(-(x**2).sum(-1, keepdims=True) / 2) for x in (q, k)]
        return dot(*phi) / len(w)
    phi = {
        "identity": lambda x: x,
        "relu": lambda x: np.where(x > 0, x, 0),
        "pos_elu": lambda x: np.where(x > 0, x, np.expm1(x)) + 1,
        "square": lambda x: x * x,
        "exp": np.exp,
        "softmax": softmax,
    }[config.feature_map]
    return dot(phi(q), phi(k))


def truth(config, mixer, x):
    """Outputs from the parameters: for each head the weights of all tokens, then the output projection."""
    q, k, v, out = (
        np.asarray(linear.kernel[...], np.float64)
        for linear in (mixer.q_proj, mixer.k_proj, mixer.v_proj, mixer.out_proj)
    )
    heads = []
    for head in range(config.n_heads):
        keys, values = (slice(head * width, (head + 1) * width) for width in (config.feature_dim, config.value_width))
        seen = weights(config, mixer, x @ q[:, keys], x @ k[:, keys])
        if config.causal:
            seen = np.tril(seen)
        y = seen @ (x @ v[:, values])
        if config.normalize:
            y = y / (seen.sum(-1, keepdims=True) + config.eps)
        heads.append(y)
    return np.concatenate(heads, -1) @ out


OPTIONS = {
    "cosformer": {"n_positions": 9},
    "performer": {"n_features": 8},
    "identity": {"normalize": False},
}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, OPTIONS.get(name, {})) for name in get_args(FeatureMap)),
        ("pos_elu", {"eps": 0.5}),
        ("performer", {"n_features": 8, "normalize": False}),
        ("exp", {"normalize": False}),
        ("cosformer", {"n_positions": 3, "normalize": False}),
    ],
)
def test_equation(name, options):
    """Kills a wrong feature map, heads laid out feature-major, a position that a stream loses, a shift of the queries
    that stays in an output without denominator, and config fields that reach no code (each set off its default in some
    case). The case of three positions goes round a whole turn of cosformer, where weights are negative."""
    config = LinearAttentionConfig(
        d_model=D, init_std=0.6, n_heads=2, feature_dim=5, head_dim=4, feature_map=name, **options
    )
    mixer = LinearAttention(config, rngs=nnx.Rngs(0))
    x = np.random.default_rng(0).normal(size=(2, 15, D)).astype(np.float32)
    expected = truth(config, mixer, x.astype(np.float64))

    @jax.jit
    def run(x):
        head, state = mixer.prefill(x[:, :3], mixer.init_state(2))
        y, state = mixer.step(x[:, 3], state)
        tail, _ = mixer.prefill(x[:, 4:], state)
        return mixer(x), jnp.concatenate([head, y[:, None], tail], axis=1)

    for y in run(jnp.asarray(x)):
        np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["performer", "cosformer"])
@pytest.mark.parametrize("normalize", [True, False])
def test_bidirectional_equation(name, normalize):
    """Kills a mask that stays, and a denominator of the past alone."""
    options = {"n_positions": 20} if name == "cosformer" else {}
    config = LinearAttentionConfig(
        d_model=D, init_std=0.6, n_heads=2, feature_map=name, causal=False, normalize=normalize, **options
    )
    mixer = LinearAttention(config, rngs=nnx.Rngs(0))
    x = np.random.default_rng(0).normal(size=(2, 7, D)).astype(np.float32)
    expected = truth(config, mixer, x.astype(np.float64))
    np.testing.assert_allclose(mixer(jnp.asarray(x)), expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_signed_weights_are_normalised_all_the_same():
    """Kills a signed map that is left without its denominator: with one token the output is the value, whatever the
    sign of the weight."""
    config = LinearAttentionConfig(d_model=D, init_std=0.6, n_heads=2, feature_map="identity")
    mixer = LinearAttention(config, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (16, 1, D))
    signs = jnp.sign((mixer.q_proj(x) * mixer.k_proj(x)).reshape(16, 2, 16).sum(-1))
    assert set(np.unique(signs)) == {-1, 1}
    np.testing.assert_allclose(mixer(x), mixer.out_proj(mixer.v_proj(x)), atol=1e-5)


@pytest.mark.parametrize("name", ["relu", "square", "cosformer"])
def test_no_weight_at_all_gives_zero(name):
    """Kills 0 / 0, in the output and in gradients: inputs of zero have no feature above 0."""
    model = Inherited(d_model=D, max_length=8, init_std=0.6, out_init_std=0.6)
    mixer = LinearAttentionConfig(feature_map=name).inherit(model).build(rngs=nnx.Rngs(0))
    y, gradient = jax.value_and_grad(lambda x: mixer(x).sum())(jnp.zeros((1, 3, D)))
    assert y == 0
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("name", ["exp", "performer"])
def test_long_queries_do_not_overflow(name):
    """Kills an exponential of a query as it stands: 100 times larger queries, and short keys."""
    mixer = LinearAttention(LinearAttentionConfig(d_model=D, feature_map=name), rngs=nnx.Rngs(0))
    mixer.q_proj.kernel[...] = mixer.q_proj.kernel[...] * 1e5
    x = jax.random.normal(jax.random.key(0), (2, 9, D))
    assert np.abs(mixer.q_proj(x)).max() > 500
    gradients = jax.grad(lambda x: jnp.square(mixer(x)).sum())(x)
    assert np.isfinite(gradients).all()
    assert np.abs(gradients).max() > 0


def test_performer_converges_to_softmax_attention():
    """Kills a wrong scale, a lost |x|^2 / 2 and rows of unit length: the mean of `phi(q) . phi(k)` is `exp(q . k /
    sqrt(k))`, and its relative variance over f independent features `(exp(|q' + k'|^2) - 1) / f`. The largest of the
    16 errors stays within four standard deviations, and those are small."""
    width, n_features = 4, 2**16
    q, k = 0.7 * np.random.default_rng(0).normal(size=(2, 16, width))
    w = orthogonal_gaussian(jax.random.key(0), n_features, width)
    phi_q, phi_k = (np.asarray(performer_features(jnp.asarray(x, jnp.float32), w, shifted=False)) for x in (q, k))
    expected = np.exp((q * k).sum(-1) / np.sqrt(width))
    deviation = np.sqrt(np.expm1(np.square(q + k).sum(-1) / np.sqrt(width)) / n_features)
    assert expected.max() > 2 * expected.min()
    assert deviation.max() < 0.05
    assert np.all(np.abs((phi_q * phi_k).sum(-1) / expected - 1) < 4 * deviation)


def test_blocks_are_orthogonal_and_rows_gaussian():
    """Kills independent rows, blocks that repeat, and lengths that are all sqrt(k): blocks of 5 rows, the last cut."""
    w = np.asarray(orthogonal_gaussian(jax.random.key(0), 13, 5), np.float64)
    assert w.shape == (13, 5)
    for block in (w[:5], w[5:10], w[10:]):
        gram = block @ block.T
        np.testing.assert_allclose(gram - np.diag(np.diag(gram)), 0, atol=1e-5)
    assert np.abs(w[:5] @ w[5:10].T).max() > 0.1
    many = np.asarray(orthogonal_gaussian(jax.random.key(1), 20000, 5))
    np.testing.assert_allclose(many.T @ many / len(many), np.eye(5), atol=0.05)
    squares = (many**2).sum(-1)
    np.testing.assert_allclose([squares.mean(), squares.var()], [5, 10], rtol=0.05)  # chi-squared, 5 degrees


def test_random_features_do_not_learn():
    """Kills random features among the parameters, and mixers that share theirs."""
    config = LinearAttentionConfig(d_model=D, feature_map="performer", n_features=7)
    mixer, other = (LinearAttention(config, rngs=nnx.Rngs(seed)) for seed in (0, 1))
    assert isinstance(mixer.random_features, Buffer)
    assert jax.tree.map(jnp.shape, nnx.to_pure_dict(nnx.state(mixer, Buffer))) == {"random_features": (7, 16)}
    assert set(nnx.state(mixer, nnx.Param)) == {"q_proj", "k_proj", "v_proj", "out_proj"}
    assert np.abs(mixer.random_features[...] - other.random_features[...]).max() > 0.1


@pytest.mark.parametrize(
    ("options", "features", "position"),
    [
        ({}, 16, 0),
        ({"feature_map": "performer"}, 16, 0),
        ({"feature_map": "performer", "n_features": 24}, 24, 0),
        ({"feature_map": "cosformer", "n_positions": 8}, 32, 4),
    ],
)
def test_state_size_against_the_paper(options, features, position):
    """Kills features counted twice and a state for what is not there: Based, App. E.2, eq. 8, gives (d + 1) f entries,
    as for one head; more heads add a denominator each. Table 6: f = 16 (performer), 32 (cosformer) for 16 channels."""
    one = LinearAttentionConfig(d_model=64, **options)
    assert one.width_of_features == features
    assert one.papers_state_size(100) == 65 * features
    assert state_bytes(one.build(rngs=nnx.Rngs(0))) == 4 * 65 * features + position
    four = LinearAttentionConfig(d_model=64, n_heads=4, **options).build(rngs=nnx.Rngs(0))
    assert state_bytes(four, dtype=jnp.bfloat16) == 4 * (64 + 4) * features + position
    sums = LinearAttentionConfig(d_model=64, n_heads=4, normalize=False, **options).build(rngs=nnx.Rngs(0))
    assert state_bytes(sums) == 4 * 64 * features + position


def test_the_length_of_cosformer_is_the_models():
    """Kills a length that other feature maps take and do not read, and one that overrides the config's own."""
    model = Inherited(d_model=D, max_length=33, init_std=0.1, out_init_std=0.1)
    assert LinearAttentionConfig(feature_map="cosformer").inherit(model).n_positions == 33
    assert LinearAttentionConfig(feature_map="cosformer", n_positions=5).inherit(model).n_positions == 5
    assert LinearAttentionConfig().inherit(model).n_positions is None


def test_flops():
    """Kills a head or a matmul that is not counted; worked by hand for d = 8, 2 heads, k = 2, v = 4, f = 6: maps,
    projections and random features; a chunk of 64, scores and values; sums written and read, the denominator."""
    config = LinearAttentionConfig(d_model=8, n_heads=2, feature_dim=2, feature_map="performer", n_features=6)
    maps = 2 * 8 * (4 + 4 + 8 + 8) + 2 * 2 * (2 * 2 * 6)
    chunk, sums = 2 * 2 * (64 * 6 + 64 * 4), 2 * 2 * (6 * 4 + 6 * 4 + 6)
    assert config.flops_per_token(64) == maps + chunk
    assert config.flops_per_token(128) == maps + chunk + sums
    assert config.flops_per_token(96) == pytest.approx(maps + (chunk + sums) * 128 / 96)
    both_ways = LinearAttentionConfig(d_model=8, n_heads=2, feature_dim=2, causal=False, normalize=False)
    assert both_ways.flops_per_token(50) == 2 * 8 * (4 + 4 + 8 + 8) + 2 * 2 * (2 * 2 * 4)
    assert both_ways.papers_state_size(50) is None


@pytest.mark.parametrize("causal", [True, False])
def test_flops_match_what_the_compiler_counts(causal):
    """Kills a matmul that is counted and not done: XLA counts elementwise work as well, here up to 5 %."""
    config = LinearAttentionConfig(d_model=128, n_heads=4, feature_map="performer", causal=causal)
    mixer = config.build(rngs=nnx.Rngs(0))
    analysis = jax.jit(mixer.__call__).lower(jnp.ones((2, 64, 128))).compile().cost_analysis()
    assert analysis is not None
    assert 0.99 < analysis["flops"] / 128 / config.flops_per_token(64) < 1.05


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_heads": 0}, "n_heads=0 must be positive"),
        ({"n_heads": 4}, "d_model=6 must be divisible by n_heads=4"),
        ({"feature_dim": 0}, "feature_dim=0 must be positive"),
        ({"head_dim": -2}, "head_dim=-2 must not be negative"),
        ({"feature_map": "gelu"}, "feature_map='gelu' must be one of 'relu', 'pos_elu'"),
        ({"feature_map": "performer", "n_features": -1}, "n_features=-1 must not be negative"),
        ({"feature_map": "cosformer", "n_positions": 0}, "n_positions=0 must be positive"),
        ({"feature_map": "relu", "n_features": 3}, "n_features=3 is read by feature_map='performer' only"),
        ({"feature_map": "relu", "n_positions": 3}, "n_positions=3 is read by feature_map='cosformer' only"),
        ({"eps": -1.0}, "eps=-1.0 must not be negative"),
    ],
)
def test_config_errors(options, message):
    """Kills a config that fails late, or not at all."""
    with pytest.raises(ValueError, match=message):
        LinearAttentionConfig(d_model=D, **options)


def test_what_cannot_be_built_or_streamed_is_refused():
    """Kills a cosformer of unknown length, and a stream of a mixer that sees the future."""
    with pytest.raises(ValueError, match="n_positions=None must be known for cosformer; set it"):
        LinearAttentionConfig(d_model=D, feature_map="cosformer").build(rngs=nnx.Rngs(0))
    mixer = LinearAttentionConfig(d_model=D, causal=False).build(rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="causal=False does not stream"):
        mixer.init_state(1)
