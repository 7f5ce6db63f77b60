"""Primitives of Based, and MQAR of one-hot tokens, as layers of BaseConv (Based, Thm F.30, F.31 to F.47).

| statement | function | output | layers (paper) |
| --- | --- | --- | --- |
| F.38 | `shift_down`, `shift_up` of `base_conv_primitives.py` | | 1, 1 (1, 3) |
| F.31, F.39 | `repeat_columns` | each of the first columns r times | 1 (1) |
| F.32, F.40 | `repeat_matrix` | the first rows r times | 1 (1) |
| F.33, F.41 | `cumulative_sum` | sums of all rows so far | 1 (1) |
| F.34, F.35, F.42, F.43 | `sum_column_blocks` | the sum of all blocks of B columns; B = 1 sums all columns | 1 (1) |
| F.36, F.44 | `one_hot` | one-hot numbers of binary ones | 2 + ceil(log b) (ceil(log log N) + O(1)) |
| F.37, F.45 to F.47 | `remember` | f of some rows, the rows around them unchanged | L + 3 (8 for L = 1) |

The paper moves data between rows. Here `one_hot` has a channel for each number and bit, whose products are a tree, and
`remember` keeps the other rows in a second copy of the channels.

**F.30** says that `O(log log max(N, d))` layers solve MQAR of one-hot tokens (at most one key matches a query). The
proof writes the place j of the matching key in binary, makes it one-hot, and multiplies by all values, which it brings
into every row. `recall` (ours) writes the matching value in binary instead, as a linear attention whose values are the
bits: 4 layers, and `one_hot`, 6 + ceil(log ceil(log(d + 1))) in all, of width about `d log d`, at any length N. Two
consequences that the paper does not draw:

- If the output may be binary, as in Theorem 3.2, or the width d^2, 4 layers are enough (`recall_at_once`).
- So MQAR of one-hot tokens needs O(1) layers, and F.30 does not show that the lower bounds are attained: F.29 gives one
  layer for p = 1, and F.14 is about `d <= 2^((log N)^(1 - epsilon))`, less than the N channels of one-hot tokens.

Errors in the paper. F.44 writes numbers of [1, N'] with ceil(log N') bits, which are too few for N' = 2^k, and needs `2
N' ceil(log N')` rows, twice the rows of its block in F.30. F.45 asks for `3 n + 3 m + 2 s + 2 t` rows, which in F.30,
where n, m and t are z or more, exceed the 4 z that are there; O(z) is right. F.39 prints W transposed. The C of F.30
lets a query match the key of its own row (j <= i), unlike the MQAR of F.4 (j < i); here as in F.30.
"""

import numpy as np

from experiments.theory.base_conv_primitives import Layer, Program, convolve, gate, impulses, linear
from experiments.theory.linear_attention_as_base_conv import attend
from experiments.theory.parameters import base_conv
from jaxzoo.mixers.conv.base_conv import BaseConv
from jaxzoo.utils.array_typing import Float, Int


def repeat_columns(n_columns: int, r: int) -> Program:
    """Each of the first `n_columns` columns r times, for `n_columns * r` channels."""
    return linear(np.repeat(np.eye(n_columns * r)[:, :n_columns], r, axis=1))


def repeat_matrix(n_rows: int, r: int, width: int) -> Program:
    """The first `n_rows` rows r times; the rows after them are 0."""
    return convolve(impulses(n_rows * (r - 1) + 1, width, *range(0, n_rows * r, n_rows)), n_rows * r)


def cumulative_sum(n_rows: int, width: int) -> Program:
    """Each row is the sum of all rows up to it."""
    return convolve(np.ones((n_rows, width)), n_rows)


def sum_column_blocks(width: int, block: int) -> Program:
    """The first `block` columns are the sum of all blocks of columns, the others 0."""
    weight = np.zeros((width, width))
    weight[np.arange(width), np.arange(width) % block] = 1
    return linear(weight)


