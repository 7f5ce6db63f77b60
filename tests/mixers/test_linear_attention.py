"""LinearAttention against its equation in float64, head by head, for every feature map."""

from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxzoo.layers.feature_maps import orthogonal_gaussian, performer_features
from jaxzoo.layers.variables import Buffer, traits_of
from jaxzoo.mixers.base import Inherited
from jaxzoo.mixers.linear.feature_map import FeatureMap
from jaxzoo.mixers.linear.feature_map_attention import LinearAttention, LinearAttentionConfig
from tests.mixers.moved import assert_computes, moved_mixer, quick_rngs

D = 6


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def weights(config, p, q, k):
    """(b, i, j): the kernels in their own words, without features where they have a closed form."""
    dot = lambda q, k: np.einsum("bif,bjf->bij", q, k)  # noqa: E731
    if config.feature_map == "cosformer":
        i, j = np.indices((q.shape[1], k.shape[1]))
        return dot(np.maximum(q, 0), np.maximum(k, 0)) * np.cos(np.pi / 2 * (i - j) / config.n_positions)
    if config.feature_map == "performer":
        w = p["features.random_features"]
        q, k = (x / config.feature_dim**0.25 for x in (q, k))
        phi = [np.exp(x @ w.T) * np.exp(-(x**2).sum(-1, keepdims=True) / 2) for x in (q, k)]
        return dot(*phi) / len(w)
    s = dot(q, k) / np.sqrt(config.feature_dim)
    if config.feature_map in ("taylor", "taylor_full"):
        return 1 + s + s * s / 2
    if config.feature_map == "rebased":
        return s * s

    def all_poly(x):
        """Each feature as the quadratic form that it is."""
        w1, w2 = p["features.square_of_sum"], p["features.sum_of_squares"]
        forms = np.einsum("kf,lf->fkl", w1, w1) + np.einsum("kf,kl->fkl", w2, np.eye(len(w2)))
        return np.einsum("bik,fkl,bil->bif", x, forms, x) / np.sqrt(2)

    def exp(x):
        if not config.mirrored:
            return np.exp(x)
        return np.concatenate([np.exp(np.where(x > 0, x, 0)), np.exp(np.where(x < 0, -x, 0))], axis=-1)

    phi = {
        "identity": lambda x: x,
        "relu": lambda x: np.where(x > 0, x, 0),
        "pos_elu": lambda x: np.where(x > 0, x, np.expm1(x)) + 1,
        "square": lambda x: x * x,
        "exp": exp,
        "softmax": lambda x: np.concatenate([softmax(x), softmax(-x)], -1) if config.mirrored else softmax(x),
        "all_poly": all_poly,
    }[config.feature_map]
    return dot(phi(q), phi(k))


def normed(config, p, x, which):
    """Queries or keys (b, t, h k) after their norm, factors and offsets."""
    heads = x.reshape(*x.shape[:2], -1, config.feature_dim if config.qk_norm == "head" else x.shape[2])
    if config.qk_norm != "none":
        mean, variance = heads.mean(-1, keepdims=True), heads.var(-1, keepdims=True)
        heads = (heads - mean) / np.sqrt(variance + 1e-5)
    which = "qk" if config.qk_affine == "shared" else which
    if config.qk_affine != "none":
        heads = heads * p[f"features.{which}_scale"]
    if config.qk_affine in ("scale_and_shift", "shared"):
        heads = heads + p[f"features.{which}_shift"]
    return heads.reshape(x.shape)


def truth(config, p, x):
    """Outputs from the parameters: for each head the weights of all tokens, then the output projection."""
    all_q, all_k = (normed(config, p, x @ p[f"{which}_proj.kernel"], which) for which in "qk")
    heads = []
    for head in range(config.n_heads):
        keys, values = (slice(head * width, (head + 1) * width) for width in (config.feature_dim, config.value_width))
        seen = weights(config, p, all_q[..., keys], all_k[..., keys])
        if config.causal:
            seen = np.tril(seen)
        if config.decay:
            i, j = np.indices(seen.shape[1:])
            seen = seen * (1 - 2.0 ** (config.decay_const - head)) ** np.maximum(i - j, 0)
        y = seen @ (x @ p["v_proj.kernel"][:, values])
        if config.normalize:
            y = y / (seen.sum(-1, keepdims=True) + config.eps)
        if config.output_scaling:
            y = y * (x @ p["scale_proj.kernel"][:, head : head + 1])
        heads.append(y)
    return np.concatenate(heads, -1) @ p["out_proj.kernel"]


