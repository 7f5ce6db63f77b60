"""Computations within a chunk of `xla.py`, which has the equations."""

import copy

import jax.numpy as jnp
import numpy as np
from jax import lax

from pallas_kernels.taylor_attention.features import query_coefficients
from pallas_kernels.taylor_attention.state import TaylorState


class ChunkMath:
    """Computations within a chunk, for the heads, scale and decay of a call.

    Methods take and return float32 arrays with heads first: q, k (b, h, c, k), v and dnum (b, h, c, v), dden (b, h, c),
    (i, j) matrices (b, h, c, c). `queries`, `shared_heads` and `to_tokens` convert from and to tokens (b, c, heads, .).
    `begun` (b, c) counts the documents that have begun in the chunk up to each token; None: a single document.
    """

    def __init__(self, k, *, n_heads, scale, decay):
        self.shared = n_heads // k.shape[2]
        self.scale = np.float32(scale)
        self.coefficients = query_coefficients(k.shape[3], 1.0).astype(np.float32)
        # log 0 = -inf would make decay^0 = exp(0 * -inf) = NaN.
        tiny = jnp.finfo(jnp.float32).tiny
        self.log_decay = None if decay is None else jnp.log(jnp.maximum(decay.astype(jnp.float32), tiny))
        self.begun = None
        exact = k.dtype == jnp.float32
        self.precision = lax.Precision.HIGHEST if exact else lax.Precision.DEFAULT

    def within(self, starts):
        """`ChunkMath` of a chunk with documents that begin at `starts` (b, c); None: a single document."""
        if starts is None:
            return self
        packed = copy.copy(self)
        packed.begun = jnp.cumsum(starts, axis=1, dtype=jnp.int32)
        return packed

    def matmul(self, spec: str, x, y):
        """Einsum; products of float32 inputs have full precision."""
        return jnp.einsum(spec, x, y, precision=self.precision, preferred_element_type=jnp.float32)

    def queries(self, q):
        """Tokens (b, c, h, k) -> scale * q."""
        return self.scale * q.astype(jnp.float32).swapaxes(1, 2)

    def shared_heads(self, x):
        """Tokens of k or v, (b, c, g, .) -> repeated over the query heads that share them."""
        return jnp.repeat(x.astype(jnp.float32).swapaxes(1, 2), self.shared, axis=1)

    def to_tokens(self, dx):
        """Sums cotangents of k or v over the query heads that share a head."""
        if self.shared > 1:
            dx = dx.reshape(dx.shape[0], -1, self.shared, *dx.shape[2:]).sum(2)
        return dx.swapaxes(1, 2)

    def scores(self, q, k):
        """s_ij."""
        return self.matmul("bhik,bhjk->bhij", q, k)

    def weights(self, scores):
        """p_ij = decay^(i-j) (1 + s + s^2/2) for j <= i, else 0."""
        return self._causal(1 + scores * (1 + 0.5 * scores))

    def score_cotangents(self, scores, dnum, dden, v):
        """ds_ij = decay^(i-j) (1 + s) (dnum_i.v_j + dden_i) for j <= i, else 0."""
        dweights = self.matmul("bhiv,bhjv->bhij", dnum, v)
        if dden is not None:
            dweights = dweights + dden[..., None]
        return self._causal((1 + scores) * dweights)

    def read(self, q, state):
        """Contribution of the state to num (b, h, c, v) and den (b, h, c): decay^(i+1) phi'(q_i) [S, z]."""
        features = self.since_start(self.query_features(q))
        return self.matmul("bhif,bhfv->bhiv", features, state.s), self.matmul("bhif,bhf->bhi", features, state.z)

    def advance(self, state, k, v):
        """The state after the chunk: decay^c [S, z] + sum_j decay^(c-1-j) phi(k_j) [v_j, 1]."""
        features = self.to_end(feature_map(k))
        s = self.matmul("bhjf,bhjv->bhfv", features, v)
        # With a sum instead of a product, XLA computes the features twice on a CPU.
        z = self.matmul("bhjf,bhj->bhf", features, jnp.ones_like(v[..., 0]))
        kept = self.kept(k.shape[2])
        return TaylorState(_scaled(state.s, kept) + s, _scaled(state.z, kept, axis=-1) + z)

    def retreat(self, dstate, q, dnum, dden):
        """The cotangent of the state before the chunk: decay^c [dS, dz] + sum_i decay^(i+1) phi'(q_i) dy~_i."""
        features = self.since_start(self.query_features(q))
        kept = self.kept(q.shape[2])
        ds = _scaled(dstate.s, kept) + self.matmul("bhif,bhiv->bhfv", features, dnum)
        dz = _scaled(dstate.z, kept, axis=-1)
        return TaylorState(ds, dz if dden is None else dz + self.matmul("bhif,bhi->bhf", features, dden))

    def query_gradient(self, dscores, q, k, dnum, dden, state):
        """dq. `state` before the chunk; None: zeros."""
        dq = self.matmul("bhij,bhjk->bhik", dscores, k)
        if state is not None:
            u = self.matmul("bhfv,bhiv->bhfi", state.s, dnum)
            if dden is not None:
                u = u + state.z[..., None] * dden[:, :, None]
            dq = dq + self.since_start(pull_back(q, u * self.coefficients.reshape(1, 1, -1, 1)))
        return self.scale * dq

    def key_gradient(self, dscores, q, k, v, dstate):
        """dk. `dstate` after the chunk; None: zeros."""
        dk = self.matmul("bhij,bhik->bhjk", dscores, q)
        if dstate is None:
            return dk
        w = self.matmul("bhfv,bhjv->bhfj", dstate.s, v) + dstate.z[..., None]
        return dk + self.to_end(pull_back(k, w))

    def value_gradient(self, weights, dnum, k, dstate):
        """dv."""
        dv = self.matmul("bhij,bhiv->bhjv", weights, dnum)
        if dstate is None:
            return dv
        return dv + self.to_end(self.matmul("bhjf,bhfv->bhjv", feature_map(k), dstate.s))

    def query_features(self, q):
        return feature_map(q) * self.coefficients.reshape(1, 1, 1, -1)

    def since_start(self, x):
        """x_i decay^(i+1): from the state before the chunk to token i; 0 if a document has begun since."""
        reads = None if self.begun is None else (self.begun == 0)[:, :, None]
        return _scaled(x, self._powers(np.arange(1, x.shape[2] + 1)[:, None], reads))

    def to_end(self, x):
        """x_j decay^(c-1-j): from token j to the state after the chunk; 0 if a document begins after j."""
        writes = None if self.begun is None else (self.begun == self.begun[:, -1:])[:, :, None]
        return _scaled(x, self._powers(np.arange(x.shape[2])[::-1, None], writes))

    def kept(self, n):
        """decay^n, 0 if a document begins in the chunk: (1 or b, 1 or h, 1, 1); None: 1."""
        survives = None if self.begun is None else (self.begun[:, -1:] == 0)[:, :, None]
        return self._powers(np.array([[n]]), survives)

    def _causal(self, x):
        index = np.arange(x.shape[2])
        distance = index[:, None] - index[None, :]
        # Negative distances are masked; unclipped, their powers would overflow.
        x = _scaled(x, self._powers(np.maximum(distance, 0)))
        meet = (distance >= 0)[None]
        if self.begun is not None:
            meet = meet & (self.begun[:, :, None] == self.begun[:, None, :])
        return jnp.where(meet[:, None], x, jnp.zeros_like(x))

    def _powers(self, exponents, where=None):
        """decay ** exponents, 0 where not `where`: (m, n), (b, m, n) -> (1 or b, 1 or h, m, n); None: 1."""
        powers = None
        if self.log_decay is not None:
            powers = jnp.exp(self.log_decay[:, None, None] * exponents.astype(np.float32)[None])[None]
        if where is None:
            return powers
        where = where[:, None].astype(jnp.float32)
        return where if powers is None else powers * where


