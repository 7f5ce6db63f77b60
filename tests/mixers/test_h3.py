"""H3 against its two state space models as matrices, in float64, one token after the other; every option."""

import numpy as np
import pytest

from jaxzoo.layers.variables import traits_of
from jaxzoo.mixers.ssm.h3 import H3, H3Config
from tests.mixers.moved import assert_computes, moved_mixer, quick_rngs

D, T = 6, 13


def diagonal_system(config, p, head):
    """a, b and c of one head, complex128."""
    dt = np.exp(p["s4d.log_dt"][head])
    a = -np.exp(p["s4d.log_neg_real"][head]) + 1j * p["s4d.imag"][head]
    b, c = (p[f"s4d.{name}"][head] @ np.array([1, 1j]) for name in ("b", "c"))
    if config.discretization == "zoh":
        return np.exp(dt * a), (np.exp(dt * a) - 1) / a * b, c
    return (1 + dt * a / 2) / (1 - dt * a / 2), dt * b / (1 - dt * a / 2), c


def truth(config, p, x):
    """Outputs `(b, t, d)`, head by head and channel by channel of k and v."""
    b, t, _ = x.shape
    w, size = config.d_state, config.head_dim
    q, k, v = (x @ p[f"{name}_proj.kernel"] + p[f"{name}_proj.bias"] for name in "qkv")
    shift_b = p["shift_b"] if config.learn_shift_b else np.eye(w)[:, :1] * np.ones(D)
    shift, register, keys = np.eye(w, k=-1), np.zeros((b, w, D)), []
    for i in range(t):
        register = np.einsum("vw,bwd->bvd", shift, register) + shift_b * k[:, i, None]
        keys.append((p["shift_c"] * register).sum(1) + p["skip_k"] * k[:, i])
    k, o = np.stack(keys, axis=1), np.zeros_like(x)
    for head in range(D // size):
        decay, write, read = diagonal_system(config, p, head)
        for i in range(head * size, (head + 1) * size):
            for j in range(head * size, (head + 1) * size):
                state = np.zeros((b, w // 2), complex)
                for now in range(t):
                    product = k[:, now, i] * v[:, now, j]
                    state = decay * state + write * product[:, None]
                    s = 2 * (state @ read).real + p["skip"][head] * product
                    o[:, now, j] += q[:, now, i] * s
    return o @ p["out_proj.kernel"] + p["out_proj.bias"]


@pytest.mark.parametrize(
    "options",
    [
        {"d_state": 4, "head_dim": 2},
        {"d_state": 10, "head_dim": 1, "discretization": "zoh", "spectrum": "inv"},
        {"d_state": 6, "head_dim": 3, "learn_shift_b": False},
    ],
)
def test_equation(options):
    """Kills: channels in the order (d h), a sum over the channels of v, the SSM of another head, a skip that is left
    out, a register that runs the wrong way, the other discretization, an option that nothing reads."""
    config = H3Config(d_model=D, dt_min=0.1, dt_max=1.0, **options)
    mixer, p = moved_mixer(config)
    x = np.random.default_rng(0).normal(size=(2, T, D))
    expected = truth(config, p, x)

    assert_computes(mixer, x, expected, 2e-5)


def test_initialisation():
    """Kills a shift SSM that does not start as a register, skips that start at 1, decay of the systems' A, B and
    step."""
    mixer = H3(H3Config(d_model=400, d_state=16, dt_min=0.01, dt_max=0.02, spectrum="inv"), rngs=quick_rngs())
    np.testing.assert_array_equal(mixer.shift_b[...], np.eye(16)[:, :1] * np.ones(400))
    c = np.abs(np.asarray(mixer.shift_c[...]))
    assert 0.2499 < c.max() <= 0.25  # 1 / sqrt(16)
    for skip in (mixer.skip, mixer.skip_k):
        np.testing.assert_allclose(np.std(np.asarray(skip[...])), 1, atol=0.15)
    assert 0.0099 < np.exp(mixer.s4d.log_dt[...]).min() < np.exp(mixer.s4d.log_dt[...]).max() < 0.0201
    np.testing.assert_allclose(mixer.s4d.imag[...][0, 0], 16 / np.pi * 15, rtol=1e-6)
    fixed = (mixer.shift_b, mixer.s4d.log_dt, mixer.s4d.log_neg_real, mixer.s4d.imag, mixer.s4d.b)
    assert not any(traits_of(variable).decay for variable in fixed)
    assert all(traits_of(variable).decay for variable in (mixer.shift_c, mixer.s4d.c))
