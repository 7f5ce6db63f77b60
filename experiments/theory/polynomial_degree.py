"""Degree of the polynomials that layers compute, and that recall needs (Based, Thms 3.2 and 3.4, F.14 to F.29).

L layers of BaseConv with data-independent filters compute a polynomial of degree 2^L at most (Lemma F.17), and recall
has one of larger degree only, so it needs more layers. These proofs construct no model. `coefficients` computes the
unique polynomial of a function on all its inputs, and the tests check on examples:

| statement | checked |
| --- | --- |
| F.17: L layers have degree 2^L at most | random `BaseConv`s reach it; F.15: a Hyena of order n has degree n + 1 |
| F.18: MQAR with binary tokens of d bits has degree 2 d + 1 | d = 1 to 4, all inputs |
| F.19 = 3.2: it needs log(2 d) layers | `pair_circuit` as BaseConv: products of depth `least_layers(2 d + 1)` |
| F.20, F.21: a model of MQAR solves equality | `equality_by_recall` with attention, sorting and BaseConv |
| F.22 to F.28: with p-hot tokens equality has degree 2 p | p = 1 to 3, blocks of 2 to 4 |
| F.29 = Remark 3.3: it needs log(2 p) layers | `least_layers(2 p)` |
| F.14 = 3.4: few layers leave few coefficients to send | `address_circuit` as BaseConv: Bob needs all N = 2^d |

The polynomial of a Boolean function is multilinear. Of p-hot tokens, p digits of base q that are one-hot each, it is
block-exclusive (F.23): no monomial has two variables of a digit. Both are a tensor with an axis per digit (for bits q =
2), whose index 0 stands for no variable, and index j for the digit's j-th: the almost p-hot encoding (F.22) drops one
bit of each digit, here the first. Substituting `1 - sum` of the others into a polynomial of the p-hot encoding gives
one of no larger degree (F.28).

**Errors in the paper.** Remark 3.3 says "input-dependent" where Theorem F.29 says "data-independent"; the second is
proved, since F.17 needs filters that do not depend on the input. F.19: a degree of 2 d + 1 needs `2^L >= 2 d + 1`,
which is one layer more than log(2 d) where d is a power of 2; F.29 gives the ceiling of log(2 p), not only its floor.
Eq. 36 is the polynomial of one pair (i, j), and its value must be `v_j`, not `u[i + 1]`; MQAR is the sum over j < i
where at most one key matches. Lemma F.25 says that no monomial has two variables of a block; it may, but these are 0
on all inputs and can be left out. F.14 bounds the coefficients of degree D in d variables by d^D: of degree at most D
there are `C(d + D, D)`, of multilinear ones `sum_{k <= D} C(d, k)`; its conclusion needs only the logarithm.
"""

import itertools
import math
from collections.abc import Callable

import numpy as np

from experiments.theory.circuits import Circuit
from jaxzoo.utils.array_typing import Bool, Float, Int


def coefficients(values: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Returns the coefficients of the polynomial with these values, an axis per digit."""
    for axis in range(values.ndim):
        first = np.take(values, [0], axis)
        values = np.concatenate([first, np.delete(values, 0, axis) - first], axis)
    return values


def evaluate(found: Float[np.ndarray, "..."], digits: Int[np.ndarray, "n"]) -> float:
    """Evaluates a polynomial of given coefficients."""
    for digit in digits:
        found = found[0] + (found[digit] if digit else 0)
    return float(found)


def degree(values: Float[np.ndarray, "..."], *, tolerance: float = 1e-4) -> int:
    """Returns the degree of the polynomial with these values; coefficients below `tolerance` times the largest one are
    rounding."""
    found = np.abs(coefficients(values))
    return int((np.argwhere(found > tolerance * found.max()) > 0).sum(1).max())


def every_input(base: int, n_digits: int) -> Int[np.ndarray, "m n"]:
    """Returns all inputs, in the order of a reshaped tensor of values."""
    return np.array(list(itertools.product(range(base), repeat=n_digits)))


def least_layers(degree: int) -> int:
    """Returns the least L with 2^L >= degree."""
    return (degree - 1).bit_length()


def recall_bit(d: int) -> Float[np.ndarray, "..."]:
    """Returns the values of one output bit of MQAR over the bits of a query, of a key, and one of its value (F.18)."""
    query, key, value = np.split(every_input(2, 2 * d + 1), [d, 2 * d], axis=1)
    return ((query == key).all(1) * value[:, 0]).astype(float).reshape((2,) * (2 * d + 1))


def equality(base: int, p: int) -> Float[np.ndarray, "..."]:
    """Returns the values of the equality of two tokens of p digits (F.27)."""
    return np.eye(base**p).reshape((base,) * (2 * p))


def pair_circuit(d: int) -> Circuit:
    """Builds eq. 36: whether query and key are equal, times a bit of the value; inputs as in `recall_bit`."""
    circuit = Circuit(2 * d + 1)
    factors = [2 * d]
    for query, key in zip(range(d), range(d, 2 * d), strict=True):
        both = circuit.sum(circuit.sum(circuit.one, query, 1, -1), key, 1, -1)
        factors.append(circuit.sum(both, circuit.product(query, key), 1, 2))
    factors.append(factors.pop(0))  # a value is an input: it joins last
    circuit.outputs = [_product(circuit, factors)]
    return circuit


def address_circuit(d: int) -> Circuit:
    """Builds AR for the keys 0 to 2^d - 1: inputs are the values, one bit each, and the bits of the query."""
    n = 2**d
    circuit = Circuit(n + d)
    ones = list(range(n, n + d))
    zeros = [circuit.sum(circuit.one, bit, 1, -1) for bit in ones]
    answers = [
        _product(circuit, [i, *(pair[bit] for pair, bit in zip(zip(zeros, ones, strict=True), digits, strict=True))])
        for i, digits in enumerate(every_input(2, d))
    ]
    while len(answers) > 1:
        answers = [circuit.sum(a, b) for a, b in zip(answers[::2], answers[1::2], strict=True)]
    circuit.outputs = answers
    return circuit


def largest_message(d: int, n_layers: int) -> int:
    """Returns the number of coefficients that L layers can have in the d bits of Bob's query (F.14)."""
    return sum(math.comb(d, k) for k in range(min(d, 2**n_layers) + 1))


def equality_by_recall(
    recall: Callable[..., Bool[np.ndarray, "b n"]], x: Int[np.ndarray, "b"], y: Int[np.ndarray, "b"]
) -> Bool[np.ndarray, "b"]:
    """Solves equality by a model of MQAR (F.20); `recall` tells whether the queries of triples have a match."""
    tokens = np.stack([x, y], axis=1)
    return recall(tokens, np.ones_like(tokens), tokens)[:, 1]


def _product(circuit: Circuit, wires: list[int]) -> int:
    while len(wires) > 1:
        joined = [circuit.product(a, b) for a, b in zip(wires[::2], wires[1::2], strict=False)]
        wires = joined + wires[2 * len(joined) :]
    return wires[0]
