"""Softmax attention in NumPy and float64, query by query and head by head."""

import numpy as np

SLOPES = {1: [2**-8], 2: [2**-4, 2**-8], 3: [2**-4, 2**-8, 2**-2], 4: [2**-2, 2**-4, 2**-6, 2**-8]}
"""ALiBi slopes by number of heads."""


def rotated(x, *, base=10000.0, channels=None, fading=0, scale_base=16.0):
    """Half-rotation of the first `channels` of `x` (t, k) by complex numbers; xPos: fading 1 (queries) or -1 (keys)."""
    half, p = (x.shape[1] if channels is None else channels) // 2, np.arange(len(x))[:, None]
    pairs = (x[:, :half] + 1j * x[:, half : 2 * half]) * np.exp(1j * p * base ** (-np.arange(half) / half))
    pairs *= ((np.arange(half) / half + 0.4) / 1.4) ** (fading * p / scale_base)
    return np.concatenate([pairs.real, pairs.imag, x[:, 2 * half :]], axis=1)


def at_positions(config, x, fading):
    """Queries or keys of one head after their rotation, where the config has one."""
    if config.positions not in ("rotary", "xpos"):
        return x
    channels, fading = round(config.rotary_fraction * config.head_width), fading * (config.positions == "xpos")
    return rotated(x, base=config.rotary_base, channels=channels, fading=fading, scale_base=config.xpos_scale_base)


def attention_truth(config, p, x, seen=lambda i: range(i + 1)):
    """Outputs `(t, d)` of one document; `seen(i)`: indices of the keys that query `i` sees."""
    width, group = config.head_width, config.n_heads // config.kv_heads
    q, k, v = (x @ p[f"{name}.kernel"] + p.get(f"{name}.bias", 0) for name in ("q_proj", "k_proj", "v_proj"))
    y = np.zeros((len(x), config.n_heads * width))
    for h in range(config.n_heads):
        own, shared = (slice(j * width, (j + 1) * width) for j in (h, h // group))
        qh, kh = at_positions(config, q[:, own], 1), at_positions(config, k[:, shared], -1)
        for i in range(len(x)):
            j = np.array(seen(i))
            scores = kh[j] @ qh[i] / np.sqrt(width)
            if config.positions == "alibi":
                scores += SLOPES[config.n_heads][h] * (j - i)
            weights = np.exp(scores - scores.max())
            y[i, own] = weights / weights.sum() @ v[j, shared]
    return y @ p["out_proj.kernel"] + p.get("out_proj.bias", 0)
