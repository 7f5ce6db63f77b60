import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from benchmarks.subjects import mixer_state_bytes
from jaxzoo.mixers import (
    AttentionConfig,
    BaseConvConfig,
    GatedShortConvConfig,
    SlidingWindowAttentionConfig,
    TaylorLinearAttentionConfig,
)
from jaxzoo.models import LanguageModelConfig, presets
from jaxzoo.models.accounting import (
    abstract_model,
    count_parameters,
    flops_per_token,
    papers_flops_per_token,
    state_bytes,
)
from tests.models.hybrids import hybrid_config, make_model

FULL = pytest.mark.full
POSITION = 4
"""Bytes of the int32 position that a mixer with cached keys holds for each row."""


def test_parameters_are_counted_once_from_model_or_config():
    """Kills a tied head counted twice, a stacked period counted once, and a count of the config alone."""
    config = hybrid_config(tie_embeddings=True)
    model = make_model(config)
    leaves = jax.tree.leaves(jax.tree.map(np.asarray, model))
    assert count_parameters(config) == count_parameters(model) == sum(leaf.size for leaf in leaves)


@pytest.mark.parametrize("batch_size", [3, pytest.param(1, marks=pytest.mark.full)])
def test_state_bytes_are_those_of_the_arrays(batch_size):
    """Kills a formula, a capacity that stays at max_length, and a stacked state counted once."""
    config = hybrid_config(dtype="bfloat16", pattern=(AttentionConfig(n_heads=2), GatedShortConvConfig()), n_layers=6)
    state = nnx.jit(lambda model: model.init_state(batch_size, capacity=7))(make_model(config))
    assert state_bytes(config, 7, batch_size) == sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    caches = 3 * (2 * 8 * 7 * 2 + POSITION)
    shift_registers = 3 * (2 * 2 * 8 * 2)
    assert state_bytes(config, 7, batch_size) == batch_size * (caches + shift_registers + POSITION)


def test_state_bytes_are_those_of_the_model_that_runs():
    """Kills a filter that is built for the requested length: the 63 inputs of 64 taps are the state."""
    config = hybrid_config(pattern=(BaseConvConfig(filter="long", n_taps=64),), n_layers=1)
    inherited = hybrid_config(pattern=(BaseConvConfig(filter="long"),), n_layers=1, max_length=64)
    for length in (5, 1024):
        assert state_bytes(config, length) == state_bytes(inherited, length) == 63 * 8 * 4 + POSITION


@pytest.mark.parametrize("length", [5, *(pytest.param(n, marks=pytest.mark.full) for n in (48, 1000))])
def test_papers_state_sizes_beside_ours(length):
    """Kills a formula that is misread: every difference between eqs. 9 to 11 and the arrays is named here."""
    d, f = 64, 16
    features = 1 + f + f * (f + 1) // 2
    one_head = TaylorLinearAttentionConfig(d_model=d, n_heads=1, feature_dim=f)
    assert one_head.papers_state_size(length) == (d + 1) * (1 + 3 * f / 2 + f**2 / 2) == 65 * 153
    assert mixer_state_bytes(one_head, length) == 4 * (d + 1) * features, "eq. 9 is exact for one head"
    heads = dataclasses.replace(one_head, n_heads=4)
    assert heads.papers_state_size(length) == 65 * 153, "eq. 9 does not know of heads"
    assert mixer_state_bytes(heads, length) == 4 * (d + 4) * features, "each head has its own normaliser"

    attention = AttentionConfig(d_model=d, n_heads=4)
    assert attention.papers_state_size(length) == 2 * d * length
    assert mixer_state_bytes(attention, length) == 4 * 2 * d * length + POSITION
    grouped = dataclasses.replace(attention, n_kv_heads=1)
    assert grouped.papers_state_size(length) == 2 * d * length, "eq. 10 does not know of shared keys"
    assert mixer_state_bytes(grouped, length) == 4 * 2 * d * length // 4 + POSITION

    sliding = SlidingWindowAttentionConfig(d_model=d, n_heads=4, window=48)
    assert sliding.papers_state_size(length) == 2 * d * min(length, 48)
    assert mixer_state_bytes(sliding, length) == 4 * 2 * d * 48 + POSITION, "the ring is never shorter"

    for convolution in (GatedShortConvConfig(d_model=d), BaseConvConfig(d_model=d)):
        assert convolution.papers_state_size(length) is None, "App. E.2 leaves short convolutions out"


