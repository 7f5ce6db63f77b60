"""Arithmetic circuits as layers of BaseConv with wires in rows: the construction of Zoology's Theorem H.21.

Theorem H.21: an (n d, s, Delta, w)-circuit is an (n, Delta', d, N', d')-BaseConv with Delta' = O(Delta log w) layers,
N' = O(w) rows and d' = d channels. Here d = 1: row i holds wire i. A level of the circuit (`circuits.schedule`) is

1. *routing*: both inputs of gate j come to rows 2 j and 2 j + 1, and kept wires after them. The proof calls this map a
   sparse matrix, which is a product of butterfly factors (Corollary H.20). We write them down: a Benes network brings
   every wire that is read to the first of its places, log w shifts by powers of 2 copy it to the others, and a second
   Benes network brings the copies to their rows. Stages that move nothing are left out.
2. *gates*: `a x + b y` is one more factor of size 2, and `x y` one layer whose gate is the row and whose convolution is
   the row before it (in place of the "remember" primitive, which would need a gate made of data in other rows).

A butterfly factor, `D_1 u + D_2 (u moved up by s) + D_3 (u moved down by s)` (Proposition H.15), takes two layers: `W`
copies u into three channels, then each is shifted by its filter and gated; the next `W` adds the three. So

    layers <= 2 (2 (2 log w - 1) + log w + 1) + 1 = 10 log w - 1    for each of at most 2 Delta levels,  w a power of 2.

Routing and sums alone are the linear circuits of Corollary H.20; `kaleidoscope.py` has the lemmas before it.

Deviations. b1 of our module is a vector, and the gates `D_i` are rows: w more channels hold the row's number, one-hot,
and W reads the gates from them, so d' = 3 + w. Our convolution is causal, so nothing moves up: the window of w rows is
read s rows lower after each factor that moves something up, and N' = O(Delta w) where the paper's circular
convolutions need O(w). `w` is the number of rows: the least power of 2 that holds two inputs for each gate, and what is
kept.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from experiments.theory.circuits import Circuit, Level, schedule
from experiments.theory.parameters import zeros
from jaxzoo.mixers import BaseConvConfig
from jaxzoo.mixers.conv.base_conv import BaseConv
from jaxzoo.utils.array_typing import Array, Bool, Float, Int

DATA = 3
"""Channels that hold the three terms of a factor."""


class Factor(NamedTuple):
    """`same . u + up . (u moved up by s) + down . (u moved down by s)`."""

    s: int
    same: Float[np.ndarray, "n"]
    up: Float[np.ndarray, "n"]
    down: Float[np.ndarray, "n"]

    @property
    def moves(self) -> bool:
        """Whether it is not the identity."""
        return bool(self.up.any() or self.down.any() or (self.same != 1).any())

    def __call__(self, u: Float[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
        """Applies the factor to a vector."""
        rest = np.zeros(self.s)
        above, below = np.concatenate([u[self.s :], rest]), np.concatenate([rest, u[: len(u) - self.s]])
        return self.same * u + self.up * above + self.down * below


def route(sources: Int[np.ndarray, "n"]) -> list[Factor]:
    """Returns factors of the map `y[i] = u[sources[i]]`, arbitrary if `sources[i]` is -1; n is a power of 2."""
    n = len(sources)
    order = np.argsort(sources, kind="stable")  # rows by what they read
    read = sources[order]
    is_first = np.diff(read, prepend=-2) != 0
    first = np.maximum.accumulate(np.where(is_first, np.arange(n), 0))
    gather = np.full(n, -1)  # first permutation: every source to the first of its places
    gather[is_first] = read[is_first]
    unused = iter(sorted(set(range(n)) - set(gather.tolist())))
    gather = np.array([next(unused) if source < 0 else source for source in gather])
    scatter = np.argsort(order, kind="stable")  # second: from place to row
    # Every row copies the row that is `distance` above it; all rows between the two read the same one.
    distance, copies = np.arange(n) - first, []
    for i in range(int(math.log2(n))):
        copied = ((distance >= 2**i) & (distance < 2 ** (i + 1))).astype(float)
        copies.append(Factor(2**i, 1 - copied, np.zeros(n), copied))
    return [factor for factor in (*permute(gather), *copies, *permute(scatter)) if factor.moves]


def permute(sources: Int[np.ndarray, "n"]) -> list[Factor]:
    """Returns the Benes network of a permutation `y[i] = u[sources[i]]`: `2 log n - 1` factors."""
    n = len(sources)
    half = n // 2
    if n == 1:
        return []
    if n == 2:
        return [_swaps(1, np.array([sources[0] == 1]))]
    upper = _colors(sources)  # for each output, whether it comes through the upper network
    swap_out = ~upper[:half]
    by_input = np.zeros(n, bool)
    by_input[sources] = upper
    swap_in = ~by_input[:half]
    inner = []
    for is_upper in (True, False):
        rows = np.where(upper[:half] == is_upper, np.arange(half), np.arange(half) + half)
        inner.append(permute(sources[rows] % half))
    joined = [
        Factor(a.s, *(np.concatenate(parts) for parts in zip(a[1:], b[1:], strict=True)))
        for a, b in zip(*inner, strict=True)
    ]
    return [_swaps(half, swap_in), *joined, _swaps(half, swap_out)]


def _colors(sources: Int[np.ndarray, "n"]) -> Bool[np.ndarray, "n"]:
    """Colors the outputs so that two outputs, and two inputs, half of the rows apart differ."""
    n, half = len(sources), len(sources) // 2
    outputs = np.argsort(sources)
    colors = np.zeros(n, bool)
    done = np.zeros(n, bool)
    for start in range(n):
        output = start
        while not done[output]:
            partner = (output + half) % n
            colors[output], colors[partner] = True, False
            done[output] = done[partner] = True
            output = outputs[(sources[partner] + half) % n]
    return colors


def _swaps(s: int, swapped: Bool[np.ndarray, "m"]) -> Factor:
    """Swaps rows i and i + s of the marked i, in blocks of 2 s rows."""
    swap = swapped.astype(float)
    still, none = np.concatenate([1 - swap, 1 - swap]), np.zeros_like(swap)
    return Factor(s, still, np.concatenate([swap, none]), np.concatenate([none, swap]))


class _Layers:
    """Parameters of a stack of BaseConvs during construction."""

    def __init__(self, rows: int) -> None:
        self.rows, self.width, self.delay = rows, DATA + rows, 0
        self.kernels: list[np.ndarray] = []
        self.conv_biases: list[np.ndarray] = []
        self.lags: list[np.ndarray] = []

    def add(
        self,
        *,
        mix: np.ndarray | None = None,
        gates: np.ndarray | None = None,
        lags: Sequence[int | None] = (None,) * DATA,
        delay: int = 0,
    ) -> None:
        """Adds a layer `(u mix + gates) . (h * u)`, or `u mix` without lags. `mix` (3, 3) is W of the data, `gates` (w,
        3) apply to the rows of the window, `lags` gives the one tap of each data channel's filter, and the window moves
        down by `delay` rows."""
        kernel, conv_bias = np.zeros((self.width, self.width)), np.zeros(self.width)
        if mix is not None:
            kernel[:DATA, :DATA] = mix
        if gates is not None:
            kernel[DATA:, :DATA] = gates
        if all(lag is None for lag in lags):
            conv_bias[:DATA] = 1
        self.kernels.append(kernel)
        self.conv_biases.append(conv_bias)
        self.lags.append(np.array([-1 if lag is None else lag for lag in [*lags, *[delay] * self.rows]]))
        self.delay += delay

    def factor(self, factor: Factor) -> None:
        """Adds two layers: copies of the sum of the three channels, then shifts and gates."""
        delay = factor.s if factor.up.any() else 0
        self.add(mix=np.ones((DATA, DATA)), delay=delay)
        self.add(gates=np.stack(factor[1:], axis=1), lags=(delay, delay - factor.s, delay + factor.s))

    def products(self, n: int, n_kept: int) -> None:
        """Adds three layers: row 2 j + 1 becomes its product with the row above, for j < n; kept rows stay."""
        row = np.arange(self.rows)
        kept = ((row >= 2 * n) & (row < 2 * n + n_kept)).astype(float)
        product = ((row < 2 * n) & (row % 2 == 1)).astype(float)
        none, second = np.zeros_like(kept), np.zeros((DATA, DATA))
        second[0, 1] = 1
        self.add(mix=np.ones((DATA, DATA)))
        self.add(mix=second, gates=np.stack([kept, none, none], axis=1), lags=(0, 1, 0))
        self.add(gates=np.stack([np.ones_like(kept), product, none], axis=1), lags=(0, 0, 0))


class RowLayers:
    """L = `n_layers` layers of BaseConv of width d' on sequences of `rows + delay` rows, whose data are one channel."""

    def __init__(self, layers: _Layers, n_outputs: int) -> None:
        layers.add(mix=np.ones((DATA, DATA)))
        self.n_layers: int = len(layers.kernels)
        self.rows: int = layers.rows
        self.width: int = layers.width
        self.delay: int = layers.delay
        self._n_outputs = n_outputs
        # The definition of a layer, and the parameters of all, stacked.
        n_taps = 1 + max(int(lags.max()) for lags in layers.lags)
        config = BaseConvConfig(d_model=self.width, filter="long", n_taps=n_taps, form="paper")
        taps = np.zeros((self.n_layers, n_taps, self.width), np.float32)
        for i, lags in enumerate(layers.lags):
            has_tap = np.flatnonzero(lags >= 0)
            taps[i, lags[has_tap], has_tap] = 1
        bias = np.tile(np.arange(self.width) >= DATA, (self.n_layers, 1))
        projection = {"kernel": np.stack(layers.kernels), "bias": bias}
        values = {"projection": projection, "taps": taps, "conv_bias": np.stack(layers.conv_biases)}
        self._graph = nnx.graphdef(zeros(BaseConv, config))
        self._parameters = nnx.State(jax.tree.map(lambda value: jnp.asarray(value, jnp.float32), values))

    def __call__(self, x: Float[Array, "b n"]) -> Float[Array, "b m"]:
        b, n = x.shape
        u = jnp.zeros((b, self.rows + self.delay, self.width), x.dtype)
        u = u.at[:, :n, 0].set(x).at[:, : self.rows, DATA:].set(jnp.eye(self.rows, dtype=x.dtype))

        def run(u: Array, parameters: nnx.State) -> tuple[Array, None]:
            return nnx.merge(self._graph, parameters)(u), None

        u, _ = jax.lax.scan(run, u, self._parameters)
        return u[:, self.delay : self.delay + self._n_outputs, 0]


