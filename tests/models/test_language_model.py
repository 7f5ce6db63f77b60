import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxzoo.mixers import AttentionConfig, Context, GatedShortConvConfig, TaylorLinearAttentionConfig
from jaxzoo.models import LanguageModel, LanguageModelConfig, ModelState
from jaxzoo.models.blueprint import make_blueprint
from tests.mixers.outside import AverageConfig
from tests.models.hybrids import LENGTH, hybrid_config, make_model, random_tokens, run

assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
"""float32 through eleven layers with weights of order 0.3, logits of order 10."""


@nnx.jit
def prefill(model: LanguageModel, tokens: jax.Array, state: ModelState) -> tuple[jax.Array, ModelState]:
    return model.prefill(tokens, state)


@nnx.jit
def step(model: LanguageModel, token: jax.Array, state: ModelState) -> tuple[jax.Array, ModelState]:
    return model.step(token, state)


@nnx.jit
def unrolled_features(model: LanguageModel, tokens: jax.Array) -> jax.Array:
    """The pre-norm equations, written out layer by layer with each repeat's own slice of the parameters."""
    residual = model.embedding[...][tokens]
    if model.config.max_positions:
        residual = residual + jnp.broadcast_to(model.position_embedding[...][: tokens.shape[1]][None], residual.shape)
    if model.config.embed_norm:
        residual = model.embedding_norm(residual)
    for stack in model.stacks:
        definition, parameters = nnx.split(stack.blocks)
        for i in range(stack.repeats):
            own = parameters if stack.repeats == 1 else jax.tree.map(lambda x, i=i: x[i], parameters)
            for block in nnx.merge(definition, own):
                residual = residual + block.mixer(block.mixer_norm(residual))
                hidden = block.mlp_norm(residual)
                residual = residual + (block.mlp(hidden) if model.config.mlp == "swiglu" else hidden)
    return model.final_norm(residual)


def unrolled_logits(model: LanguageModel, tokens: jax.Array) -> np.ndarray:
    """The same with the head, in float64."""
    features = np.asarray(unrolled_features(model, tokens), np.float64)
    table = model.embedding if model.config.tie_embeddings else model.head
    return features @ np.asarray(table[...], np.float64).T[:, : model.config.vocab_size]


PAIR = {
    "pattern": (TaylorLinearAttentionConfig(n_heads=2, feature_dim=3), GatedShortConvConfig()),
    "n_layers": 5,
}
"""Two mixers twice, scanned, and the first once more: enough where the mixers do not matter, and quick to
compile."""


@pytest.mark.parametrize(
    ("fields", "width"),
    [
        pytest.param({}, 5, marks=pytest.mark.slow),
        pytest.param({**PAIR, "max_positions": 12, "mlp": "identity"}, 2, marks=pytest.mark.full),
        ({**PAIR, "tie_embeddings": False, "norm": "rms", "embed_norm": True}, 2),
    ],
)
def test_scanned_layers_equal_the_layers_one_by_one(fields, width):
    """Kills a scan that runs periods in another order or with another period's weights, a post-norm block, a
    position counted from 1, and a head that reads the wrong table."""
    config = hybrid_config(**fields)
    model, tokens = make_model(config), random_tokens(config)
    assert [(len(stack.blocks), stack.repeats) for stack in model.stacks] == [(width, 2), (1, 1)]
    logits = run(model, tokens)
    assert_close(logits[..., : config.vocab_size], unrolled_logits(model, tokens))


@pytest.mark.parametrize("scan_layers", [True, False])
def test_layers_with_and_without_a_loop(scan_layers):
    """Kills: a loop where none was asked for, or none; a layer that is left out, or has another's parameters."""
    config = hybrid_config(pattern=(GatedShortConvConfig(),), n_layers=3, scan_layers=scan_layers)
    model, tokens = make_model(config), random_tokens(config)
    compiled = jax.jit(lambda variables: nnx.merge(definition, variables)(tokens))
    definition, variables = nnx.split(model)
    lowered = compiled.lower(variables)
    assert lowered.as_text().count("stablehlo.while") == scan_layers
    assert_close(lowered.compile()(variables)[..., : config.vocab_size], unrolled_logits(model, tokens))


STREAMED = (TaylorLinearAttentionConfig(n_heads=2, feature_dim=3), AttentionConfig(n_heads=2, positions="rotary"))
"""A state of fixed size and a cache."""


