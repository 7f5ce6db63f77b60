"""Base of the cases of all kernels: shapes, tolerances, compilation, and the truth in float64."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.programs import kernels
from pallas_kernels.verify.case import Compiled, Variant

TOLERANCES = {
    ("mosaic_gpu", "bfloat16"): (4e-3, 8e-3),
    ("mosaic_gpu", "float32"): (1e-5, 1e-4),
    ("mosaic_tpu", "bfloat16"): (1e-2, 1e-2),
    ("mosaic_tpu", "float32"): (1e-5, 1e-4),
}
"""(outputs, gradients): bfloat16 rounds inputs of products, features or weights, and results by 2^-9 each."""
LONG = 1000
"""Tokens beyond which only the last head of the last row is checked: the truth has t x t scores in float64."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelCase:
    """Shapes and options of a call."""

    implementation: str
    backward: bool
    t: int
    b: int = 1
    h: int = 2
    g: int = 2
    dtype: str = "bfloat16"

    eager_interpretation: ClassVar[bool] = False
    """Whether the interpreted kernels run without a program around them."""

    def bounds(self, outputs: tuple[str, ...], gradients: tuple[str, ...]) -> dict[str, float]:
        values, slopes = TOLERANCES[self.implementation, self.dtype]
        return dict.fromkeys(gradients, slopes) if self.backward else dict.fromkeys(outputs, values)

    def rounded(self, x) -> np.ndarray:
        return np.asarray(x, jnp.dtype(self.dtype)).astype(np.float64)

    def program(self, arrays: list[np.ndarray], variant: Variant) -> tuple[Callable, Sequence[Any]]:
        """The function that runs the kernels, and its arguments."""
        raise NotImplementedError

    def compiled(self, arrays: list[np.ndarray], variant: Variant) -> Compiled:
        run, given = self.program(arrays, variant)
        if variant.interpret and self.eager_interpretation:
            return Compiled(lambda: run(*given))
        lowered = jax.jit(run).lower(*given)
        program = lowered.compile()
        return Compiled(lambda: jax.block_until_ready(jax.tree.leaves(program(*given))), case_programs(lowered))

    def device_arrays(self, arrays) -> list[jax.Array]:
        """Tokens in the dtype of the case, states (which lack a time axis) in float32."""
        tokens = (self.b, self.t)
        return [jnp.asarray(x, self.dtype if x.shape[:2] == tokens else jnp.float32) for x in arrays]

    def last(self, x: np.ndarray) -> np.ndarray:
        """Checked values of tokens (b, t, heads, .) or of states (b, heads, ...)."""
        if self.t <= LONG:
            return x
        return x[-1:, :, -1:] if x.shape[:2] == (self.b, self.t) else x[-1:, -1:]

    def checked(self, outputs: list[np.ndarray]) -> list[np.ndarray]:
        return [self.last(x) for x in outputs]


def interpretation(implementation: str, variant: Variant) -> dict[str, Any]:
    """Options that make a backend's kernels run on a CPU."""
    if not variant.interpret:
        return {}
    if implementation == "mosaic_tpu":
        return {"interpret": True}
    from jax.experimental.pallas import mosaic_gpu as plgpu

    return {"interpret": plgpu.InterpretGPUParams(detect_races=True)}


def case_programs(lowered: jax.stages.Lowered) -> list[str]:
    """Hashes of the Mosaic GPU kernels of a case, each once."""
    return sorted({kernel.program for kernel in kernels(lowered)})


def exactly(run, arrays) -> list[np.ndarray]:
    """run(*arrays) in float64 on the host."""
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        return [np.asarray(x) for x in jax.jit(run)(*(jnp.asarray(x, jnp.float64) for x in arrays))]
