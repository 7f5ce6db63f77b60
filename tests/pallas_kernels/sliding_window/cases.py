"""Random calls of sliding-window attention, and their float64 truth with gradients, by hand and in numpy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from pallas_kernels.sliding_window import SlidingWindowCache, sliding_window_attention
from pallas_kernels.sliding_window.problem import Problem
from tests.pallas_kernels.shared import assert_close


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
    """Shapes and options. With a cache, rows stand at different positions: in the first round, later, at 0.

    All arrays are float64, and numbers of `dtype`.
    """

    t: int
    window: int
    b: int = 2
    h: int = 4
    g: int = 2
    k: int = 5
    v: int = 3
    scale: float | None = None
    cache: bool = False
    segments: bool = False
    size: float = 1.0
    dtype: DTypeLike = jnp.float32
    seed: int = 0

    @property
    def positions(self):
        return np.array([5, 2 * self.window + 3, 0][: self.b]) if self.cache else np.zeros(self.b, int)

    @property
    def factor(self):
        return self.k**-0.5 if self.scale is None else self.scale

    def arrays(self):
        """[q, k, v(, cache.k, cache.v)]."""
        tokens = (self.b, self.t)
        rng = np.random.default_rng(self.seed)
        shapes = [(self.h, self.k), (self.g, self.k), (self.g, self.v)]
        arrays = [self.size * self.normal(rng, *tokens, *shape) for shape in shapes]
        return [*arrays, *(np.stack(x) for x in zip(*map(self._rings, range(self.b)), strict=True))]

    def cotangents(self):
        """Cotangents of y, and of cache.k and cache.v if there is a cache."""
        rng = np.random.default_rng(self.seed + 1)
        rings = [x.shape for x in self.arrays()[3:]]
        return [self.normal(rng, *shape) for shape in [(self.b, self.t, self.h, self.v), *rings]]

    def segment_ids(self):
        """Runs of 1 to 9 tokens with ids of three, so that neighbouring runs and far ones share an id."""
        if not self.segments:
            return None
        rng = np.random.default_rng(self.seed + 3)
        rows = [
            np.repeat(rng.integers(3, size=self.t), rng.integers(1, 10, size=self.t))[: self.t] for _ in range(self.b)
        ]
        return np.array(rows, np.int32).reshape(self.b, self.t)

    def past(self, row):
        """Keys and values of the row's tokens before the call."""
        rng, n = np.random.default_rng(100 * self.seed + row), self.positions[row]
        return [self.normal(rng, n, self.g, width) for width in (self.k, self.v)]

    def ring(self, tokens, row):
        """All tokens of a row, written one by one over garbage that no query may see."""
        rng = np.random.default_rng(1000 + row)
        slots = self.normal(rng, self.window, *tokens.shape[1:])
        for p, token in enumerate(tokens):
            slots[p % self.window] = token
        return slots

    def _rings(self, row):
        return [self.ring(x, row) for x in self.past(row)] if self.cache else []

    def normal(self, rng, *shape):
        return np.array(jnp.asarray(rng.normal(size=shape), jnp.float32).astype(self.dtype), np.float64)


def truth(call: Call):
    """([y(, cache.k, cache.v)], gradients of every array)."""
    q, k, v, *rings = call.arrays()
    dy, *drings = call.cotangents()
    outputs = [np.zeros((call.b, call.t, call.h, call.v)), *(np.zeros_like(x) for x in rings)]
    gradients = [np.zeros_like(x) for x in (q, k, v, *rings)]
    for row in range(call.b):
        past_k, past_v = call.past(row)
        n = len(past_k)
        all_k, all_v = np.concatenate([past_k, k[row]]), np.concatenate([past_v, v[row]])
        outputs[0][row], _, gradients[0][row], *dall = _one_row(call, row, q[row], all_k, all_v, dy[row], 0)
        for x, (tokens, dtokens) in enumerate(zip((all_k, all_v), dall, strict=True)):
            if call.cache:
                outputs[1 + x][row] = call.ring(tokens, row)
                dtokens, gradients[3 + x][row] = _pull_back_ring(dtokens, drings[x][row], n)
            gradients[1 + x][row] = dtokens[len(dtokens) - call.t :]
    return outputs, gradients


def measured(call: Call, **options):
    """As `truth`, by `sliding_window_attention`, everything in the dtype of the call."""
    arrays, cotangents = ([np.asarray(x, call.dtype) for x in xs] for xs in (call.arrays(), call.cotangents()))
    positions = np.asarray(call.positions, np.int32)
    ids = None if call.segment_ids() is None else jnp.asarray(call.segment_ids())
    options = {"window": call.window, "scale": call.scale, "segment_ids": ids, **options}

    @jax.jit
    def run(arrays, cotangents):
        def outputs(q, k, v, *rings):
            if not rings:
                return [sliding_window_attention(q, k, v, **options)]
            cache = SlidingWindowCache(*rings, positions)
            y, cache = sliding_window_attention(q, k, v, initial_cache=cache, return_cache=True, **options)
            return [y, cache.k, cache.v]

        out, pull_back = jax.vjp(outputs, *arrays)
        return out, pull_back(cotangents)

    return run(arrays, cotangents)