@nnx.jit
def in_three_ways(model: LanguageModel, tokens: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Logits of the full pass; of two prefills and steps; the last position."""
    head, state = model.prefill(tokens[:, :4], model.init_state(2))
    middle, state = model.prefill(tokens[:, 4:7], state)

    def step(state: ModelState, token: jax.Array) -> tuple[ModelState, jax.Array]:
        logits, state = model.step(token, state)
        return state, logits

    state, tail = jax.lax.scan(step, state, tokens[:, 7:].T)
    return model(tokens), jnp.concatenate([head, middle, tail.swapaxes(0, 1)], axis=1), state.position


def test_prefill_and_steps_equal_the_full_pass():
    """Kills a state that is lost between periods of a scan, a learned or rotary position that restarts at a cut or is
    off by one in a step."""
    config = hybrid_config(pattern=STREAMED, n_layers=4, max_positions=12)
    expected, logits, position = in_three_ways(make_model(config), random_tokens(config))
    assert_close(logits, expected)
    np.testing.assert_array_equal(position, [LENGTH, LENGTH])


@pytest.mark.slow
def test_rows_may_stand_at_different_positions():
    """Kills a position, or a cache slot, that all rows of a batch share."""
    config = hybrid_config(pattern=STREAMED, n_layers=4, max_positions=12)
    model, tokens = make_model(config), random_tokens(config)
    _, early = prefill(model, tokens[:, :4], model.init_state(2))
    _, late = prefill(model, tokens[:, :7], model.init_state(2))

    def rows(early, late, axis):
        pick = [jax.lax.slice_in_dim(early, 0, 1, axis=axis), jax.lax.slice_in_dim(late, 1, 2, axis=axis)]
        return jnp.concatenate(pick, axis)

    layers = tuple(
        jax.tree.map(lambda a, b, axis=int(stack.repeats > 1): rows(a, b, axis), first, second)
        for stack, first, second in zip(model.stacks, early.layers, late.layers, strict=True)
    )
    mixed = ModelState(layers, rows(early.position, late.position, 0))
    logits, _ = step(model, jnp.stack([tokens[0, 4], tokens[1, 7]]), mixed)
    expected = run(model, tokens)
    assert_close(logits, jnp.stack([expected[0, 4], expected[1, 7]]))


POLICIES = ("nothing", "projections", "mixer_inputs", "period", "everything")
"""Rematerialization policies, from the least recomputation to the most."""


@pytest.mark.slow
def test_remat_changes_neither_values_nor_gradients():
    """Kills a checkpointed part that drops an input (the dropout key, a state) or doubles a gradient, and groups of
    periods (five: in twos, and one) in another order, or with others' parameters."""
    config = hybrid_config(pattern=(GatedShortConvConfig(),), n_layers=5, residual_dropout=0.3)
    tokens, weights = (
        random_tokens(config),
        jax.random.normal(jax.random.key(2), (2, LENGTH, config.vocab_size)),
    )

    def loss(model):
        return jnp.sum(weights * model(tokens, key=jax.random.key(3))[..., : config.vocab_size])

    models = [make_model(dataclasses.replace(config, remat=remat)) for remat in POLICIES]
    (value, gradients), *others = [nnx.jit(nnx.value_and_grad(loss))(model) for model in models]
    for again, gradients_again in others:
        np.testing.assert_allclose(again, value, rtol=1e-6)
        for a, b in zip(jax.tree.leaves(gradients), jax.tree.leaves(gradients_again), strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5 * np.abs(a).max())


@pytest.mark.slow
def test_remat_policies_need_less_and_less_memory():
    """Kills a policy that does nothing, or keeps what it should compute again: temporaries of the compiled gradient of
    16 layers with wide activations, in residuals (b, t, d) of float32."""
    b, t, d, n = 8, 512, 16, 16
    pattern = (GatedShortConvConfig(),)

    def temporaries(policy):
        blueprint = make_blueprint(
            LanguageModelConfig(
                pattern=pattern, d_model=d, n_layers=n, max_length=t, vocab_size=16, mlp="gelu", remat=policy
            )
        )

        def loss(variables, tokens):
            return jnp.mean(jnp.square(blueprint.model(variables).features(tokens)))

        tokens = jax.ShapeDtypeStruct((b, t), jnp.int32)
        analysis = jax.jit(jax.grad(loss)).lower(blueprint.shapes, tokens).compile().memory_analysis()
        return analysis.temp_size_in_bytes / (4 * b * t * d)

    nothing, projections, mixer_inputs, period, everything = map(temporaries, POLICIES)
    assert nothing > 1.5 * projections, "activations of all layers are more than the outputs of their projections"
    assert projections > 1.5 * mixer_inputs, "a projection's outputs are wider than a residual"
    assert mixer_inputs > period + n / 2, "one more residual a layer, but for what the scheduler saves"
    assert period > everything + n / 4, "16 borders, or 4 of groups and 4 in one"


def test_padding_rows_get_no_probability_and_no_gradient():
    """Kills a softmax over 16 rows of a vocabulary of 13, and an embedding whose padding drifts."""
    config = hybrid_config(pattern=(GatedShortConvConfig(),))
    model, tokens = make_model(config), random_tokens(config)

    def loss(model):
        log_probabilities = jax.nn.log_softmax(model(tokens), axis=-1)
        return -log_probabilities[..., 1].mean(), log_probabilities

    gradients, log_probabilities = nnx.jit(nnx.grad(loss, has_aux=True))(model)
    probabilities, gradient = np.exp(log_probabilities), np.asarray(gradients.embedding[...])
    assert probabilities.shape == (2, LENGTH, 16)
    np.testing.assert_array_equal(probabilities[..., 13:], 0)
    np.testing.assert_allclose(probabilities[..., :13].sum(-1), 1, rtol=1e-5)
    np.testing.assert_array_equal(gradient[13:], 0)
    assert np.all(np.any(np.asarray(gradient[:13]) != 0, axis=1))


def test_a_token_outside_the_vocabulary_gives_nan():
    """Kills the look-up of another row: -1 wraps round to the last, 13 is padding, 16 is clipped."""
    config = hybrid_config(pattern=(GatedShortConvConfig(),), n_layers=2)
    model, tokens = make_model(config), np.asarray(random_tokens(config, batch_size=6))
    outside = tokens.copy()
    outside[:5, 5] = [-1, 13, 15, 16, 1000]
    logits, expected = run(model, outside), run(model, tokens)
    assert np.all(np.isnan(logits[:5, 5, :13]))
    np.testing.assert_array_equal(logits[:5, :5], expected[:5, :5])
    np.testing.assert_array_equal(logits[5], expected[5])


@pytest.mark.full
def test_bfloat16_rounds_branches_and_nothing_else():
    """Kills parameters, residual or logits that follow the compute dtype, and a dtype that is ignored."""
    config = hybrid_config(**PAIR, dtype="bfloat16")
    model, tokens = make_model(config), random_tokens(config)
    assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))} == {jnp.dtype("float32")}
    assert jax.eval_shape(model.features, tokens).dtype == jnp.bfloat16
    logits, exact = (np.asarray(run(each, tokens))[..., :13] for each in (model, make_model(hybrid_config(**PAIR))))
    assert logits.dtype == jnp.float32
    error = np.linalg.norm(logits - exact) / np.linalg.norm(exact)
    assert 1e-3 < error < 1e-1, "bfloat16 keeps 8 bits: 0.4 % an operation, over five layers"
    nnx.update(model, jax.tree.map(lambda x: np.zeros_like(np.asarray(x)), nnx.state(model, nnx.Param)))
    residual = np.random.default_rng(0).normal(size=(2, LENGTH, 8)).astype(np.float32)
    states = (None,) * len(model.stacks[0].blocks)
    unchanged, *_ = jax.jit(model.stacks[0], static_argnums=(1,))(
        residual, lambda mixer, x, *_: (mixer(x), None, {}), states, Context()
    )
    np.testing.assert_array_equal(unchanged, residual)