OPTIONS = {
    "cosformer": {"n_positions": 9},
    "performer": {"n_features": 8},
    "identity": {"normalize": False},
    "all_poly": {"n_features": 7, "normalize": False},
}

WITH_OPTIONS = ("cosformer", "exp", "pos_elu", "rebased", "relu")
"""Maps whose cases with further options are core tests: these also kill what breaks the map itself."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        *(
            pytest.param(name, OPTIONS.get(name, {}), marks=[pytest.mark.full] * (name in WITH_OPTIONS))
            for name in get_args(FeatureMap)
        ),
        ("exp", {"mirrored": True}),
        ("softmax", {"mirrored": True}),
        ("rebased", {"qk_norm": "all_heads", "qk_affine": "scale_and_shift", "eps": 0.1}),
        ("relu", {"qk_norm": "head", "qk_affine": "scale_and_shift"}),
        ("pos_elu", {"decay": True, "output_scaling": True, "eps": 0.5}),
        ("cosformer", {"n_positions": 3, "decay": True, "decay_const": -1.5, "normalize": False}),
        *(
            pytest.param(name, options, marks=pytest.mark.full)
            for name, options in (
                ("performer", {"n_features": 8, "normalize": False}),
                ("exp", {"normalize": False}),
                ("all_poly", {"n_features": 7, "normalize": False, "poly_learned": False}),
                ("rebased", {"qk_norm": "head", "qk_affine": "scale", "eps": 0.1}),
                ("rebased", {"qk_norm": "head", "qk_affine": "shared", "eps": 0.1}),
                ("rebased", {"qk_affine": "scale_and_shift", "eps": 0.1}),
            )
        ),
    ],
)
def test_equation(name, options):
    """Kills a wrong feature map, heads laid out feature-major, a position that a stream loses, a shift of the queries
    that stays in an output without denominator, a norm over the wrong axis or with the other's factors, a decay of the
    wrong head or of the sum alone, and config fields that reach no code (each set off its default in some case). The
    case of three positions goes round a whole turn of cosformer, where weights are negative."""
    config = LinearAttentionConfig(
        d_model=D, init_std=0.6, n_heads=2, feature_dim=5, head_dim=4, feature_map=name, **options
    )
    mixer, parameters = moved_mixer(config)
    x = np.random.default_rng(0).normal(size=(2, 15, D)).astype(np.float32)
    expected = truth(config, parameters, x.astype(np.float64))

    assert_computes(mixer, x, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "normalize"),
    [("cosformer", True), ("performer", False), pytest.param("taylor", True, marks=pytest.mark.full)],
)
def test_bidirectional_equation(name, normalize):
    """Kills a mask that stays, and a denominator of the past alone."""
    options = {"n_positions": 20} if name == "cosformer" else {}
    config = LinearAttentionConfig(
        d_model=D, init_std=0.6, n_heads=2, feature_map=name, causal=False, normalize=normalize, **options
    )
    mixer, parameters = moved_mixer(config)
    x = np.random.default_rng(0).normal(size=(2, 7, D)).astype(np.float32)
    expected = truth(config, parameters, x.astype(np.float64))
    np.testing.assert_allclose(jax.jit(mixer)(x), expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.full
def test_signed_weights_are_normalised_all_the_same():
    """Kills a signed map that is left without its denominator: with one token the output is the value, whatever the
    sign of the weight."""
    config = LinearAttentionConfig(d_model=D, init_std=0.6, n_heads=2, feature_map="identity")
    mixer = LinearAttention(config, rngs=quick_rngs())
    x = jax.random.normal(jax.random.key(0), (16, 1, D))
    signs = jnp.sign((mixer.q_proj(x) * mixer.k_proj(x)).reshape(16, 2, 16).sum(-1))
    assert set(np.unique(signs)) == {-1, 1}
    np.testing.assert_allclose(mixer(x), mixer.out_proj(mixer.v_proj(x)), atol=1e-5)


def test_rebased_is_the_published_combination():
    """Kills a norm that is left out, one without its parameters, and parameters that decay."""
    config = LinearAttentionConfig.rebased(d_model=D, n_heads=2, feature_dim=4)
    assert (config.feature_map, config.qk_norm, config.qk_affine) == ("rebased", "all_heads", "scale_and_shift")
    assert (config.eps, LinearAttentionConfig.rebased_fla(d_model=D).eps) == (1e-12, 1e-5)
    features = LinearAttention(config, rngs=quick_rngs()).features
    values = nnx.to_pure_dict(nnx.state(features))
    assert values.keys() == {"q_scale", "k_scale", "q_shift", "k_shift"}
    for name, value in values.items():
        np.testing.assert_array_equal(value, np.full(8, name.endswith("scale")))
        assert not traits_of(getattr(features, name)).decay
    per_head = LinearAttentionConfig(d_model=D, n_heads=2, feature_dim=4, qk_norm="head", qk_affine="scale")
    assert LinearAttention(per_head, rngs=quick_rngs()).features.q_scale.shape == (4,)


@pytest.mark.full
@pytest.mark.parametrize(
    ("poly_init", "bound", "deviation"),
    [
        (None, 3.0, 1 / 4),
        ("normal", 3.0, 1 / 4),
        ("uniform", 1 / 4, 1 / 4 / 3**0.5),
        ("signs", 1.0, 1.0),
        ("model", 0.2, 0.05),
    ],
)
def test_all_poly_starts_as_it_is_told(poly_init, bound, deviation):
    """Kills an initialisation of another width, or of both matrices by one key."""
    config = LinearAttentionConfig(
        d_model=D, init_std=0.05, feature_map="all_poly", n_features=400, poly_init=poly_init, poly_learned=False
    )
    features = LinearAttention(config, rngs=nnx.Rngs(0)).features
    drawn = [np.asarray(w[...]) for w in (features.square_of_sum, features.sum_of_squares)]
    for matrix in drawn:
        assert matrix.shape == (16, 400)
        assert abs(matrix.mean()) < 0.05 * deviation
        assert matrix.std() == pytest.approx(deviation, rel=0.03)
        assert np.abs(matrix).max() <= bound
    assert np.any(drawn[0] != drawn[1])
    if poly_init == "signs":
        assert set(np.unique(drawn)) == {-1, 1}


@pytest.mark.parametrize("learned", [True, False])
def test_the_matrices_of_all_poly_learn_or_not(learned):
    """Kills matrices that an optimizer moves although they are given, or leaves although they are learned."""
    config = LinearAttentionConfig(d_model=D, feature_map="all_poly", poly_learned=learned)
    mixer = LinearAttention(config, rngs=quick_rngs())
    assert ("features" in nnx.state(mixer, nnx.Param)) == learned
    assert ("features" in nnx.state(mixer, Buffer)) != learned


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["relu", *(pytest.param(n, marks=pytest.mark.full) for n in ("square", "cosformer", "rebased"))]
)
def test_no_weight_at_all_gives_zero(name):
    """Kills 0 / 0, in the output and in gradients: inputs of zero have no feature above 0."""
    model = Inherited(d_model=D, max_length=8, init_std=0.6, out_init_std=0.6)
    mixer = LinearAttentionConfig(feature_map=name).inherit(model).build(rngs=quick_rngs())
    y, gradient = jax.jit(jax.value_and_grad(lambda x: mixer(x).sum()))(np.zeros((1, 3, D), np.float32))
    assert y == 0
    assert np.isfinite(gradient).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["exp", "performer"])
def test_long_queries_do_not_overflow(name):
    """Kills an exponential of a query as it stands: 100 times larger queries, and short keys."""
    mixer = LinearAttention(LinearAttentionConfig(d_model=D, feature_map=name), rngs=quick_rngs())
    mixer.q_proj.kernel[...] = mixer.q_proj.kernel[...] * 1e5
    x = jax.random.normal(jax.random.key(0), (2, 9, D))
    assert np.abs(mixer.q_proj(x)).max() > 500
    gradients = jax.jit(jax.grad(lambda x: jnp.square(mixer(x)).sum()))(x)
    assert np.isfinite(gradients).all()
    assert np.abs(gradients).max() > 0


@pytest.mark.full
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


@pytest.mark.full
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
    mixer, other = (LinearAttention(config, rngs=quick_rngs(seed)) for seed in (0, 1))
    drawn, others = (each.features.random_features for each in (mixer, other))
    assert isinstance(drawn, Buffer)
    assert drawn.shape == (7, 16)
    assert set(nnx.state(mixer, nnx.Param)) == {"q_proj", "k_proj", "v_proj", "out_proj"}
    assert np.abs(drawn[...] - others[...]).max() > 0.1


def test_the_length_of_cosformer_is_the_models():
    """Kills a length that other feature maps take and do not read, and one that overrides the config's own."""
    model = Inherited(d_model=D, max_length=33, init_std=0.1, out_init_std=0.1)
    assert LinearAttentionConfig(feature_map="cosformer").inherit(model).n_positions == 33
    assert LinearAttentionConfig(feature_map="cosformer", n_positions=5).inherit(model).n_positions == 5
    assert LinearAttentionConfig().inherit(model).n_positions is None
