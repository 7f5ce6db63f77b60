"""Linear attention and RetNet as layers of BaseConv (Zoology, Cor. H.22; Based, Prop. F.8).

H.22: a RetNet `z^n = gamma z^{n-1} + A[n]^T V[n], Out[n] = C[n] z^n` (Algorithm 6) is O(N log d) layers of BaseConv, by
Theorem H.21 on a circuit that computes one state after the other. F.8: a linear attention `(Q K^T) V` with the features
`[1, q, q o q]` of d' channels is O(log^2(N d)) layers. Both proofs construct a circuit; `retention_circuit` is the
first one. Both circuits have products of depth 2 only, since gamma is a constant: they need 5 layers by channels
(`circuits.py`) instead of O(N log d).

`retention` and `taylor_attention` (ours) need no circuit, as a decayed sum over time is a convolution. F features of
keys and queries, v channels of values, one channel per pair (f, j) of the state; all filters are `e_0` unless given:

| layer | W, b1 | h, b2 | output |
| --- | --- | --- | --- |
| 1 | reads the input | 0, 1 | keys, once for each j, in the channels (f, j); queries; values |
| 2 | values, at (f, j); 1 elsewhere | `e_0`, 0 | `k_f v_j`; queries; values |
| 3 | queries, at (f, j) | `gamma^i`, 0 | `q_f z_fj` |
| 4 | sums over f, and the output projection | 0, 1 | y |

So RetNet is 4 layers of width `d^2 + 2 d` at any length N; its filter is the only parameter that grows with N. The
Taylor features take two layers in front, one that copies both factors of every product, and one that multiplies: 6
layers of width `F v + F + v`, F = 1 + d' + d'^2 (or `2 F + 2 d'^2 + v`, the width of the first, if that is more).

Errors in the papers. Definition F.3 prints the features of keys as `[1, Q, K o K]`; the second is K. It has no mask, so
its sums go over all positions; here, as in Algorithm 6, over those up to n. F.8's inner width `max(d, d'^2)` cannot
hold the three matrices that its layers remember. Neither paper's BaseConv divides: `normalize=False`.
"""

import dataclasses

import numpy as np

from experiments.theory.base_conv_primitives import impulses
from experiments.theory.circuits import Circuit
from experiments.theory.parameters import base_conv
from jaxzoo.mixers.conv.base_conv import BaseConv
from jaxzoo.mixers.linear.ret_net import RetNet, RetNetConfig
from jaxzoo.mixers.linear.taylor_linear_attention import TaylorLinearAttention
from jaxzoo.utils.array_typing import Float


def retention(layer: RetNet, n_taps: int) -> list[BaseConv]:
    """Returns four layers, for `parameters.apply` on up to `n_taps` rows. Raises `ValueError` unless the config is
    `RetNetConfig.plain`."""
    _require_plain(layer)
    d, (q, k, v) = layer.config.width, _kernels(layer)
    gamma = layer.config.gamma
    assert gamma is not None
    read = np.concatenate([k, q, v], axis=1)
    return attend(read, d, gamma ** np.arange(n_taps), np.eye(d), width=d * d + 2 * d)


def taylor_attention(layer: TaylorLinearAttention, n_taps: int) -> list[BaseConv]:
    """Returns six layers, for `parameters.apply` on up to `n_taps` rows. Raises `ValueError` for several heads,
    normalization, decay or output scaling."""
    config = layer.config
    simple = config.n_heads == 1 and not (config.normalize or config.decay or config.output_scaling)
    config.require(
        "n_heads", simple, "must be 1, without normalize, decay and output_scaling", "BaseConv only multiplies"
    )
    d, n, values, (q, k, v) = config.width, config.feature_dim, config.value_width, _kernels(layer)
    features, pairs = 1 + n + n * n, n * n
    width = max(2 * features + 2 * pairs + values, features * values + features + values)
    first, second = np.divmod(np.arange(pairs), n)
    q = q / n**0.5
    # Features of keys, of queries, values, then the second factors of products of keys and of queries.
    at = np.cumsum([0, features, features, values, pairs, pairs])
    kernel, bias = np.zeros((width, width)), np.zeros(width)
    bias[[at[0], at[1]]] = 1
    parts = (k, k[:, first], q, q[:, first], v, k[:, second] / 2, q[:, second])
    places = (at[0] + 1, at[0] + 1 + n, at[1] + 1, at[1] + 1 + n, at[2], at[3], at[4])
    for part, place in zip(parts, places, strict=True):
        kernel[:d, place : place + part.shape[1]] = part
    gate, kept = np.zeros((width, width)), np.zeros(width)
    kept[: at[3]] = 1
    for block, factors in ((0, 3), (1, 4)):
        products = at[block] + 1 + n + np.arange(pairs)
        gate[at[factors] + np.arange(pairs), products] = 1
        kept[products] = 0
    nothing, all_ones, delta = np.zeros((1, width)), np.ones(width), impulses(1, width, 0)
    return [
        base_conv(kernel, bias, nothing, all_ones),
        base_conv(gate, kept, delta, np.zeros(width)),
        *attend(np.eye(at[3]), features, np.ones(n_taps), np.asarray(layer.out_proj.kernel[...]), width=width),
    ]