def test_bfloat16_states_have_bfloat16_caches():
    """Kills a cache that is kept in float32 (twice the memory), and a scan whose state changes dtype."""
    model = make_model(hybrid_config(dtype="bfloat16"))
    state = jax.eval_shape(lambda: model.init_state(2))
    _, after = jax.eval_shape(model.prefill, random_tokens(model.config), state)
    assert [leaf.dtype for leaf in jax.tree.leaves(state)] == [leaf.dtype for leaf in jax.tree.leaves(after)]
    attention = state.layers[0][4]
    assert (attention.k.dtype, attention.k.shape[0]) == (jnp.bfloat16, 2)


def test_a_mixer_that_sees_the_future_cannot_stream():
    """Kills a model that generates with a bidirectional mixer, and one that cannot run it at all."""
    model = make_model(hybrid_config(pattern=(GatedShortConvConfig(), AverageConfig()), n_layers=4))
    assert np.all(np.isfinite(run(model, random_tokens(model.config))))
    with pytest.raises(ValueError, match="layer 1: AverageConfig sees the future and cannot stream"):
        model.init_state(2)


@pytest.mark.full
def test_more_tokens_than_learned_positions():
    """Kills a position beyond the table that takes another row: the call raises, a step gives NaN."""
    model = make_model(hybrid_config(pattern=(GatedShortConvConfig(),), n_layers=1, max_positions=12))
    long = random_tokens(model.config, length=13)
    with pytest.raises(ValueError, match="13 tokens exceed max_positions=12"):
        model(long)
    _, state = prefill(model, long[:, :12], model.init_state(2))
    logits, _ = step(model, long[:, 12], state)
    assert np.all(np.isnan(logits[:, :13]))


