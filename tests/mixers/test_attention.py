"""Attention against a float64 transcription of the formula; what its cache promises."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxzoo.layers.rotary_scaling import RotaryScaling
from jaxzoo.mixers.attention.softmax_attention import Attention, AttentionConfig, AttentionState
from jaxzoo.mixers.base import Inherited, state_bytes
from tests.mixers.moved import abstract_mixer, quick_rngs
from tests.mixers.refused import assert_refused
from tests.pallas_kernels.shared import full

T = 11
SLOPES = {1: [2**-8], 3: [2**-4, 2**-8, 2**-2], 4: [2**-2, 2**-4, 2**-6, 2**-8]}


def attention_float64(mixer: Attention, x: np.ndarray) -> np.ndarray:
    """One row, query by query and head by head; rotation by complex numbers."""
    config = mixer.config
    width, group = config.head_width, config.n_heads // config.kv_heads

    def project(name: str, y: np.ndarray) -> np.ndarray:
        layer = getattr(mixer, name)
        bias = 0.0 if layer.bias is None else np.float64(layer.bias[...])
        return y @ np.float64(layer.kernel[...]) + bias

    def turn(y: np.ndarray, fading: int) -> np.ndarray:
        half, p = round(config.rotary_fraction * width) // 2, np.arange(len(y))[:, None]
        speed = config.rotary_base ** (-np.arange(half) / half)
        pairs = (y[:, :half] + 1j * y[:, half : 2 * half]) * np.exp(1j * p * speed)
        if config.positions == "xpos":
            pairs *= ((np.arange(half) / half + 0.4) / 1.4) ** (fading * p / config.xpos_scale_base)
        return np.concatenate([pairs.real, pairs.imag, y[:, 2 * half :]], axis=1)

    q, k, v = (project(name, np.float64(x)) for name in ("q_proj", "k_proj", "v_proj"))
    heads = []
    for i in range(config.n_heads):
        columns, kv_columns = (slice(j * width, (j + 1) * width) for j in (i, i // group))
        qi, ki = q[:, columns], k[:, kv_columns]
        if config.positions in ("rotary", "xpos"):
            qi, ki = turn(qi, 1), turn(ki, -1)
        rows = []
        for now in range(len(x)):
            scores = ki[: now + 1] @ qi[now] / np.sqrt(width)
            if config.positions == "alibi":
                scores += SLOPES[config.n_heads][i] * (np.arange(now + 1) - now)
            weights = np.exp(scores - scores.max())
            rows.append(weights / weights.sum() @ v[: now + 1, kv_columns])
        heads.append(np.stack(rows))
    return project("out_proj", np.concatenate(heads, axis=1))


def make(**fields: Any) -> Attention:
    """A mixer whose parameters, biases too, are random and large enough to make the weights uneven."""
    defaults = {
        "d_model": 12,
        "n_heads": 3,
        "head_dim": 6,
        "qkv_bias": True,
        "out_bias": True,
    }
    mixer = Attention(AttentionConfig(**(defaults | fields)), rngs=quick_rngs())
    rng = np.random.default_rng(1)
    random = jax.tree.map(lambda leaf: np.float32(0.4 * rng.normal(size=leaf.shape)), nnx.state(mixer, nnx.Param))
    nnx.update(mixer, random)
    return mixer


def inputs(batch: int = 2, t: int = T) -> np.ndarray:
    return np.float32(np.random.default_rng(2).normal(size=(batch, t, 12)))


def stand_at(mixer: Attention, x: np.ndarray, starts: tuple[int, ...], capacity: int = 16) -> AttentionState:
    """The state whose row `i` has seen the first `starts[i]` tokens of `x[i]`."""
    prefill, empty = jax.jit(mixer.prefill), mixer.init_state(1, capacity=capacity)
    rows = [prefill(x[row : row + 1, :start], empty)[1] for row, start in enumerate(starts)]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *rows)


@pytest.mark.parametrize(
    "fields",
    [
        full({"n_heads": 1, "head_dim": None}),
        {"n_heads": 3, "head_dim": None, "qkv_bias": False, "out_bias": False},
        {"n_heads": 4, "n_kv_heads": 2, "positions": "rotary"},
        {"n_heads": 3, "positions": "rotary", "rotary_fraction": 1 / 3, "rotary_base": 100.0},
        full({"n_heads": 4, "n_kv_heads": 2, "positions": "xpos", "xpos_scale_base": 16}),
        {"n_heads": 3, "positions": "xpos", "rotary_fraction": 2 / 3, "xpos_scale_base": 30.0},
        full({"n_heads": 4, "n_kv_heads": 1, "positions": "alibi"}),
        {"n_heads": 3, "positions": "alibi"},
    ],
)
def test_matches_float64(fields: dict[str, Any]) -> None:
    """Kills: head and group order, a lost bias, a wrong scale, rotation of the wrong channels, slopes of the
    wrong head, a mask one off, queries that fade as keys do."""
    mixer, x = make(**fields), inputs()
    y = jax.jit(mixer)(x)
    for row in range(2):
        np.testing.assert_allclose(y[row], attention_float64(mixer, np.asarray(x[row])), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("positions", ["none", "rotary", "xpos", "alibi"])
def test_rows_at_different_positions(positions: str) -> None:
    """Kills: one position for the whole batch, keys rotated relative to the call, biases from slot 0 on."""
    mixer, x = make(positions=positions, n_kv_heads=1), inputs()
    full, rows = np.asarray(jax.jit(mixer)(x)), np.arange(2)[:, None]
    at = np.array([[2], [7]]) + np.arange(4)[None, :]
    y, state = jax.jit(mixer.prefill)(x[rows, at[:, :3]], stand_at(mixer, x, starts=(2, 7)))
    np.testing.assert_allclose(y, full[rows, at[:, :3]], atol=1e-5)
    y_t, state = jax.jit(mixer.step)(x[rows, at][:, 3], state)
    np.testing.assert_allclose(y_t, full[rows, at][:, 3], atol=1e-5)
    np.testing.assert_array_equal(state.position, [6, 11])


def test_a_full_cache_is_exact_and_an_overrun_is_nan() -> None:
    """Kills: the clamped write of a dynamic update, which would shift a row's keys and say nothing."""
    mixer, x = make(positions="rotary"), inputs(t=9)
    full, state = jax.jit(mixer)(x), stand_at(mixer, x, starts=(5, 6), capacity=8)
    y, state = jax.jit(mixer.prefill)(np.stack([x[0, 5:8], x[1, 6:9]]), state)
    np.testing.assert_allclose(y[0], full[0, 5:8], atol=1e-5)
    assert np.isnan(y[1]).all()
    y_t, _ = jax.jit(mixer.step)(x[:, 8], state)
    assert np.isnan(y_t).all()