def _scaled(x, factor, axis=None):
    """x * factor; without the factor's `axis` if x lacks it; x if there is no factor."""
    if factor is None:
        return x
    return x * (factor if axis is None else factor.squeeze(axis))


def feature_map(x):
    """Equals `features.feature_map`, by slices, which cost less than gathers on a CPU."""
    x = jnp.concatenate([jnp.ones_like(x[..., :1]), x], axis=-1)
    return jnp.concatenate([x[..., a : a + 1] * x[..., a:] for a in range(x.shape[-1])], axis=-1)


def pull_back(x, u):
    """J(x)^T u: (b, h, c, k), (b, h, f, c) -> (b, h, c, k). A pair (a, b) adds u x_b to column a, u x_a to b."""
    x, k = x.swapaxes(2, 3), x.shape[3]
    gradient, own, start = u[:, :, 1 : k + 1], [], k + 1
    for a in range(k):
        pairs = u[:, :, start : start + k - a]
        start += k - a
        own.append((pairs * x[:, :, a:]).sum(2, keepdims=True))
        others = pairs * x[:, :, a : a + 1]
        gradient = gradient + jnp.pad(others, ((0, 0), (0, 0), (a, 0), (0, 0)))
    return (gradient + jnp.concatenate(own, axis=2)).swapaxes(2, 3)