def remember(f: Program, rows: range, n_rows: int) -> Program:
    """Applies f to some rows, as if they were the first ones, and keeps the others; f may write the rows after them
    that are 0. The program has twice the channels of f; the second half is 0 at the start."""
    d = f[0].taps.shape[1]
    inside = np.zeros((n_rows, 2 * d))
    inside[rows.start : rows.stop, :d] = 1
    inside[:, d:] = 1 - inside[:, :d]
    copy, total = np.zeros((2 * d, 2 * d)), np.zeros((2 * d, 2 * d))
    copy[:d] = np.tile(np.eye(d), 2)
    total[:, :d] = np.tile(np.eye(d), (2, 1))
    layers = []
    for layer in f:
        n_taps = max(len(layer.taps), layer.delay + 1)
        taps, weight = impulses(n_taps, 2 * d, layer.delay), np.zeros((2 * d, 2 * d))
        taps[:, :d] = 0
        taps[: len(layer.taps), :d] = layer.taps
        gates = np.zeros((n_rows + layer.delay, 2 * d))  # counted from the input's window
        gates[layer.delay :, d:] = 1
        gates[rows.start : rows.start + len(layer.gate), :d] = layer.gate[: len(gates) - rows.start]
        weight[:d, :d] = 0 if layer.weight is None else layer.weight
        bias = np.concatenate([np.broadcast_to(layer.bias, d), np.zeros(d)])
        layers.append(Layer(taps=taps, gate=gates, weight=weight, bias=bias, delay=layer.delay))
    return linear(copy) + gate(inside) + tuple(layers) + linear(total)


def one_hot(n: int, width: int) -> list[BaseConv]:
    """Returns layers, for `parameters.apply`, that map the b bits of numbers 0 to n in the first channels, most
    significant first, to n one-hot channels; 0 becomes zeros. `width` is at least n b."""
    bits = binary(np.arange(1, n + 1), n)
    b = bits.shape[1]
    channel = np.arange(n * b).reshape(n, b)
    kernel, complement = np.zeros((width, width)), np.zeros(width)
    kernel[np.tile(np.arange(b), n), channel.reshape(-1)] = (2 * bits - 1).reshape(-1)
    complement[: n * b] = 1 - bits.reshape(-1)
    layers = [base_conv(kernel, complement, np.zeros((1, width)), np.ones(width))]
    while b > 1:
        half = (b + 1) // 2
        kernel, alone = np.zeros((width, width)), np.zeros(width)
        kernel[channel[:, half:b], channel[:, : b - half]] = 1
        alone[channel[:, b - half : half]] = 1
        layers.append(base_conv(kernel, alone, impulses(1, width, 0), np.zeros(width)))
        b = half
    kernel = np.zeros((width, width))
    kernel[channel[:, 0], np.arange(n)] = 1
    return [*layers, base_conv(kernel, np.zeros(width), np.zeros((1, width)), np.ones(width))]


def binary(numbers: Int[np.ndarray, "n"], largest: int) -> Int[np.ndarray, "n b"]:
    """Returns the ceil(log(largest + 1)) bits of numbers, most significant first."""
    return numbers[:, None] >> np.arange(largest.bit_length())[::-1] & 1


def recall(d: int, n_taps: int) -> list[BaseConv]:
    """Returns layers that solve MQAR of d tokens on up to `n_taps` rows `[K, V, Q]` of one-hot tokens or zeros (Theorem
    F.30): the one-hot value in the first d channels of each row."""
    bits = binary(np.arange(1, d + 1), d)
    width = max(d * bits.shape[1] + d + bits.shape[1], 3 * d)
    return [*attend(_read(bits), d, np.ones(n_taps), np.eye(bits.shape[1]), width=width), *one_hot(d, width)]


def recall_at_once(d: int, n_taps: int) -> list[BaseConv]:
    """Returns four layers of width `d^2 + 2 d` with the output of `recall`."""
    return attend(_read(np.eye(d)), d, np.ones(n_taps), np.eye(d), width=max(d * d + 2 * d, 3 * d))


def _read(values: Float[np.ndarray, "d v"]) -> Float[np.ndarray, "3d c"]:
    """Maps a row `[K, V, Q]` to keys, queries and the given form of values."""
    d, v = values.shape
    read = np.zeros((3, d, 2 * d + v))
    read[0, :, :d] = read[2, :, d : 2 * d] = np.eye(d)
    read[1, :, 2 * d :] = values
    return read.reshape(3 * d, -1)