def contract_truth(call: Call, past: int = 0, start=None):
    """(q, k, v, dy), [y, lse, dq, dk, dv] of the contract in `api.py`, with `past` tokens before the queries."""
    rng = np.random.default_rng(call.seed)
    q, dy = (call.normal(rng, call.b, call.t, call.h, width) for width in (call.k, call.v))
    k, v = (call.normal(rng, call.b, past + call.t, call.g, width) for width in (call.k, call.v))
    starts = np.zeros(call.b, int) if start is None else start
    rows = [_one_row(call, i, q[i], k[i], v[i], dy[i], starts[i]) for i in range(call.b)]
    return (q, k, v, dy), [np.stack(x) for x in zip(*rows, strict=True)]


def check_contract(module, call: Call, past: int = 0, start=None, tolerances=(1e-5, 1e-4)):
    """y and lse, then dq, dk, dv of an interpreted implementation, within relative errors; float32's are style's."""
    (q, k, v, dy), expected = contract_truth(call, past, start)
    operands = [np.asarray(x, call.dtype) for x in (q, k, v)]
    ids = None if call.segment_ids() is None else jnp.asarray(call.segment_ids())
    operands += [None if start is None else np.asarray(start, np.int32), ids]
    options = {"window": call.window, "scale": call.factor, "interpret": True}

    @jax.jit
    def run(operands, dy):
        y, lse = module.forward(*operands, **options)
        return y, lse, *module.backward(*operands, y, lse, dy, **options)

    results = run(operands, np.asarray(dy, call.dtype))
    assert [x.dtype for x in results] == [call.dtype, jnp.float32, *[call.dtype] * 3]
    assert_close(results[:2], expected[:2], tolerances[0])
    assert_close(results[2:], expected[2:], tolerances[1])


def problem(**changed) -> Problem:
    """A problem that every kernel serves, but for what is `changed`."""
    served = {"b": 1, "t": 64, "past": 0, "h": 2, "g": 2, "k": 64, "v": 64, "window": 9, "dtype": "bfloat16"}
    return Problem(**{**served, "start": False, "segments": False, **changed})


def _one_row(call, row, q, k, v, dy, start):
    """y, lse (h, t), and the gradients of sum(dy * y) to q, k, v; queries are the last tokens."""
    t, s = len(q), len(k)
    distance = np.arange(s - t, s)[:, None] - np.arange(s)[None]
    seen = (distance >= 0) & (distance < call.window) & (np.arange(s) >= start)[None]
    ids = call.segment_ids()
    if ids is not None:
        seen &= ids[row][:, None] == ids[row][None]
    y, dq, dk, dv = (np.zeros(x.shape) for x in (dy, q, k, v))
    lse = np.zeros((call.h, t))
    for i in range(call.h):
        j = i // (call.h // call.g)
        head = one_head(q[:, i], k[:, j], v[:, j], dy[:, i], seen, call.factor)
        y[:, i], lse[i], dq[:, i] = head[:3]
        dk[:, j] += head[3]
        dv[:, j] += head[4]
    return y, lse, dq, dk, dv


def one_head(q, k, v, dy, seen, scale, y=None):
    """y, lse, dq, dk, dv; zeros and -inf where a query sees nothing. y: as it was stored, for the gradients."""
    scores = np.where(seen, q @ k.T * scale, -np.inf)
    highest = scores.max(-1, keepdims=True, initial=-1e300)
    p = np.exp(scores - highest)
    total = p.sum(-1, keepdims=True)
    lse = np.log(total, out=np.full_like(total, -np.inf), where=total > 0)
    p /= np.where(total > 0, total, 1)
    dp = dy @ v.T
    delta = (p * dp if y is None else dy * y).sum(-1, keepdims=True)
    ds = p * (dp - delta) * scale
    return p @ v, np.where(total > 0, highest + lse, -np.inf)[:, 0], ds @ k, ds.T @ q, p.T @ dy


def _pull_back_ring(dtokens, dring, past):
    """Gradients of a row to its tokens and to the ring before them.

    `dtokens` is what the queries sent to each token, past ones first; `dring` what the ring after the call sends to
    the tokens that it holds.
    """
    dtokens, dold = dtokens.copy(), np.zeros(dring.shape)
    for slot in range(len(dring)):
        holder = max((p for p in range(len(dtokens)) if p % len(dring) == slot), default=-1)
        if holder < past:
            dold[slot] += dring[slot]
        else:
            dtokens[holder] += dring[slot]
    for p in range(max(0, past - len(dring)), past):
        dold[p % len(dring)] += dtokens[p]
    return dtokens, dold
