"""Random calls of gated linear attention."""

import dataclasses

import jax
import numpy as np

from pallas_kernels.gated_linear_attention import api, reference, xla
from pallas_kernels.op import Options
from tests.pallas_kernels.calls import RandomCall, described, rounded, typed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call(RandomCall):
    """q, k: (b, t, g, k); v: (b, t, h, v); log decays of tokens or channels, and an initial state."""

    t: int
    h: int = 2
    g: int = 2
    k: int = 5
    v: int = 3
    channel: bool = False
    state: bool = True
    decay: float = 1.0
    """The largest -log decay; every third token has decays near 1."""
    n_operands = 5

    def arrays(self) -> list[np.ndarray]:
        rng = np.random.default_rng(self.seed)
        shapes = (self.g, self.k), (self.g, self.k), (self.h, self.v)
        tokens = [rounded(rng.normal(size=(self.b, self.t, *x)), self.dtype) for x in shapes]
        tokens[1] = rounded(tokens[1] * self.k**-0.5, self.dtype)
        shape = (self.b, self.t, self.h, *[self.k] * self.channel)
        size = np.where(np.arange(self.t) % 3 == 0, 1e-3, self.decay).reshape(-1, *[1] * (len(shape) - 2))
        others = [-rng.random(shape) * size]
        others += [rng.normal(size=(self.b, self.h, self.k, self.v))] * self.state
        return tokens + [rounded(x, "float32") for x in others]

    def cotangents(self) -> list[np.ndarray]:
        rng = np.random.default_rng(self.seed + 1)
        dy = rng.normal(size=(self.b, self.t, self.h, self.v))
        return [rounded(dy, self.dtype), rounded(rng.normal(size=(self.b, self.h, self.k, self.v)), "float32")]

    @property
    def dtypes(self) -> tuple[str, ...]:
        return *[self.dtype] * 3, "float32", "float32"

    def reference(self, *operands):
        return reference.recurrence(*operands[:4], initial_state=operands[4], segment_ids=self.segment_ids)

    def apply(self, function, *operands, **options):
        options |= {"initial_state": operands[4], "segment_ids": self.segment_ids, "return_state": True}
        return function(*operands[:4], **options)


def interpreted(call: Call, implementation: str, **how):
    """(y, last state), and the gradients of all arrays, of an interpreted kernel."""
    (q, k, v, log_decay, *state), (dy, dstate) = typed(call)
    decays = log_decay if call.channel else log_decay[..., None]
    log_decay = jax.jit(xla.with_resets)(decays, call.segment_ids).reshape(log_decay.shape)
    operands = q, k, v, log_decay, state[0] if state else None
    kernels, options = api.BACKENDS[implementation], Options(return_state=True, save_states=True)
    y, last, saved = kernels.forward(*operands, options, **how)
    if implementation == "mosaic_gpu":
        assert described(saved) == described(kernels.saved_like(*operands))
    gradients = kernels.backward(*operands, saved, dy, dstate, options, **how)
    return (y, last), gradients[: 4 + call.state]
