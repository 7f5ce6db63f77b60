"""Arithmetic circuits, and their compilation into layers of BaseConv with wires in channels (Zoology, Thm 4.2, H.21).

A circuit is a directed acyclic graph of gates with two inputs: `a x + b y` with constants a and b (Definition H.13),
and `x y`. The paper's (n, s, Delta, w)-circuit has n inputs, s gates, depth Delta and width w (Definition H.1).
`schedule` cuts it into levels of gates of one kind, as the proof does; w is the largest number of wires between two
levels.

The theorem gives O(Delta log w) layers of BaseConv on O(w) rows of d channels, and `routed_circuits.py` builds those.
The logarithm is needed because its wires are in rows, between which only convolutions move data. `compile_channels`
puts wires into channels instead, where W moves them: two layers per level of products, none for sums, which W computes.

    1  y = (u W_s + 0) . (0 * u + 1)          first and second factor of every product, and every wire that is kept
    2  y = (u W_p + b) . (e_0 * u + 0)        the product: W_p reads the second factor where the first one stands

and one last layer of the first kind for the outputs. The paper's W has few parameters (Kaleidoscope matrices); ours
is a dense matrix in which all except O(w) entries are 0.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple

import jax.numpy as jnp
import numpy as np

from experiments.theory.parameters import apply, base_conv
from jaxzoo.mixers.conv.base_conv import BaseConv
from jaxzoo.utils.array_typing import Array, Float


class Gate(NamedTuple):
    """Gate of a circuit. Wires are numbered: the inputs, the constant 1, then the gates in their order."""

    kind: Literal["sum", "product"]
    left: int
    """Wire of x, smaller than the gate's own."""
    right: int
    """Wire of y, likewise."""
    a: float = 1.0
    """Factor of x in a sum."""
    b: float = 1.0
    """Factor of y in a sum."""


@dataclasses.dataclass
class Circuit:
    """Circuit under construction: its methods append gates, each after those that it reads, and return wires."""

    n_inputs: int
    gates: list[Gate] = dataclasses.field(default_factory=list)
    outputs: list[int] = dataclasses.field(default_factory=list)

    @property
    def one(self) -> int:
        """Wire of the constant 1."""
        return self.n_inputs

    def sum(self, left: int, right: int, a: float = 1.0, b: float = 1.0) -> int:
        """`a x + b y`."""
        return self._append(Gate("sum", left, right, a, b))

    def product(self, left: int, right: int) -> int:
        """`x y`."""
        return self._append(Gate("product", left, right))

    def _append(self, gate: Gate) -> int:
        wire = self.n_inputs + 1 + len(self.gates)
        if not (0 <= gate.left < wire and 0 <= gate.right < wire):
            raise ValueError(f"Circuit: wires {gate.left} and {gate.right} must exist before gate {wire} reads them")
        self.gates.append(gate)
        return wire

    def __call__(self, x: Float[np.ndarray, "b n"]) -> Float[np.ndarray, "b m"]:
        """Computes the outputs gate by gate in float64."""
        wires = [*np.asarray(x, np.float64).T, np.ones(len(x))]
        for kind, left, right, a, b in self.gates:
            x, y = wires[left], wires[right]
            wires.append(x * y if kind == "product" else a * x + b * y)
        return np.stack([wires[wire] for wire in self.outputs], axis=1)


class Level(NamedTuple):
    """Gates of one kind that are computed together."""

    kind: Literal["sum", "product"]
    gates: tuple[int, ...]
    kept: tuple[int, ...]
    """Wires computed earlier that later levels or the outputs read."""


def schedule(circuit: Circuit) -> list[Level]:
    """Returns the levels of a circuit, at most `2 Delta`: sums and products alternate, each gate runs as early as
    possible. Gates that no output depends on are left out."""
    first = circuit.n_inputs + 1

    def place(wire: int, after: int) -> int:  # sums in odd levels, products in even ones
        is_sum = circuit.gates[wire - first].kind == "sum"
        return after + (after % 2 == 0) if is_sum else after + after % 2

    reads = {wire: gate[1:3] for wire, gate in enumerate(circuit.gates, first)}
    levels = _levels(first, reads, circuit.outputs, place)
    return [Level(circuit.gates[gates[0] - first].kind, gates, kept) for gates, kept in levels]


