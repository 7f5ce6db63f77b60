"""Random instances of MQAR in triples (Zoology, App. H.7.1) and their solution by Algorithm 9."""

import numpy as np

NOTHING = -1


def draw(rng, *, batch_size, n_triples, n_tokens):
    """Keys, values and queries `(b, n)`, independent and uniform, but for equal keys, which have equal values."""
    shape = (batch_size, n_triples)
    keys, queries = rng.integers(0, n_tokens, shape), rng.integers(0, n_tokens, shape)
    values = np.take_along_axis(rng.integers(0, n_tokens, (batch_size, n_tokens)), keys, axis=1)
    return keys, values, queries


def solve(keys, values, queries):
    """Algorithm 9: every query is looked up before its own pair is stored."""
    found = np.full(queries.shape, NOTHING)
    for row in range(len(keys)):
        memory = {}
        for i, (key, value, query) in enumerate(zip(keys[row], values[row], queries[row], strict=True)):
            found[row, i] = memory.get(query, NOTHING)
            memory[key] = value
    return found
