"""MQAR by sorting and binary search over dyadic intervals (Zoology, Algorithm 11, Proposition H.30), as a JAX program.

The problem (App. H.7.1): triples `(k_i, v_i, q_i)`, i < n = N / 3; for each query the value of an equal key of an
earlier triple, or `NOTHING`. A query at i and a key at j < i part at one bit of their numbers: at level k the interval
of 2^k triples that holds j is the left half, that of i the right half, of one interval of 2^(k+1). So at each level the
keys of all left halves are sorted, the queries of the right halves are sorted and looked up among them, and the answers
go back to the order of the queries. Work O(N d log^2 N), depth O(d log^2 N).

Errors in the algorithm. Line 14 takes "a key that is not smaller exists" for a match; it needs `key = query`. Line 20
outputs `v_{i+1}` instead of the value of the found key. Repeated keys with different values are not specified; here, as
in Algorithm 9, which overwrites, the last one counts: sorting is stable, the search takes the last of equal keys,
and short distances (small k) win over long ones.

`one_sort` (ours) needs no intervals: sort keys and queries together by token, then by time. The last key before a query
is the running maximum of the positions of keys. Work O(N d log N), a factor of log N less than Proposition H.30.
"""

import jax
import jax.numpy as jnp

from jaxzoo.utils.array_typing import Array, Int

NOTHING = -1

Tokens = Int[Array, "n"]


@jax.jit
def parallel_recall(keys: Tokens, values: Tokens, queries: Tokens) -> Tokens:
    """Answers every query by Algorithm 11; n is at least 1."""
    n = len(keys)
    size = 1 << (n - 1).bit_length()
    keys, values, queries = (jnp.pad(x, (0, size - n)) for x in (keys, values, queries))  # keys after all queries
    found = jnp.full(size, NOTHING, values.dtype)
    half = size // 2
    while half:
        split = lambda x, half=half: x.reshape(-1, 2, half)  # noqa: E731
        answers = jax.vmap(_search)(split(keys)[:, 0], split(values)[:, 0], split(queries)[:, 1])
        late = split(found)[:, 1]
        found = split(found).at[:, 1].set(jnp.where(answers == NOTHING, late, answers)).reshape(-1)
        half //= 2
    return found[:n]


def _search(keys: Tokens, values: Tokens, queries: Tokens) -> Tokens:
    """Returns the value of the last key that equals each query (lines 6 to 16)."""
    keys, values = jax.lax.sort((keys, values), num_keys=1)
    queries, order = jax.lax.sort((queries, jnp.arange(len(queries))), num_keys=1)
    place = jnp.searchsorted(keys, queries, side="right") - 1
    at = jnp.maximum(place, 0)
    answers = jnp.where((place >= 0) & (keys[at] == queries), values[at], NOTHING)
    return jnp.zeros_like(answers).at[order].set(answers)


@jax.jit
def one_sort(keys: Tokens, values: Tokens, queries: Tokens) -> Tokens:
    """Answers every query by one sort of keys and queries together."""
    n = len(keys)
    time = jnp.arange(n)
    tokens, times = jnp.concatenate([queries, keys]), jnp.concatenate([2 * time, 2 * time + 1])
    values = jnp.concatenate([jnp.zeros_like(values), values])
    tokens, times, values = jax.lax.sort((tokens, times, values), num_keys=2)
    place = jax.lax.cummax(jnp.where(times % 2 == 1, jnp.arange(2 * n), -1))
    at = jnp.maximum(place, 0)
    answers = jnp.where((place >= 0) & (tokens[at] == tokens), values[at], NOTHING)
    return jnp.zeros_like(answers).at[times].set(answers)[::2]
