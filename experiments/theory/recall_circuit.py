"""Algorithm 11 as an arithmetic circuit (Zoology, Prop. H.33 and H.36, Theorem H.37).

Inputs are bits of keys and queries, and one number for each value; a comparison is a polynomial of bits. Equal keys
have equal values, as in the paper. Each pair of intervals is a lookup of m queries among m keys:

1. sort keys and queries together by token, keys before queries (a sorting network of comparators);
2. find for every position the last key at or before it (a prefix scan of depth log 2 m);
3. compare it with the query, and sort the answers back into the order of the queries.

Deviations. Proposition H.33 makes a circuit of the parallel binary search (Algorithm 10) with the work of the program.
But its recursive calls read ranges of keys that depend on the data, and a circuit of fixed wires must be built for the
longest range in both calls, so it is larger than the work of the program. Steps 1 and 2 need no search. The network is
Batcher's odd-even merge sort with O(m log^2 m) comparators; that of Lemma H.35 (Ajtai et al.) has O(m log m), but with
a constant in the thousands. So the size is O(N d log^3 N), where Proposition H.36 has O(N d log^2 N). A comparator of d
bits has 13 d gates at most, depth `2 log d + 5` and width 6 d, as Lemma H.32 says.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from experiments.theory.circuits import Circuit

T = TypeVar("T")


class Item(NamedTuple):
    """Wires of a key or query that is sorted."""

    sort_bits: list[int]
    """Most significant first."""
    rest: list[int]
    """Wires that move with it."""


def build(n: int, bits: int) -> Circuit:
    """Builds the circuit for n triples, a power of 2. Inputs per triple: the bits of the key (most significant first),
    the value, the query. Outputs: for each triple but the first whether its query has a match, then for each the value,
    or 0."""
    circuit = Circuit(n * (2 * bits + 1))
    triple = 2 * bits + 1
    keys = [list(range(i * triple, i * triple + bits)) for i in range(n)]
    values = [i * triple + bits for i in range(n)]
    queries = [list(range(i * triple + bits + 1, (i + 1) * triple)) for i in range(n)]
    found: dict[int, tuple[int, int]] = {}
    m = 1
    while m < n:
        for first in range(0, n, 2 * m):
            left, right = slice(first, first + m), range(first + m, first + 2 * m)
            answers = _lookup(circuit, keys[left], values[left], [queries[i] for i in right])
            for i, answer in zip(right, answers, strict=True):
                found[i] = _prefer(circuit, found[i], answer) if i in found else answer
        m *= 2
    circuit.outputs = [found[i][part] for part in range(2) for i in range(1, n)]
    return circuit


def sorter(n: int, bits: int) -> Circuit:
    """Builds a sorting network (H.34) of n numbers, a power of 2, most significant bits first; for n = 2 it is a
    comparator (H.31, H.32)."""
    circuit = Circuit(n * bits)
    items = [Item(list(range(i * bits, (i + 1) * bits)), []) for i in range(n)]
    _sort(circuit, items)
    circuit.outputs = [wire for item in items for wire in item.sort_bits]
    return circuit


def _prefer(circuit: Circuit, near: tuple[int, int], far: tuple[int, int]) -> tuple[int, int]:
    """Takes a match at the smaller distance, else one at the larger: `near + (1 - is_match) far`."""
    missing = circuit.sum(circuit.one, near[0], 1, -1)
    is_match, value = (circuit.sum(a, circuit.product(missing, b)) for a, b in zip(near, far, strict=True))
    return is_match, value


def _lookup(
    circuit: Circuit, keys: list[list[int]], values: list[int], queries: list[list[int]]
) -> list[tuple[int, int]]:
    """Returns whether each query equals a key, and the value of that key or 0."""
    m = len(keys)
    if m == 1:
        match = _equal(circuit, keys[0], queries[0])
        return [(match, circuit.product(match, values[0]))]
    one = circuit.one
    zero = circuit.sum(one, one, 1, -1)
    tag_bits = int(math.log2(m))
    items = [Item([*key, zero], [value, *[zero] * tag_bits]) for key, value in zip(keys, values, strict=True)]
    for place, query in enumerate(queries):
        tag = [one if place >> bit & 1 else zero for bit in reversed(range(tag_bits))]
        items.append(Item([*query, one], [zero, *tag]))
    _sort(circuit, items)
    answers = []
    for item, last in zip(items, _last_keys(circuit, items), strict=True):
        *token, is_query = item.sort_bits
        is_key_there, key, value = last
        match = circuit.product(circuit.product(is_query, is_key_there), _equal(circuit, token, key))
        answers.append(Item([is_query, *item.rest[1:]], [match, circuit.product(match, value)]))
    _sort(circuit, answers)
    return [(item.rest[0], item.rest[1]) for item in answers[m:]]


def _last_keys(circuit: Circuit, items: list[Item]) -> list[tuple[int, list[int], int]]:
    """Returns for every item whether a key occurs at or before it, and token and value of the last one."""
    states = [[circuit.sum(circuit.one, i.sort_bits[-1], 1, -1), *i.sort_bits[:-1], i.rest[0]] for i in items]
    step = 1
    while step < len(states):
        old = list(states)
        for i in range(step, len(states)):
            is_key = old[i][0]
            missing = circuit.sum(circuit.one, is_key, 1, -1)
            either = circuit.sum(is_key, circuit.product(missing, old[i - step][0]))
            both = zip(old[i][1:], old[i - step][1:], strict=True)
            # `a + missing (b - a)`: b where there is no key at i.
            moved = [circuit.sum(a, circuit.product(missing, circuit.sum(b, a, 1, -1))) for a, b in both]
            states[i] = [either, *moved]
        step *= 2
    return [(state[0], state[1:-1], state[-1]) for state in states]


def _equal(circuit: Circuit, x: list[int], y: list[int]) -> int:
    return _tree([_equal_bit(circuit, a, b) for a, b in zip(x, y, strict=True)], circuit.product)


def _equal_bit(circuit: Circuit, x: int, y: int) -> int:
    differs = circuit.sum(circuit.sum(x, y), circuit.product(x, y), 1, -2)
    return circuit.sum(circuit.one, differs, 1, -1)


def _smaller(circuit: Circuit, x: list[int], y: list[int]) -> int:
    """Returns 1 if x < y, else 0: a tree over pairs (smaller, equal) of bits."""

    def join(high: tuple[int, int], low: tuple[int, int]) -> tuple[int, int]:
        smaller = circuit.sum(high[0], circuit.product(high[1], low[0]))
        return smaller, circuit.product(high[1], low[1])

    pairs = [
        (circuit.sum(b, circuit.product(a, b), 1, -1), _equal_bit(circuit, a, b)) for a, b in zip(x, y, strict=True)
    ]
    return _tree(pairs, join)[0]


def _tree(leaves: list[T], join: Callable[[T, T], T]) -> T:
    """Joins neighbors until one is left."""
    while len(leaves) > 1:
        joined = [join(a, b) for a, b in zip(leaves[::2], leaves[1::2], strict=False)]
        leaves = joined + leaves[2 * len(joined) :]
    return leaves[0]


def _sort(circuit: Circuit, items: list[Item]) -> None:
    """Sorts in place by Batcher's network; the number of items is a power of 2."""
    for i, j in comparators(len(items)):
        a, b = items[i], items[j]
        swap = _smaller(circuit, b.sort_bits, a.sort_bits)
        new: list[list[list[int]]] = [[], []]
        for x, y in zip(a, b, strict=True):
            moves = [circuit.product(swap, circuit.sum(q, p, 1, -1)) for p, q in zip(x, y, strict=True)]
            new[0].append([circuit.sum(p, move) for p, move in zip(x, moves, strict=True)])
            new[1].append([circuit.sum(q, move, 1, -1) for q, move in zip(y, moves, strict=True)])
        items[i], items[j] = Item(*new[0]), Item(*new[1])


def comparators(n: int) -> Iterator[tuple[int, int]]:
    """Returns comparators (i, j), i < j, of Batcher's odd-even merge sort of n items, a power of 2."""
    p = 1
    while p < n:
        k = p
        while k:
            for j in range(k % p, n - k, 2 * k):
                for i in range(j, min(j + k, n - k)):
                    if i // (2 * p) == (i + k) // (2 * p):
                        yield i, i + k
            k //= 2
        p *= 2