def test_configs_that_cannot_be_built_say_why_in_one_line():
    """Kills a shape error from deep inside a layer where the config is to blame."""
    for fields, message in (
        (
            {"pattern": (AttentionConfig(d_model=9),)},
            "AttentionConfig.d_model=9 must equal the model's d_model=8",
        ),
        ({"pattern": ()}, r"LanguageModelConfig.pattern=\(\) must name at least one mixer"),
        ({"n_layers": 0}, r"LanguageModelConfig.n_layers=0 must be in \[1, 65536\]"),
        ({"embed_dropout": 1.0}, r"LanguageModelConfig.embed_dropout=1.0 must be in \[0, 1\)"),
        ({"mlp_width": -1}, "LanguageModelConfig.mlp_width=-1 must not be negative"),
        (
            {"mlp": "relu"},
            "LanguageModelConfig.mlp='relu' must be one of 'swiglu', 'geglu', 'geglu_tanh', 'glu', ",
        ),
        (
            {"mlp": "identity", "parallel_residual": True},
            "LanguageModelConfig.parallel_residual=True needs an MLP next to the mixer, and mlp='identity' has",
        ),
        ({"mlp": "none", "parallel_residual": True}, "parallel_residual=True needs an MLP .* mlp='none' has none"),
        (
            {"attention_post_norm": True, "parallel_residual": True},
            "LanguageModelConfig.attention_post_norm=True must be False with parallel_residual",
        ),
        ({"norm": "batch"}, "LanguageModelConfig.norm='batch' must be one of 'layer', 'rms'"),
        ({"remat": "some"}, "LanguageModelConfig.remat='some' must be one of 'nothing', 'projections', "),
        (
            {"remat": "everything", "scan_layers": False},
            "LanguageModelConfig.scan_layers=False must be True with remat='everything', which loops over groups",
        ),
        ({"dtype": "float16"}, "LanguageModelConfig.dtype='float16' must be one of 'float32', 'bfloat16'"),
    ):
        with pytest.raises(ValueError, match=message) as raised:
            hybrid_config(**fields)
        assert "\n" not in str(raised.value)


def test_every_mlp_kind_is_what_it_says():
    """Kills an option that is accepted and ignored: the six second branches give six models."""
    parameters, models = {}, {}
    for kind in ("swiglu", "geglu", "glu", "gelu", "identity", "none"):
        config = LanguageModelConfig(
            pattern=(GatedShortConvConfig(),),
            d_model=6,
            vocab_size=7,
            n_layers=1,
            mlp=kind,
            mlp_width=5,
            mlp_bias=True,
        )
        model = make_model(config)
        parameters[kind] = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model.stacks, nnx.Param)))
        models[kind] = model
    tokens = random_tokens(config, length=5)
    outputs = nnx.jit(lambda models: {kind: model(tokens) for kind, model in models.items()})(models)
    base = parameters["none"]
    assert parameters["identity"] == base + 2 * 6
    assert parameters["gelu"] == base + 2 * 6 + 2 * 6 * 5 + 5 + 6
    assert parameters["swiglu"] == base + 2 * 6 + 3 * 6 * 5 + 5 + 5 + 6
    assert parameters["geglu"] == parameters["glu"] == parameters["swiglu"]
    assert len({np.asarray(values).tobytes() for values in outputs.values()}) == 6