class FactorProduct(RowLayers):
    """Layers that multiply n rows, a power of 2, by factors, the first one first: two layers each, and a last one."""

    def __init__(self, factors: Sequence[Factor], n_outputs: int | None = None) -> None:
        layers = _Layers(len(factors[0].same))
        for factor in factors:
            layers.factor(factor)
        super().__init__(layers, layers.rows if n_outputs is None else n_outputs)


class RoutedCircuit(RowLayers):
    """Layers that compute a circuit with one wire per row; `rows` is w, a power of 2."""

    def __init__(self, circuit: Circuit) -> None:
        levels = schedule(circuit)
        needs = [2 * len(level.gates) + len(level.kept) for level in levels]
        rows = 2 ** math.ceil(math.log2(max([circuit.n_inputs + 1, len(circuit.outputs), 2, *needs])))
        layers = _Layers(rows)
        held = {wire: wire for wire in range(circuit.n_inputs + 1)}  # the row of each wire
        for level in levels:
            held = _add_level(layers, circuit, level, held)
        sources = np.full(rows, -1)
        sources[: len(circuit.outputs)] = [held[wire] for wire in circuit.outputs]
        for factor in route(sources):
            layers.factor(factor)
        super().__init__(layers, len(circuit.outputs))

    def __call__(self, x: Float[Array, "b n"]) -> Float[Array, "b m"]:
        return super().__call__(jnp.concatenate([x, jnp.ones((len(x), 1), x.dtype)], axis=1))


def _add_level(layers: _Layers, circuit: Circuit, level: Level, held: dict[int, int]) -> dict[int, int]:
    """Adds the layers of a level; returns the row of each wire after it."""
    n, first = len(level.gates), circuit.n_inputs + 1
    gates = [circuit.gates[wire - first] for wire in level.gates]
    reads = [wire for gate in gates for wire in (gate.left, gate.right)]
    sources = np.full(layers.rows, -1)
    sources[: 2 * n + len(level.kept)] = [held[wire] for wire in (*reads, *level.kept)]
    for factor in route(sources):
        layers.factor(factor)
    after = {wire: 2 * n + i for i, wire in enumerate(level.kept)}
    if level.kind == "product":
        layers.products(n, len(level.kept))
        return after | {wire: 2 * j + 1 for j, wire in enumerate(level.gates)}
    same, up = np.zeros(layers.rows), np.zeros(layers.rows)
    same[: 2 * n : 2], up[: 2 * n : 2] = [gate.a for gate in gates], [gate.b for gate in gates]
    same[2 * n : 2 * n + len(level.kept)] = 1
    layers.factor(Factor(1, same, up, np.zeros(layers.rows)))
    return after | {wire: 2 * j for j, wire in enumerate(level.gates)}