@pytest.mark.parametrize(
    ("pattern", "mlp"),
    [
        ((AttentionConfig(n_heads=4), AttentionConfig(n_heads=2, n_kv_heads=1)), "gelu"),
        ((SlidingWindowAttentionConfig(n_heads=2, window=32), GatedShortConvConfig()), "glu"),
        pytest.param((TaylorLinearAttentionConfig(n_heads=4, feature_dim=16), BaseConvConfig()), "glu", marks=FULL),
    ],
)
def test_flops_match_what_the_compiler_counts(pattern, mlp):
    """Kills a multiply-add counted once, a forgotten matrix of the MLP and a head over the wrong vocabulary.

    XLA counts elementwise work as well: at these widths up to 9 %, most of it in the exact GELU.
    """
    config = LanguageModelConfig(
        pattern=pattern, d_model=128, n_layers=2, vocab_size=509, max_length=64, mlp=mlp, mlp_width=384
    )
    model = abstract_model(config)
    assert all(stack.repeats == 1 for stack in model.stacks), "the compiler counts the body of a scan once"
    tokens = jax.ShapeDtypeStruct((2, 64), jnp.int32)
    compiled = jax.jit(lambda model, tokens: model(tokens)).lower(model, tokens).compile()
    analysis = compiled.cost_analysis()
    assert analysis is not None
    measured = analysis["flops"] / (2 * 64)
    assert 0.99 < measured / flops_per_token(config, 64) < 1.10


def test_papers_formulas_as_printed():
    """Kills a term that was tidied up: Tables 8 and 10 of Zoology, added up by hand at small round sizes."""
    attention = LanguageModelConfig(
        pattern=(AttentionConfig(n_heads=2),), d_model=6, n_layers=3, vocab_size=10, mlp="swiglu"
    )
    d, n, h, v = 6, 4, 3, 10
    table_8 = n * d * d * 3 + (h * h * d + h * n * n + n * n * d) + n * d * d + d * d * 8 * 2 / 3 * n
    assert papers_flops_per_token(attention, n) == pytest.approx((3 * table_8 + 2 * v * n * d) / n)
    base_conv = dataclasses.replace(attention, pattern=(BaseConvConfig(),), mlp="gelu", mlp_width=12)
    table_10 = 10 * n * 2 * 0.5 * d + n * 0.5 * d + 0.5 * d * 64 + n * d * d + d * d * 2 * 2 * n
    assert papers_flops_per_token(base_conv, n) == pytest.approx((3 * table_10 + 2 * v * n * d) / n)
    others = (
        dataclasses.replace(attention, mlp="identity"),
        dataclasses.replace(base_conv, mlp_width=24),
        dataclasses.replace(attention, pattern=(AttentionConfig(n_heads=2), BaseConvConfig())),
    )
    assert [papers_flops_per_token(config, n) for config in others] == [None] * 3


def test_zoologys_printed_tflops_are_ours_three_times():
    """Kills a wrong causal factor or MLP: the TFLOPs of Zoology's Table 4 are forward and backward (3
    forwards) of 2048 tokens with a matmul for the input layer; our MLP is rounded up, which is at most 2 % of
    the sum."""
    for preset, tera in (
        (presets.zoology_attention_73m, 1.52),
        (presets.zoology_attention_125m, 2.46),
        (presets.zoology_attention_360m, 6.23),
    ):
        config = preset()
        input_layer = 2 * config.vocab_size * config.d_model
        ours = 3 * (flops_per_token(config, 2048) + input_layer) * 2048
        assert 0.99 < ours / (tera * 1e12) < 1.03
        printed = papers_flops_per_token(config, 2048)
        assert printed is not None
        assert 6.5 < tera * 1e12 / (printed * 2048) < 8, "Table 8 itself does not give the numbers of Table 4"


def test_flops_grow_with_the_length_as_each_mixer_does():
    """Kills a length that is ignored, and a window that grows with it."""
    wide = {"d_model": 32, "n_layers": 1, "vocab_size": 16, "mlp": "none", "max_length": 4096}
    attention = LanguageModelConfig(pattern=(AttentionConfig(),), **wide)
    assert flops_per_token(attention, 2048) - flops_per_token(attention, 1024) == 4 * 32 * 1024
    window = LanguageModelConfig(pattern=(SlidingWindowAttentionConfig(window=64),), **wide)
    assert flops_per_token(window, 4096) == pytest.approx(flops_per_token(window, 2048), rel=0.05)
    assert math.isclose(flops_per_token(window, 1), 2 * 4 * 32**2 + 4 * 32 + 2 * 32 * 16)
