"""Gated slot attention and ABC against their recurrences in float64, head by head."""

import jax
import numpy as np
import pytest

from jaxzoo.mixers.linear.gated_slot_attention import GatedSlotAttentionConfig, GatedSlotAttentionState
from tests.mixers.moved import assert_gradients, moved_mixer
from tests.mixers.recurrent_truth import rms, silu, softmax, softplus

D, T = 8, 21
IDS = np.repeat([[4, 1, 7], [2, 9, 3]], [9, 1, 11], axis=1)


def turn(y, at):
    n = y.shape[-1] // 2
    angle = at[..., None] * 10000.0 ** (-np.arange(n) / n)
    pairs = (y[..., :n] + 1j * y[..., n:]) * np.exp(1j * angle)
    return np.concatenate([pairs.real, pairs.imag], axis=-1)


def truth(config, start=None):
    """Outputs `(b, t, d)`, one token after the other; `start`: the state before the first."""
    h, group = config.n_heads, config.n_heads // config.kv_heads
    k_dim, v_dim, m = config.keys // h, config.values // h, config.slot_count

    def run(p, x, ids):
        (b, t, _), heads = x.shape, []
        act = silu if config.activation else lambda y: y
        position = np.zeros(b) if start is None else np.float64(start.position)
        for head in range(h):
            at = head // group
            q = act(x @ p["q_proj.kernel"])[..., head * k_dim : (head + 1) * k_dim]
            k = act(x @ p["k_proj.kernel"])[..., at * k_dim : (at + 1) * k_dim]
            v = act(x @ p["v_proj.kernel"])[..., at * v_dim : (at + 1) * v_dim]
            logits = (x @ p["slot_proj.kernel"])[..., at * m : (at + 1) * m]
            if config.rotary:
                q, k = (turn(y, position[:, None] + np.arange(t)) for y in (q, k))
            q = q / np.sqrt(k_dim) if config.scaled else q
            hk, hv, z = np.zeros((b, k_dim, m)), np.zeros((b, m, v_dim)), np.full((b, m), -np.inf)
            if start is not None:
                hk, hv = np.float64(start.keys[:, at]), np.float64(start.values[:, at])
                z = np.float64(start.total[:, at]) if config.slots == "softmax" else z
            rows = []
            for i in range(t):
                if ids is not None and i:
                    new = ids[:, i] != ids[:, i - 1]
                    hk, hv, z = hk * ~new[:, None, None], hv * ~new[:, None, None], np.where(new[:, None], -np.inf, z)
                if config.slots == "softmax":
                    s = np.clip(logits[:, i], -config.clamp, config.clamp)
                    before, z = z, np.logaddexp(z, s)
                    a, s = np.exp(before - z), np.exp(s - z)
                else:
                    a = np.exp(-softplus(-logits[:, i]) / config.gate_temperature)
                    s = 1 - a
                hk = hk * a[:, None] + k[:, i, :, None] * s[:, None]
                hv = hv * a[:, :, None] + s[:, :, None] * v[:, i, None]
                share = softmax(np.einsum("bk,bkm->bm", q[:, i], hk))
                rows.append(np.einsum("bm,bmv->bv", share, hv))
            heads.append(np.stack(rows, axis=1))
        if config.output == "norm":
            y = rms(silu(np.concatenate(heads, axis=-1)), config.norm_eps) * p["norm.scale"]
        else:
            y = np.concatenate([rms(o, config.norm_eps) * p["norm.scale"] for o in heads], axis=-1)
            y = y * silu(x @ p["gate_proj.kernel"])
        return y @ p["out_proj.kernel"]

    return run


CONFIGS = [
    GatedSlotAttentionConfig(d_model=D, n_heads=4, n_kv_heads=2, key_width=12, value_width=20, n_slots=5, norm_eps=0.1),
    GatedSlotAttentionConfig.abc(d_model=D, n_heads=2, n_slots=3),
    GatedSlotAttentionConfig.abc(d_model=D, n_heads=2, clamp=0.5, output="norm", scaled=False),
    GatedSlotAttentionConfig(d_model=D, n_heads=2, gate_temperature=0.3, scaled=True, output="gated_norm"),
]


@pytest.mark.parametrize(("documents", "config"), list(zip((IDS, IDS, None, None), CONFIGS, strict=True)))
def test_equation(config, documents):
    """Kills: a decay on keys instead of slots, a decay after the write, a slot that keeps its document, another scale,
    a norm before the SiLU or over another width, a clamp that nothing reads, a query of another group."""
    mixer, p = moved_mixer(config)
    x = np.random.default_rng(0).normal(size=(2, T, D))
    assert_gradients(mixer, p, x, truth(config), segment_ids=documents)


@pytest.mark.parametrize("config", CONFIGS[:2])
def test_from_random_slots(config):
    """Kills: a state that is not read, or is decayed once too often; a new z of ABC; rows at one position."""
    mixer, p = moved_mixer(config)
    rng = np.random.default_rng(3)
    empty = jax.eval_shape(lambda: mixer.init_state(2))
    draws = [rng.normal(size=leaf.shape).astype(np.float32) for leaf in empty[:3]]
    state = GatedSlotAttentionState(*draws, np.array([5, 2], np.int32))
    x = rng.normal(size=(2, T, D))
    y, after = jax.jit(mixer.prefill)(np.float32(x), state)
    expected = truth(config, state)(p, x, None)
    np.testing.assert_allclose(y, expected, atol=2e-5 * np.abs(expected).max())
    np.testing.assert_array_equal(after.position, [5 + T, 2 + T])


def test_slots_of_abc_hold_a_softmax_over_the_past():
    """Kills sums that do not stay normalised: slot m holds the values by the softmax of the logits of m."""
    config = GatedSlotAttentionConfig.abc(d_model=D, n_heads=2)
    mixer, p = moved_mixer(config)
    x = 3 * np.random.default_rng(0).normal(size=(2, T, D))
    _, state = jax.jit(mixer.prefill)(np.float32(x), mixer.init_state(2))
    weights = softmax(np.clip(x @ p["slot_proj.kernel"], -32, 32).swapaxes(1, 2)).reshape(2, 2, -1, T)
    values = (x @ p["v_proj.kernel"]).reshape(2, T, 2, -1)
    expected = np.einsum("bhmt,bthv->bhmv", weights, values)
    np.testing.assert_allclose(state.values, expected, atol=1e-5 * np.abs(expected).max())
