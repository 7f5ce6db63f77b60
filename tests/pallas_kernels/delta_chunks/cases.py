"""Random calls of the recurrence over chunks and of the general delta rule."""

import dataclasses

import jax
import numpy as np

from pallas_kernels.delta_chunks import api, general_api, reference
from pallas_kernels.op import Options
from tests.pallas_kernels.calls import RandomCall, described, rounded, typed

RESET = -8192.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class _DeltaCall(RandomCall):
    """Heads and widths; `last`: whether the last state is returned."""

    h: int = 2
    k: int = 6
    v: int = 5
    state: bool = True
    last: bool = True

    def cotangents(self) -> list[np.ndarray]:
        rng = np.random.default_rng(self.seed + 1)
        dy = rng.normal(size=(self.b, self.length, self.h, self.v))
        dstate = rng.normal(size=(self.b, self.h, self.k, self.v))
        return [rounded(dy, self.dtype), rounded(dstate, "float32")]

    def reference(self, *operands):
        y, state = self.recurrence(*operands[:-1], initial_state=operands[-1])
        return (y, state) if self.last else y

    def apply(self, function, *operands, **options):
        return function(*operands[:-1], initial_state=operands[-1], return_state=self.last, **options)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call(_DeltaCall):
    """Chunks x, read, write, mix and keep, and an initial state.

    mix is not triangular, some rows of a state are kept whole and some not at all; states do not grow.
    """

    n: int
    chunk: int = 8
    n_operands = 6
    recurrence = staticmethod(reference.recurrence)

    @property
    def length(self) -> int:
        return self.n * self.chunk

    def arrays(self) -> list[np.ndarray]:
        rng = np.random.default_rng(self.seed)
        tokens, chunks = (self.b, self.length, self.h), (self.b, self.n, self.h)
        x = rng.normal(size=(*tokens, self.v))
        read, write = rng.normal(size=(2, *tokens, self.k)) * (self.k * self.chunk) ** -0.25
        mix = rng.normal(size=(*chunks, self.chunk, self.chunk)) * 0.5 * self.chunk**-0.5
        keep = np.clip(rng.uniform(-0.2, 1.2, size=(*chunks, self.k)), 0, 1)
        arrays = [x, read, write, mix, keep] + [rng.normal(size=(self.b, self.h, self.k, self.v))] * self.state
        return [rounded(z, dtype) for z, dtype in zip(arrays, self.dtypes, strict=False)]

    @property
    def dtypes(self) -> tuple[str, ...]:
        return *[self.dtype] * 4, "float32", "float32"


@dataclasses.dataclass(frozen=True, kw_only=True)
class GeneralCall(_DeltaCall):
    """q, k, v, u, z, log decays of channels, and an initial state; documents have 37 tokens.

    u and z have no direction in common with the keys; decays reach from none to e^-3.
    """

    t: int
    n_operands = 7
    recurrence = staticmethod(reference.general_recurrence)

    @property
    def length(self) -> int:
        return self.t

    def arrays(self) -> list[np.ndarray]:
        rng = np.random.default_rng(self.seed)
        tokens = (self.b, self.t, self.h)
        q, k, u, other = rng.normal(size=(4, *tokens, self.k))
        v = rng.normal(size=(*tokens, self.v))
        u /= np.linalg.norm(u, axis=-1, keepdims=True)
        z = -rng.uniform(size=u.shape) * (u + 0.3 * other / np.linalg.norm(other, axis=-1, keepdims=True))
        log_decay = -3 * rng.uniform(size=u.shape) ** 4
        if self.documents:
            begins = np.arange(self.t) % 37 == 0
            u = np.where(begins[:, None, None], 0, u)
            log_decay = np.where(begins[:, None, None], RESET, log_decay)
        state = rng.normal(size=(self.b, self.h, self.k, self.v))
        arrays = [q, k * self.k**-0.5, v, u, z, log_decay] + [state] * self.state
        return [rounded(x, dtype) for x, dtype in zip(arrays, self.dtypes, strict=False)]

    @property
    def dtypes(self) -> tuple[str, ...]:
        return *[self.dtype] * 5, "float32", "float32"


def interpreted(call: Call | GeneralCall, interpret):
    """(y, last state), and the gradients of all arrays, of the interpreted Hopper kernels; padding is zeros."""
    arrays, (dy, dstate) = typed(call)
    of, general = (general_api, True) if isinstance(call, GeneralCall) else (api, False)
    n = call.n_operands - 1
    pad = lambda x: np.pad(x, ((0, 0), (0, -call.length % 64), (0, 0), (0, 0))) if general else x  # noqa: E731
    operands = *map(pad, arrays[:n]), arrays[n] if call.state else None
    run, options = of.BACKENDS["mosaic_gpu"], Options(return_state=True, save_states=True)
    problem = of.problem_of(operands[1], operands[2]) if general else of.problem_of(*operands[:2], operands[3])
    assert run.objection(problem) is None
    y, last, saved = run.forward(*operands, options, interpret=interpret)
    like = jax.eval_shape(lambda *x: of.BACKENDS["xla"].forward(*x, options), *operands)
    assert described((y, last, saved)) == described(tuple(like))
    kept = (saved, pad(dy)) if general else (y, saved, dy)
    gradients = run.backward(*operands, *kept, dstate, options, interpret=interpret)
    cut = [x[:, : call.length] for x in gradients[:n]] if general else gradients[:n]
    return (y[:, : call.length], last), (*cut, *gradients[n:])[: len(arrays)]
