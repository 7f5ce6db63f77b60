"""Random calls of Taylor attention, and their float64 truth with gradients: `reference.quadratic`."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.taylor_attention import TaylorState, reference, taylor_attention, taylor_feature_count


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
    """Shapes and options; `decay` gives every head its own rate."""

    t: int
    b: int = 1
    h: int = 3
    g: int = 3
    k: int = 3
    v: int = 5
    scale: float | None = None
    eps: float = 1e-12
    normalize: bool = True
    decay: bool = False
    state: bool = True
    size: float = 1.0
    seed: int = 0

    @property
    def rates(self):
        return np.linspace(0.7, 1.0, self.h).astype(np.float32) if self.decay else None

    @property
    def options(self):
        return {"scale": self.scale, "eps": self.eps, "normalize": self.normalize}

    def arrays(self):
        """[q, k, v(, s, z)] in float64, representable in float32; z sums real keys, so that no sum is near 0."""
        rng = np.random.default_rng(self.seed)
        shapes = [(self.h, self.k), (self.g, self.k), (self.g, self.v)]
        arrays = [self.size * rng.normal(size=(self.b, self.t, *shape)) for shape in shapes]
        if self.state:
            s = 3 * rng.normal(size=(self.b, self.h, taylor_feature_count(self.k), self.v))
            z = features(rng.normal(size=(self.b, 9, self.h, self.k))).sum(1)
            arrays += [s, z]
        return [x.astype(np.float32).astype(np.float64) for x in arrays]

    def cotangents(self):
        """Cotangents of y and of the final state s, z, float64."""
        rng = np.random.default_rng(self.seed + 1)
        f = taylor_feature_count(self.k)
        shapes = [(self.b, self.t, self.h, self.v), (self.b, self.h, f, self.v), (self.b, self.h, f)]
        return [rng.normal(size=shape).astype(np.float32).astype(np.float64) for shape in shapes]


def features(x):
    """[1, x_a, x_a x_b for a <= b], written out."""
    pairs = [x[..., a] * x[..., b] for a in range(x.shape[-1]) for b in range(a, x.shape[-1])]
    return np.stack([np.ones_like(x[..., 0]), *np.moveaxis(x, -1, 0), *pairs], axis=-1)


def truth(call: Call, arrays=None, cotangents=None, *, rates=None):
    """([y, s, z], gradients of every array) in float64; `arrays`, `cotangents` and `rates` replace those of `call`."""
    rates = call.rates if rates is None else rates
    scale = call.k**-0.5 if call.scale is None else call.scale
    with jax.enable_x64(True):
        arrays = [jnp.asarray(x, jnp.float64) for x in (call.arrays() if arrays is None else arrays)]
        cotangents = [jnp.asarray(x, jnp.float64) for x in (cotangents or call.cotangents())]

        @jax.jit
        def run(arrays, cotangents):
            def outputs(q, k, v, *state):
                y, last = reference.quadratic(
                    q, k, v, scale=scale, eps=call.eps, normalize=call.normalize, decay=rates,
                    initial_state=TaylorState(*state) if state else None,
                )  # fmt: skip
                return [y, *last]

            out, pull_back = jax.vjp(outputs, *arrays)
            return out, pull_back(cotangents)

        return jax.tree.map(np.asarray, run(arrays, cotangents))


def rounded(call: Call, dtype, *, state_cotangent=0.02):
    """(arrays, cotangents) for kernels with products of low precision: tokens as `dtype` holds them, the state of 40
    earlier tokens, so that no output is a difference of large sums, and small cotangents of states, which would drown
    dy."""
    rng = np.random.default_rng(call.seed + 2)
    hold = lambda x: np.asarray(jnp.asarray(x, jnp.float32).astype(dtype), np.float64)  # noqa: E731
    arrays, (dy, *dstate) = [hold(x) for x in call.arrays()[:3]], call.cotangents()
    if call.state:
        past = features(rng.normal(size=(call.b, 40, call.h, call.k)))
        s = np.einsum("bjhf,bjhv->bhfv", past, rng.normal(size=(call.b, 40, call.h, call.v)))
        arrays += [x.astype(np.float32).astype(np.float64) for x in (s, past.sum(1))]
    return arrays, [hold(dy), *((state_cotangent * x).astype(np.float32).astype(np.float64) for x in dstate)]


def measured(call: Call, *, dtype=jnp.float32, arrays=None, cotangents=None, **options):
    """As `truth`, by `taylor_attention` with q, k, v in `dtype`."""
    arrays, cotangents = call.arrays() if arrays is None else arrays, cotangents or call.cotangents()
    arrays = [jnp.asarray(x, dtype if i < 3 else jnp.float32) for i, x in enumerate(arrays)]
    cotangents = [jnp.asarray(x, dtype if i < 1 else jnp.float32) for i, x in enumerate(cotangents)]
    decay = None if call.rates is None else jnp.asarray(call.rates)

    @jax.jit
    def run(arrays, cotangents):
        def outputs(q, k, v, *state):
            y, last = taylor_attention(
                q, k, v, decay=decay, initial_state=TaylorState(*state) if state else None, return_state=True,
                **(call.options | options),
            )  # fmt: skip
            return [y, *last]

        out, pull_back = jax.vjp(outputs, *arrays)
        return out, pull_back(cotangents)

    return run(arrays, cotangents)
