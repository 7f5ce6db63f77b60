"""Primitives as layers of BaseConv: shift, add, remember, composition (Zoology, App. H.3, H.7 to H.11).

A layer of the paper's Algorithm 7, `y = (u W + b1) . (h * u + b2)` with matrices b1 and b2, is a `Layer` here, and a
tuple of layers a program. `BaseConvProgram` turns one into `BaseConv`s of form "paper" with long filters:

- b1 is a vector there. So the rows of every layer's b1 are additional channels of the input, which pass through all
  layers (gate 1, filter `e_0`) and are added by W: d' = (L + 1) d channels for L layers.
- b2 is a vector too, as in the paper except in the second layer of "add", `b1 . (e_0 * u + b2)`. There u is 0 where
  b1 is, and the layer the sum `u + b1 . b2`, which `h = 0, b2 = 1` gives.
- The convolution is causal: nothing moves up. Instead the window that is read moves down. The window of a layer with
  `delay` s is s rows below its input's, and a program with a total delay of D runs on N' = N + D rows, the last D of
  them 0 at first.

| statement | function | output | layers (paper) | delay |
| --- | --- | --- | --- | --- |
| H.7 | `linear`, `convolve`, `gate` | `u W`, `h * u`, `v . u` | 1 (1) | 0 |
| H.8 | `shift_down` | `y[i] = u[i - s]` | 1 (1) | 0 |
| H.8 | `shift_up` | `y[i] = u[i + s]` | 1 (3) | s |
| H.9 | `add` | `[1; S + x; 0]` of `[x; S; 0]` | 2 (2) | 0 |
| H.10 | `remember` | `[p . (h * x); v; 0]` of `[x; 0; v; 0]` | 2 (5) | n + s + m |
| H.11 | `f + g` | f, then g | sum (sum) | sum |

In H.10, x has n rows, h has s + 1, p has n + s, and v has m. The gate of the first layer must be 0 in m + r rows after
p, r = n + s: it is the printed one with t = 0, as the paper's t rows for the rest of `h * v` are where a copy of x is
gated off anyway.

Errors in the paper. H.8's filter has its tap at `s + 1` instead of s. Its shift up reverses the sequence by a circular
convolution with `e_0`, which is the identity; a circular `e_{N-s}` and a gate would shift up in one layer, and a moved
window needs none. H.10 shifts down by `n + m + s + t`, the delay, but up by `2 n + s + m + t`. Its copies reach row
`2 (n + m + s + t)`, twice as many rows as in the statement.
"""

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from experiments.theory.parameters import apply, base_conv
from jaxzoo.mixers.conv.base_conv import BaseConv
from jaxzoo.utils.array_typing import Array, Float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layer:
    """`y = (u W + b1) . (h * u + b2)`, causal, on d channels."""

    taps: Float[np.ndarray, "w d"]
    """h."""
    gate: Float[np.ndarray, "n d"]
    """b1 of the first n rows of the input's window; 0 elsewhere."""
    weight: Float[np.ndarray, "d d"] | None = None
    """W; None: 0."""
    bias: float | Float[np.ndarray, "d"] = 0.0
    """b2 of all rows."""
    delay: int = 0
    """Rows from the input's window down to the output's."""


Program = tuple[Layer, ...]
"""Layers in sequence; `f + g` is g after f (Lemma H.11)."""


def linear(weight: Float[np.ndarray, "d d"]) -> Program:
    """`u W`."""
    d = len(weight)
    return (Layer(weight=weight, taps=np.zeros((1, d)), gate=np.zeros((0, d)), bias=1.0),)


def convolve(taps: Float[np.ndarray, "w d"], n_rows: int) -> Program:
    """`h * u`, truncated to `n_rows` rows."""
    return (Layer(taps=taps, gate=np.ones((n_rows, taps.shape[1]))),)


def gate(factors: Float[np.ndarray, "n d"]) -> Program:
    """`v . u` with constant factors v."""
    return (Layer(taps=impulses(1, factors.shape[1], 0), gate=factors),)


