"""Mamba-3 against its recurrence in float64, token by token, SISO and MIMO; its errors."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.mixers.ssm.mamba3 import Mamba3Config, Mamba3State
from tests.mixers.float64_truth import compare, sigmoid, softplus
from tests.pallas_kernels.shared import slow


def start(config):
    def empty(p, rows):
        h, r, n = config.heads, config.ranks, config.d_state
        s = jnp.zeros((rows, h, n, config.head_width))
        return Mamba3State(jnp.zeros((rows, h, config.n_angles)), s, jnp.zeros((rows, h, r, n)), s[:, :, 0])

    return empty


def turn(x, angle, mimo):
    """Pairs of channels as complex numbers, times exp(i angle)."""
    half = x.shape[-1] // 2
    first, second = (x[..., :half], x[..., half:]) if mimo else (x[..., 0::2], x[..., 1::2])
    y = (first + 1j * second) * jnp.exp(1j * jnp.pad(angle, [(0, 0), (0, half - angle.shape[-1])]))[:, None]
    if mimo:
        return jnp.concatenate([y.real, y.imag], axis=-1)
    return jnp.stack([y.real, y.imag], axis=-1).reshape(x.shape)


def truth(config):
    rms = lambda x: x / jnp.sqrt((x**2).mean(-1, keepdims=True) + config.norm_eps)  # noqa: E731
    h, r, n, width, mimo = config.heads, config.ranks, config.d_state, config.head_width, config.rank is not None

    def token(p, u, state):
        rows = len(u)
        parts = jnp.split(u @ p["in_proj.kernel"], np.cumsum(config.splits)[:-1].tolist(), axis=-1)
        z, x, b, c, dt, a, share, angles = parts
        z, x = z.reshape(rows, h, width), x.reshape(rows, h, width)
        b, c = (y.reshape(rows, r, config.n_groups, n) for y in (b, c))
        dt, share = softplus(dt + p["dt_bias"]), sigmoid(share)
        heavy = jnp.where(a > 0, 1 + a, 1 / (1 - jnp.minimum(a, 0)))
        rate = jnp.maximum(softplus(a) if config.activation == "softplus" else heavy, 1e-4)
        out, after = [], []
        for i in range(h):
            group = i * config.n_groups // h
            angle = state.angle[:, i] + jnp.pi * jnp.tanh(angles) * dt[:, i, None]
            angle = angle - 2 * jnp.pi * jnp.floor(angle / (2 * jnp.pi))
            k = turn(rms(b[:, :, group]) * p["b_norm.scale"] + p["b_bias"][i], angle, mimo)
            q = turn(rms(c[:, :, group]) * p["c_norm.scale"] + p["c_bias"][i], angle, mimo)
            up = p["mimo_x"][i] if mimo else jnp.ones((1, width))
            v, last_v = x[:, i, None] * up, state.v[:, i, None] * up
            decay, step, own = jnp.exp(-rate[:, i] * dt[:, i]), dt[:, i], share[:, i]
            s = decay[:, None, None] * state.s[:, i]
            s = s + ((1 - own) * step * decay)[:, None, None] * jnp.einsum("brk,brv->bkv", state.k[:, i], last_v)
            s = s + (own * step)[:, None, None] * jnp.einsum("brk,brv->bkv", k, v)
            y = jnp.einsum("brk,bkv->brv", q, s) + p["d"][i] * v
            if config.normalize:
                y = rms(y) * p["norm.scale"][i * width : (i + 1) * width]
            gate = z[:, i, None] * (p["mimo_z"][i] if mimo else 1.0)
            y = y * gate * sigmoid(gate) * (p["mimo_o"][i] if mimo else 1.0)
            out.append(y.sum(1))
            after.append((angle, s, k, x[:, i]))
        return jnp.concatenate(out, axis=-1) @ p["out_proj.kernel"], Mamba3State(
            *(jnp.stack(y, axis=1) for y in zip(*after, strict=True))
        )

    return token


@pytest.mark.full
@pytest.mark.parametrize(
    "options",
    [
        {"rank": 2, "normalize": True, "rope_fraction": 0.7},
        {},
        slow({"rope_fraction": 1.0, "activation": "softplus", "normalize": True}),
    ],
)
def test_equation(options):
    """Kills: keys of the last token without its decay or of another document, a rank that does not see the others of a
    token, a bias after the rotation, pairs of MIMO in SISO, more turning channels, angles that are not scaled by dt, a
    skip of one rank, a norm after the gate or over all heads."""
    config = Mamba3Config(d_model=6, d_state=6, head_dim=3, n_groups=2, norm_eps=1e-3, **options)
    compare(config, start(config), truth(config))


def test_config_errors():
    """Kills a state whose last channel has no partner, and one that nothing turns."""
    with pytest.raises(ValueError, match="d_state=5 must be even"):
        Mamba3Config(d_model=6, d_state=5)
    with pytest.raises(ValueError, match=r"rope_fraction=0.1 is too small"):
        Mamba3Config(d_model=6, d_state=6, rope_fraction=0.1)
