"""Random calls of gated linear attention, and their float64 truth with gradients: `reference.recurrence`."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.gated_linear_attention import gated_linear_attention, reference


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
    """Shapes and kinds of arrays."""

    t: int
    b: int = 2
    h: int = 2
    g: int = 2
    k: int = 5
    v: int = 3
    channel: bool = False
    state: bool = True
    documents: bool = False
    decay: float = 1.0
    """The largest -log decay; every third token has decays near 1."""
    dtype: str = "float32"
    seed: int = 0

    def arrays(self) -> list[np.ndarray]:
        """[q, k, v, log_decay(, state)] in float64, of numbers that `dtype` (the last two: float32) holds."""
        rng = np.random.default_rng(self.seed)
        tokens = [rng.normal(size=(self.b, self.t, *x)) for x in ((self.g, self.k), (self.g, self.k), (self.h, self.v))]
        tokens = [np.asarray(jnp.asarray(x, self.dtype), np.float64) for x in tokens]
        tokens[1] = np.asarray(jnp.asarray(tokens[1] * self.k**-0.5, self.dtype), np.float64)
        shape = (self.b, self.t, self.h, *[self.k] * self.channel)
        size = np.where(np.arange(self.t) % 3 == 0, 1e-3, self.decay).reshape(-1, *[1] * (len(shape) - 2))
        others = [-rng.random(shape) * size]
        others += [rng.normal(size=(self.b, self.h, self.k, self.v))] * self.state
        return tokens + [x.astype(np.float32).astype(np.float64) for x in others]

    def cotangents(self) -> list[np.ndarray]:
        """Of y and the last state."""
        rng = np.random.default_rng(self.seed + 1)
        dy = rng.normal(size=(self.b, self.t, self.h, self.v))
        dstate = rng.normal(size=(self.b, self.h, self.k, self.v)).astype(np.float32)
        return [np.asarray(jnp.asarray(dy, self.dtype), np.float64), dstate.astype(np.float64)]

    @property
    def segment_ids(self):
        """Documents that begin within chunks and at their borders, of one token too."""
        if not self.documents:
            return None
        borders = np.array([self.t // 5, self.t // 5 + 1, 64, 128, self.t * 4 // 5])
        ids = (np.arange(self.t)[:, None] >= borders).sum(1)
        return jnp.asarray(np.stack([ids + 3 * row for row in range(self.b)]).astype(np.int32))


def evaluate(function, arrays, cotangents):
    """(outputs, gradients of every array) of function(q, k, v, log_decay, state or None) -> y, state."""

    @jax.jit
    def run(arrays, cotangents):
        out, pull_back = jax.vjp(lambda q, k, v, g, state=None: function(q, k, v, g, state), *arrays)
        return out, pull_back(tuple(cotangents))

    return jax.tree.map(np.asarray, run(tuple(arrays), cotangents))


def truth(call: Call):
    with jax.enable_x64(True):
        arrays, cotangents = (
            [jnp.asarray(x, jnp.float64) for x in some] for some in (call.arrays(), call.cotangents())
        )
        ids = call.segment_ids
        return evaluate(
            lambda q, k, v, g, state: reference.recurrence(q, k, v, g, initial_state=state, segment_ids=ids),
            arrays,
            cotangents,
        )


def measured(call: Call, **options):
    """As `truth`, by `gated_linear_attention`."""
    ids = call.segment_ids

    def attend(q, k, v, g, state):
        return gated_linear_attention(q, k, v, g, initial_state=state, segment_ids=ids, return_state=True, **options)

    return evaluate(attend, *arrays_of(call))


def arrays_of(call: Call):
    """Arrays and cotangents in the dtypes of the call."""
    arrays = [np.asarray(x, call.dtype if i < 3 else np.float32) for i, x in enumerate(call.arrays())]
    return arrays, [np.asarray(x, dtype) for x, dtype in zip(call.cotangents(), (call.dtype, "float32"), strict=True)]