def shift_down(n_rows: int, width: int, s: int) -> Program:
    """`y[i] = u[i - s]`, and 0 in the first s rows (Proposition H.8)."""
    return convolve(impulses(s + 1, width, s), n_rows)


def shift_up(n_rows: int, width: int, s: int) -> Program:
    """`y[i] = u[i + s]`, and 0 in the last s rows (Proposition H.8); the window moves."""
    kept = np.repeat(np.arange(n_rows) >= s, width).reshape(n_rows, width).astype(float)
    return (dataclasses.replace(gate(kept)[0], delay=s),)


def add(n: int, width: int) -> Program:
    """`[1; S + x; 0]` of `[x; S; 0]`, where x and S have n rows (Proposition H.9)."""
    ones, nothing = np.ones((n, width)), np.zeros((n, width))
    summed = Layer(taps=impulses(n + 1, width, 0, n), gate=np.concatenate([nothing, ones]))
    return summed, Layer(weight=np.eye(width), taps=np.zeros((1, width)), gate=ones, bias=1.0)


def remember(h: Float[np.ndarray, "w d"], p: Float[np.ndarray, "r d"], *, m: int) -> Program:
    """`[p . (h * x); v; 0]` of `[x; 0; v; 0]` (Proposition H.10). h has w = s + 1 rows, p r = n + s rows, where x has
    n; v has m rows and begins at row r."""
    (w, d), r = h.shape, len(p)
    half = r + m
    nothing, ones = (np.full((half, d), value) for value in (0.0, 1.0))
    first = impulses(half + 1, d, half)
    first[:w] += h
    return (
        Layer(taps=first, gate=np.concatenate([p, nothing, ones[:m]])),
        Layer(taps=impulses(half + 1, d, 0, half), gate=np.concatenate([nothing, ones]), delay=half),
    )


def impulses(n_taps: int, width: int, *at: int) -> Float[np.ndarray, "w d"]:
    """Taps that are 1 at the given lags, in all channels."""
    taps = np.zeros((n_taps, width))
    taps[list(at)] = 1
    return taps


class BaseConvProgram:
    """A program as a stack of `BaseConv`s of width d' = (L + 1) d, the data, then the gates of each layer, for
    sequences of `n_rows` rows. `delay` is D, the rows from the input's window to the output's."""

    def __init__(self, program: Sequence[Layer], n_rows: int) -> None:
        self.n_rows: int = n_rows
        self.width: int = program[0].taps.shape[1]
        self.delay: int = sum(layer.delay for layer in program)
        self.layers: list[BaseConv] = []
        gates, first = np.zeros((len(program), n_rows + self.delay, self.width)), 0
        d, width = self.width, (len(program) + 1) * self.width
        data, passed = np.arange(d), np.arange(width) >= d
        for i, layer in enumerate(program):  # data in the first d channels, layer i's gates in those from (i + 1) d on
            kernel, taps = np.zeros((width, width)), impulses(len(layer.taps), width, 0)
            kernel[(i + 1) * d + data, data] = 1
            if layer.weight is not None:
                kernel[:d, :d] = layer.weight
            taps[:, :d] = layer.taps
            conv_bias = np.zeros(width)
            conv_bias[:d] = layer.bias
            self.layers.append(base_conv(kernel, passed.astype(float), taps, conv_bias))
            gates[i, first : first + len(layer.gate)] = layer.gate
            first += layer.delay
        self._gates = jnp.asarray(gates.transpose(1, 0, 2).reshape(1, len(gates[0]), -1), jnp.float32)

    def __call__(self, u: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        """Returns the window of `n_rows` rows that the program outputs."""
        x = jnp.pad(u, ((0, 0), (0, self.delay), (0, 0)))
        x = jnp.concatenate([x, jnp.broadcast_to(self._gates, (len(u), *self._gates.shape[1:]))], axis=2)
        return apply(self.layers, x)[:, self.delay :, : self.width]