def retention_circuit(layer: RetNet, n: int) -> Circuit:
    """Builds the circuit of Corollary H.22 for n rows: one state after the other. Inputs and outputs are row by row."""
    _require_plain(layer)
    d, kernels, gamma = layer.config.width, _kernels(layer), layer.config.gamma
    assert gamma is not None
    circuit = Circuit(n * d)

    def sums(wires: list[int], factors: np.ndarray) -> int:
        total = circuit.sum(wires[0], wires[1], *factors[:2])
        for wire, factor in zip(wires[2:], factors[2:], strict=True):
            total = circuit.sum(total, wire, 1.0, factor)
        return total

    states: list[list[int]] = []
    for row in range(n):
        u = list(range(row * d, (row + 1) * d))
        q, k, v = ([sums(u, kernel[:, i]) for i in range(d)] for kernel in kernels)
        new = [[circuit.product(a, b) for b in v] for a in k]
        for i, old in enumerate(states):
            new[i] = [circuit.sum(z, x, gamma, 1.0) for z, x in zip(old, new[i], strict=True)]
        states = new
        circuit.outputs += [sums([circuit.product(q[i], states[i][j]) for i in range(d)], np.ones(d)) for j in range(d)]
    return circuit


def attend(
    read: Float[np.ndarray, "d c"],
    features: int,
    decay: Float[np.ndarray, "w"],
    out: Float[np.ndarray, "v d"],
    *,
    width: int,
) -> list[BaseConv]:
    """Returns the four layers of the module docstring; `read` maps the input to features of keys, then of queries, then
    values, and `out` (v, d) is the output projection."""
    values = read.shape[1] - 2 * features
    state = features * values  # channels (f, j); then queries; then values
    end = state + features + values
    f, j = np.divmod(np.arange(state), values)
    expand, unbind, ask, total = (np.zeros((width, width)) for _ in range(4))
    expand[: len(read), :state] = read[:, f]
    expand[: len(read), state:end] = read[:, features:]
    unbind[state + features + j, np.arange(state)] = 1
    ask[state + f, np.arange(state)] = 1
    total[:state, : out.shape[1]] = out[j]
    channel = np.arange(width)
    taps = np.where(channel < state, decay[:, None], 0.0)
    nothing, ones, zero = np.zeros((1, width)), np.ones(width), np.zeros(width)
    return [
        base_conv(expand, zero, nothing, ones),
        base_conv(unbind, ((channel >= state) & (channel < end)).astype(float), impulses(1, width, 0), zero),
        base_conv(ask, zero, taps, zero),
        base_conv(total, zero, nothing, ones),
    ]


def _kernels(layer: RetNet | TaylorLinearAttention) -> list[np.ndarray]:
    return [np.asarray(projection.kernel[...], np.float64) for projection in (layer.q_proj, layer.k_proj, layer.v_proj)]


def _require_plain(layer: RetNet) -> None:
    config = layer.config
    plain = RetNetConfig.plain(gamma=config.gamma or 0.5, d_model=config.d_model)
    same = config == dataclasses.replace(plain, init_std=config.init_std)
    config.require("gamma", same, "must be that of RetNetConfig.plain", "Algorithm 6 has only the recurrence")