def _levels(
    n_first: int,
    reads: Mapping[int, Iterable[int]],
    outputs: Iterable[int],
    place: Callable[[int, int], int] = lambda wire, after: after,
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Returns the wires computed in each level, and earlier wires that are read later. `n_first` wires exist at the
    start; `reads` lists for each other wire those that it reads; `place` gives the level of a wire from the first one
    after these."""
    needed = set(outputs)
    for wire in reversed(reads):
        if wire in needed:
            needed.update(reads[wire])
    level = dict.fromkeys(range(n_first), 0)
    last_read: dict[int, float] = {}
    for wire in [wire for wire in reads if wire in needed]:
        level[wire] = place(wire, 1 + max((level[read] for read in reads[wire]), default=0))
        for read in reads[wire]:
            last_read[read] = max(last_read.get(read, 0), level[wire])
    last_read |= dict.fromkeys(outputs, math.inf)
    return [
        (
            tuple(wire for wire, own in level.items() if own == at),
            tuple(wire for wire, own in level.items() if own < at < last_read.get(wire, 0)),
        )
        for at in sorted(set(level.values()) - {0})
    ]


class CompiledCircuit(NamedTuple):
    """Layers of BaseConv that compute a circuit on one row whose channels are the inputs."""

    layers: list[BaseConv]
    """Mixers, all of one width."""
    n_outputs: int

    def __call__(self, x: Float[Array, "b n"]) -> Float[Array, "b m"]:
        missing = self.layers[0].config.width - x.shape[1] - 1
        u = jnp.concatenate([x, jnp.ones((len(x), 1), x.dtype), jnp.zeros((len(x), missing), x.dtype)], axis=1)
        return apply(self.layers, u[:, None])[:, 0, : self.n_outputs]


def compile_channels(circuit: Circuit) -> CompiledCircuit:
    """Compiles to BaseConv layers with one wire per channel: `2 D + 1` for products of depth D, of width at most 3
    w."""
    forms = _linear_forms(circuit)
    first = circuit.n_inputs + 1
    products = {wire: gate for wire, gate in enumerate(circuit.gates, first) if gate.kind == "product"}
    reads = {wire: {*forms[gate.left], *forms[gate.right]} for wire, gate in products.items()}
    levels = _levels(first, reads, {wire for out in circuit.outputs for wire in forms[out]})
    width = max([first, len(circuit.outputs), *(2 * len(new) + len(old) for new, old in levels)])
    held: list[int | None] = list(range(first))  # the wire of each channel
    layers = []
    for new, old in levels:
        n, gates = len(new), [products[wire] for wire in new]
        factors = [*(forms[gate.left] for gate in gates), *(forms[gate.right] for gate in gates)]
        layers.append(_sums([*factors, *({wire: 1.0} for wire in old)], held, width))
        layers.append(_products(n, len(old), width))
        held = [*new, *[None] * n, *old]
    layers.append(_sums([forms[wire] for wire in circuit.outputs], held, width))
    return CompiledCircuit(layers, len(circuit.outputs))


Form = dict[int, float]
"""Linear combination of inputs, the constant 1 and products: factors by wire."""


def _linear_forms(circuit: Circuit) -> list[Form]:
    """Returns the linear form of every wire. A wire that is an input, the constant 1 or a product is its own form."""
    forms: list[Form] = [{wire: 1.0} for wire in range(circuit.n_inputs + 1)]
    for kind, left, right, a, b in circuit.gates:
        if kind == "product":
            forms.append({len(forms): 1.0})
            continue
        form = {wire: a * factor for wire, factor in forms[left].items()}
        for wire, factor in forms[right].items():
            form[wire] = form.get(wire, 0.0) + b * factor
        forms.append(form)
    return forms


def _sums(forms: list[Form], held: list[int | None], width: int) -> BaseConv:
    """Layer 1: channel i becomes form i of the wires that the channels hold."""
    kernel = np.zeros((width, width))
    channel = {wire: i for i, wire in enumerate(held) if wire is not None}
    for i, form in enumerate(forms):
        for wire, factor in form.items():
            kernel[channel[wire], i] = factor
    return base_conv(kernel, np.zeros(width), np.zeros((1, width)), np.ones(width))


def _products(n_products: int, n_kept: int, width: int) -> BaseConv:
    """Layer 2: channel i becomes the product of channels i and `n_products + i`; kept wires follow."""
    kernel, bias, i = np.zeros((width, width)), np.zeros(width), np.arange(n_products)
    kernel[n_products + i, i] = 1
    bias[2 * n_products : 2 * n_products + n_kept] = 1
    return base_conv(kernel, bias, np.ones((1, width)), np.zeros(width))