@pytest.mark.slow
def test_gradients_flow_through_the_state() -> None:
    """Kills: a state cut off from its past. The gradient of two calls is that of one."""
    mixer, x, dy = make(positions="rotary"), inputs(), inputs()[:, ::-1]

    def in_two_calls(x: jax.Array) -> jax.Array:
        first, state = mixer.prefill(x[:, :4], mixer.init_state(2, capacity=16))
        second, _ = mixer.prefill(x[:, 4:], state)
        return (jnp.concatenate([first, second], axis=1) * dy).sum()

    whole = jax.jit(jax.grad(lambda x: (mixer(x) * dy).sum()))(x)
    np.testing.assert_allclose(jax.jit(jax.grad(in_two_calls))(x), whole, atol=1e-4)


def test_cache_dtype_is_the_callers() -> None:
    """Kills: a cache that forgets its dtype, and outputs that take it. bfloat16 rounds by 4e-3."""
    mixer, x = make(), inputs()
    y, state = jax.jit(mixer.prefill)(x, mixer.init_state(2, capacity=16, dtype=jnp.bfloat16))
    assert (y.dtype, state.k.dtype, state.v.dtype) == (jnp.float32, jnp.bfloat16, jnp.bfloat16)
    full = jax.jit(mixer)(x)
    assert 0 < np.linalg.norm(y - full) / np.linalg.norm(full) < 6e-3


