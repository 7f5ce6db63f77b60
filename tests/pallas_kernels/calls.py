"""Random calls of an op: arrays and cotangents, the float64 truth with gradients, the numbers of an implementation."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np


def rounded(x, dtype) -> np.ndarray:
    """float64 numbers that `dtype` holds."""
    return np.asarray(np.asarray(x, jnp.dtype(dtype)), np.float64)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RandomCall:
    """Shapes and kinds of the arrays of a call.

    A subclass has `arrays()` and `cotangents()` in float64, `dtypes` and `cotangent_dtypes`, `reference(*operands)`,
    and `apply(function, *operands, **options)`, which calls an op or its sharded form; missing operands are None.
    """

    b: int = 2
    documents: bool = False
    dtype: str = "float32"
    seed: int = 0
    n_operands: ClassVar[int]
    borders: ClassVar[tuple[int, ...]] = (64, 128)
    """First tokens of documents, besides some that depend on the length."""

    def __str__(self) -> str:
        changed = [x.name for x in dataclasses.fields(self) if getattr(self, x.name) != x.default]
        return ",".join(f"{name}={getattr(self, name)}" for name in changed)

    @property
    def cotangent_dtypes(self) -> tuple[str, ...]:
        return self.dtype, "float32"

    @property
    def segment_ids(self) -> jax.Array | None:
        """Documents that begin within chunks and at their borders, of one token too."""
        if not self.documents:
            return None
        t = vars(self)["t"]
        borders = np.array([t // 5, t // 5 + 1, *self.borders, t * 4 // 5])
        ids = (np.arange(t)[:, None] >= borders).sum(1)
        return jnp.asarray(np.stack([ids + 3 * row for row in range(self.b)]).astype(np.int32))


def typed(call: Any) -> tuple[list, list]:
    """Arrays and cotangents in the dtypes of the call."""

    def cast(arrays, dtypes):
        pairs = zip(arrays, dtypes, strict=False)
        return [None if x is None else np.asarray(x, jnp.dtype(dtype)) for x, dtype in pairs]

    return cast(call.arrays(), call.dtypes), cast(call.cotangents(), call.cotangent_dtypes)


def evaluate(function, arrays, cotangents, n: int):
    """Outputs of a function of n operands, and the gradients of the arrays, which are the first ones."""

    @jax.jit
    def run(arrays, cotangents):
        out, pull_back = jax.vjp(lambda *arrays: function(*arrays, *[None] * (n - len(arrays))), *arrays)
        return out, pull_back(tuple(cotangents) if isinstance(out, tuple) else cotangents[0])

    return jax.tree.map(np.asarray, run(tuple(arrays), tuple(cotangents)))


def truth(call: Any):
    """Outputs and gradients of the reference in float64."""
    with jax.enable_x64(True):
        wide = [
            [None if x is None else jnp.asarray(x, jnp.float64) for x in some]
            for some in (call.arrays(), call.cotangents())
        ]
        return evaluate(call.reference, *wide, call.n_operands)


def measured(call: Any, function, **options):
    """Outputs and gradients of an op in the dtypes of the call."""
    return evaluate(lambda *x: call.apply(function, *x, **options), *typed(call), call.n_operands)


def gpu_interpreter():
    """Parameters of Pallas' GPU interpreter, which detects races."""
    from jax.experimental.pallas import mosaic_gpu as plgpu

    return plgpu.InterpretGPUParams(detect_races=True)


def described(tree):
    """Shapes and dtypes of a tree."""
    return jax.tree.map(lambda x: (x.shape, x.dtype), tree)
