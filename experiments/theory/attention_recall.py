"""Attention solves MQAR with parameters independent of the length (Zoology, Prop. 4.3 and H.27).

The problem (App. H.7.1): triples `(k_0, v_0, q_0), .., (k_{n-1}, v_{n-1}, q_{n-1})` of tokens out of c; at each query
`q_i` output the `v_j` with `k_j = q_i` and j < i, or nothing if there is none. Equal keys have equal values. The
encoding (Remark H.26) has three rows per triple, and d = 3 c channels, a block of c for each role:

    u[3 i] = [k_i : 0 : 0],    u[3 i + 1] = [0 : v_i : 0],    u[3 i + 2] = [0 : 0 : q_i]        (one-hot)

The proof has two layers of attention without softmax, `O = (Q K^T + B) V`. In the first `Q = K = 0` and B, a fixed
"linear bias", shifts rows up: the value joins its key, `[k_i : v_i : 0]`. In the second `Q K^T` compares queries with
keys, and V returns the value. `build` does this with two `Attention`s, which are causal and have a softmax:

- *Layer 1* cannot look ahead, so it moves key and value down, by 3 and 2 rows, onto the key's row of the next triple:
  `u[3 i] = [k_i : v_{i-1} : 2 k_{i-1}]`. Two heads of rotary positions, whose queries and keys are constants
  (`qkv_bias`), peak at these distances. That makes j < i strict; the proof, without a mask, finds `k_j` for any j.
- *Layer 2* compares third blocks. Queries see themselves with score s, and a matching key, whose factor is 2, with 2 s.
  So a query without a match attends to rows of queries, which hold no value, and gets 0: what the proof gets from sums.
- A softmax always attends somewhere: the sequence begins with an empty triple, rows of zeros, for layer 1.

Sharpness. Layer 1 scores a distance m with `s_1 sum_f cos(theta_f (m - m_0))`, which falls by at least `gap` (computed
for all m below N) from its peak. With `s_1 = log(N / error) / gap` the weight off the peak sums to at most
`error`; so does that of layer 2 with `s_2 = log(N / error) / (1 - 4 error)`, and each entry of the output is within
`2 error` of the one-hot value, or of 0. N is `max_length`, in rows; the number of parameters, 36 c^2 + 6 c for even
c >= 16, does not depend on it, their values do through log(N).
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.theory.parameters import write, zeros
from jaxzoo.mixers import AttentionConfig
from jaxzoo.mixers.attention.softmax_attention import Attention
from jaxzoo.utils.array_typing import Array, Float, Int

KEY_DELAY, VALUE_DELAY = 3, 2
"""Rows from a key, and from a value, to the key of the next triple."""
KEY_FACTOR = 2
"""Factor of a delayed key against a query, which also matches itself."""
MIN_ROTATED = 16
"""Fewest channels of a rotary head: eight frequencies, enough for a unique peak."""
NOTHING = -1


class RecallLayers(NamedTuple):
    """Two layers of attention; `u + first(u)` is the input of the second."""

    first: Attention
    second: Attention

    def __call__(self, u: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        """Returns the one-hot value in the first block of every query's row, or zeros."""
        return self.second(u + self.first(u))


def build(n_tokens: int, max_length: int, *, error: float = 1e-3) -> RecallLayers:
    """Builds the two layers, for `n_tokens` tokens c and up to `max_length` rows N, the empty triple's included. Raises
    `ValueError` unless `error` is in (0, 1/4)."""
    if not 0 < error < 0.25:
        raise ValueError(f"build: error={error} must be above 0 and below 1/4; 1e-3 is the default")
    sharpness = math.log(max_length / error)
    return RecallLayers(_delays(n_tokens, max_length, sharpness), _lookup(n_tokens, sharpness / (1 - 4 * error)))


def encode(
    keys: Int[np.ndarray, "b n"], values: Int[np.ndarray, "b n"], queries: Int[np.ndarray, "b n"], n_tokens: int
) -> Float[Array, "b t d"]:
    """Returns the rows of Remark H.26, `t = 3 (n + 1)`, after an empty triple."""
    b, n = keys.shape
    u = np.zeros((b, n + 1, 3, 3, n_tokens), np.float32)
    row, triple = np.arange(b)[:, None], np.arange(1, n + 1)[None, :]
    for role, tokens in enumerate((keys, values, queries)):
        u[row, triple, role, role, tokens] = 1
    return jnp.asarray(u.reshape(b, 3 * (n + 1), 3 * n_tokens))


def answers(outputs: Float[Array, "b t d"]) -> Int[np.ndarray, "b n"]:
    """Reads the token of each query's row, or `NOTHING`."""
    width = outputs.shape[-1] // 3
    rows = np.asarray(jax.device_get(outputs))[:, 5::3, :width]
    return np.where(rows.max(-1) > 0.5, rows.argmax(-1), NOTHING)


def _delays(n_tokens: int, max_length: int, sharpness: float) -> Attention:
    """Layer 1: one head delays keys into the third block, one delays values."""
    c, width = n_tokens, max(n_tokens + n_tokens % 2, MIN_ROTATED)
    config = AttentionConfig(d_model=3 * c, n_heads=2, head_dim=width, positions="rotary", qkv_bias=True)
    layer = zeros(Attention, config)
    frequencies = config.rotary_base ** (-2 * np.arange(width // 2) / width)
    falls = (1 - np.cos(np.outer(np.arange(1, max_length + 1), frequencies))).sum(1)  # of the score, at each m - m_0
    amplitude = sharpness / float(falls.min()) * width**0.5
    queries = np.concatenate([np.ones(width // 2), np.zeros(width // 2)])
    turns = [frequencies * delay for delay in (KEY_DELAY, VALUE_DELAY)]
    keys = np.concatenate([part for turn in turns for part in (np.cos(turn), np.sin(turn))])
    write(layer.q_proj.bias, np.tile(queries, 2))
    write(layer.k_proj.bias, amplitude * keys)
    values, out = np.zeros((3, c, 2, width)), np.zeros((2, width, 3, c))
    values[0, :, 0, :c] = values[1, :, 1, :c] = np.eye(c)
    out[0, :c, 2] = KEY_FACTOR * np.eye(c)
    out[1, :c, 1] = np.eye(c)
    write(layer.v_proj.kernel, values.reshape(3 * c, 2 * width))
    write(layer.out_proj.kernel, out.reshape(2 * width, 3 * c))
    return layer


def _lookup(n_tokens: int, sharpness: float) -> Attention:
    """Layer 2: compares third blocks, returns second blocks in the first."""
    c = n_tokens
    layer = zeros(Attention, AttentionConfig(d_model=3 * c, n_heads=1, head_dim=c))
    first, second, third = np.eye(3 * c).reshape(3 * c, 3, c).transpose(1, 0, 2)
    write(layer.q_proj.kernel, third)
    write(layer.k_proj.kernel, sharpness * c**0.5 * third)
    write(layer.v_proj.kernel, second)
    write(layer.out_proj.kernel, first.T)
    return layer