def test_state_bytes_against_the_paper() -> None:
    """Based, eq. 10: 2 d N entries. Ours adds the position, and has fewer where heads are grouped."""
    whole = abstract_mixer(AttentionConfig(d_model=12, n_heads=3))
    grouped = abstract_mixer(AttentionConfig(d_model=12, n_heads=3, n_kv_heads=1))
    assert state_bytes(whole, capacity=16) == 4 * (2 * 12 * 16) + 4
    assert state_bytes(grouped, capacity=16) == 4 * (2 * 12 * 16) // 3 + 4


def test_flops_by_hand() -> None:
    """d=8, 2 heads of 4, 1 key/value head: kernels 8x8, 8x4, 8x4, 8x8; 16 keys of width 4, twice, 2 heads."""
    config = AttentionConfig(d_model=8, n_heads=2, n_kv_heads=1)
    assert config.flops_per_token(16) == 2 * (64 + 32 + 32 + 64) + 2 * 2 * 2 * 4 * 16


def test_config_errors() -> None:
    cases = [
        ({"d_model": 10, "n_heads": 3}, "d_model=10 must be divisible by n_heads=3"),
        ({"d_model": 12, "n_heads": 0}, "n_heads=0 must be positive"),
        ({"d_model": 12, "n_heads": 6, "n_kv_heads": 4}, "n_kv_heads=4 must divide n_heads=6"),
        ({"d_model": 12, "head_dim": -1}, "head_dim=-1 must be positive"),
        ({"d_model": 12, "positions": "learned"}, "positions='learned' must be"),
        ({"d_model": 0}, "d_model=0 must be positive"),
        ({"d_model": 12, "init_std": -0.1}, "init_std=-0.1 must not be negative"),
        (
            {"d_model": 10, "n_heads": 2, "positions": "rotary"},
            "rotary_fraction=1.0 times head_dim=5 must be an even",
        ),
        (
            {"d_model": 12, "positions": "rotary", "rotary_fraction": 0.0},
            r"rotary_fraction=0.0 must be in \(0, 1\]",
        ),
        ({"d_model": 12, "positions": "rotary", "rotary_base": 0.5}, "rotary_base=0.5 must be at least 1"),
        ({"d_model": 12, "positions": "xpos", "xpos_scale_base": 9}, "xpos_scale_base=9.* must be at least 16"),
        ({"d_model": 5, "positions": "xpos"}, "rotary_fraction=1.0 times head_dim=5 must be an even"),
        (
            {"d_model": 12, "positions": "xpos", "rotary_scaling": RotaryScaling(kind="yarn")},
            "positions='xpos' must be 'rotary' with rotary_scaling.kind='yarn', which leaves open",
        ),
    ]
    assert_refused(AttentionConfig, cases)


def test_an_unresolved_config_waits_for_its_model() -> None:
    """Kills: rules about head widths applied before the model width is known."""
    config = AttentionConfig(n_heads=2, positions="rotary", rotary_fraction=0.5)
    with pytest.raises(ValueError, match=r"d_model=None must be known to build the mixer"):
        Attention(config, rngs=quick_rngs())
    model = Inherited(d_model=16, max_length=32, init_std=0.1, out_init_std=0.0)
    config = config.inherit(model)
    assert config.rotated_channels == 4
    assert (config.std, config.out_std) == (0.1, 0.0)


def test_state_errors() -> None:
    mixer = make()
    for capacity in (None, 0):
        with pytest.raises(ValueError, match=f"init_state of attention: capacity={capacity} must be positive"):
            mixer.init_state(1, capacity=capacity)
    with pytest.raises(ValueError, match=r"prefill of attention: t=11 must be at most the 8 slots of the cache"):
        mixer.prefill(inputs(), mixer.init_state(2, capacity=8))
