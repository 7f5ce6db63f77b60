"""Pieces of independent references in NumPy and float64, and the check of a mixer against one."""

import numpy as np

from tests.mixers.moved import assert_computes

T = 9
"""Tokens of an equation test."""


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def softplus(x):
    return np.log1p(np.exp(x))


def softmax(x):
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def rms(x, eps):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)


def conv(x, taps):
    """A causal convolution per channel, token by token."""
    y = np.zeros_like(x)
    for i in range(x.shape[1]):
        for a in range(min(i + 1, len(taps))):
            y[:, i] += taps[a] * x[:, i - a]
    return y


QK_ACTIVATIONS = {"silu": silu, "relu": lambda x: np.maximum(x, 0), "elu": lambda x: np.where(x > 0, x + 1, np.exp(x))}


def delta_heads(config, p, x, log_decay):
    """o `(b, t, h, v)` of a mixer of the delta rule; log_decay (b, t, h, k or 1), head by head."""
    b, t, _ = x.shape
    k_dim, v_dim, group = config.head_key, config.head_value, config.heads // config.n_heads
    projected = np.concatenate([x @ p[f"{name}_proj.kernel"] for name in "qkv"], axis=-1)
    convolved = conv(projected, p["conv.taps"]) + p.get("conv.bias", 0)
    activation, by_sum = (
        QK_ACTIVATIONS[getattr(config, "qk_activation", "silu")],
        getattr(config, "qk_norm", "l2") == "sum",
    )
    qk, v = convolved[..., : 2 * config.keys], convolved[..., 2 * config.keys :]
    convolved = np.concatenate([activation(qk), silu(v)], axis=-1)
    beta = sigmoid(x @ p["beta_proj.kernel"]) * (2 if config.negative else 1)
    o = np.zeros((b, t, config.heads, v_dim))
    for h in range(config.heads):
        start = h // group * k_dim
        q, k = (convolved[..., first + start : first + start + k_dim] for first in (0, config.keys))
        v = convolved[..., 2 * config.keys + h * v_dim : 2 * config.keys + (h + 1) * v_dim]
        length = lambda y: y.sum(-1, keepdims=True) if by_sum else np.sqrt((y**2).sum(-1, keepdims=True) + 1e-6)  # noqa: E731
        q, k = (y / length(y) for y in (q, k))
        s = np.zeros((b, k_dim, v_dim))
        for i in range(t):
            s = np.exp(log_decay[:, i, h])[..., None] * s
            missing = v[:, i] - np.einsum("bk,bkv->bv", k[:, i], s)
            s = s + beta[:, i, h, None, None] * k[:, i, :, None] * missing[:, None]
            o[:, i, h] = np.einsum("bk,bkv->bv", q[:, i], s) / np.sqrt(k_dim)
    return o


def check(mixer, expected, x):
    """All tokens at once are within rounding of the reference; the contract asks whether a stream gives the same."""
    assert_computes(mixer, x, expected, 2e-5)


def inputs(d, seed=0):
    return np.random.default_rng(seed).normal(size=(2, T, d))
