"""Base of the verified cases: one pass of one kernel on random inputs, compared with the op's reference in float64.

A subclass in an op's `workloads.py` defines inputs, compared outputs and reference.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.benchmark.checks import wide
from pallas_kernels.dispatch import op_of
from pallas_kernels.op import Op, Options
from pallas_kernels.programs import kernels, triton_programs
from pallas_kernels.shape import Call
from pallas_kernels.verify.case import Compiled, Variant

TOLERANCES = {
    ("mosaic_gpu", "bfloat16"): (4e-3, 8e-3),
    ("mosaic_gpu", "float32"): (1e-5, 1e-4),
    ("mosaic_tpu", "bfloat16"): (1e-2, 1e-2),
    ("mosaic_tpu", "float32"): (1e-5, 1e-4),
    ("triton", "bfloat16"): (4e-3, 8e-3),
    ("triton", "float16"): (5e-4, 1e-3),
    ("triton", "float32"): (1e-5, 1e-4),
}
"""(outputs, gradients): bfloat16 rounds inputs of products, features or weights, and results by 2^-9 each, float16 by
2^-12."""
LONG = 1000
"""Tokens beyond which only the last head of the last row is compared: references have t x t scores in float64."""
HEADLINE = {"t": 8192, "b": 4, "h": 16, "g": 16}


class Inputs(NamedTuple):
    """NumPy arrays in the dtypes of the kernel."""

    operands: tuple
    """Arrays in the order of `Op.operands`; None where an operand is absent."""
    cotangents: tuple
    """One for each output of the op."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelCase:
    """Shape and options of a call."""

    OP: ClassVar[Op]
    PROBLEM: ClassVar[type[Call]]
    """Description of a call; takes the case's attributes of the same names."""
    NAMED: ClassVar[tuple[str, ...]]
    """Parts of the name, which certificates refer to: attributes, or words."""
    reference: ClassVar[Callable[..., Any]]
    """Method: operands -> outputs of the op by its definition, differentiable."""
    eager_interpretation: ClassVar[bool] = False
    """Whether interpreted kernels run one by one, outside a compiled program, as those in Triton always do."""

    implementation: str
    backward: bool
    t: int
    b: int = 1
    h: int = 2
    g: int = 2
    dtype: str = "bfloat16"

    @property
    def problem(self) -> Any:
        """Description of the call for the kernel's objection."""
        names = [field.name for field in dataclasses.fields(self.PROBLEM)]
        return self.PROBLEM(**{name: getattr(self, name) for name in names if hasattr(self, name)})

    @property
    def words(self) -> list[str]:
        """Last part of the name: numbers follow the names of their attributes, flags that are set are named."""
        found = []
        for name in self.NAMED:
            value = getattr(self, name, name)
            if isinstance(value, bool):
                found += [name] * value
            else:
                found.append(value if isinstance(value, str) else f"{name}{value}")
        return found

    @property
    def compared(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of the compared outputs and of the compared gradients, in order; "" skips one."""
        raise NotImplementedError

    def inputs(self, seed: int) -> Inputs:
        """Random inputs."""
        raise NotImplementedError

    def options(self, variant: Variant) -> dict[str, Any]:
        """Options of the op's `forward` and `backward`."""
        return {"options": Options(return_state=True, save_states=True)}

    @property
    def name(self) -> str:
        kind = "backward" if self.backward else "forward"
        return f"{op_of(self.problem)} {self.implementation} {kind} {'_'.join(self.words)}"

    @property
    def bound(self) -> float:
        """Relative L2 error allowed."""
        return TOLERANCES[self.implementation, self.dtype][self.backward]

    @property
    def tolerances(self) -> dict[str, float]:
        """Relative L2 error allowed for each output, by name, in the order of the outputs."""
        return dict.fromkeys(filter(None, self.compared[self.backward]), self.bound)

    def tokens(self, rng: np.random.Generator, *shape: int) -> np.ndarray:
        """Normal numbers (b, t, *shape) in the dtype of the case."""
        return rng.standard_normal((self.b, self.t, *shape)).astype(jnp.dtype(self.dtype))

    def floats(self, rng: np.random.Generator, *shape: int) -> np.ndarray:
        """Normal float32 numbers."""
        return rng.standard_normal(shape).astype(np.float32)

    def call(self, operands: tuple, cotangents: tuple, variant: Variant) -> list[jax.Array]:
        """The compared results of the kernels."""
        backend, options = self.OP.backends[self.implementation], self.options(variant)
        how = interpretation(self.implementation, variant)
        *outputs, saved = backend.forward(*operands, **options, **how)
        if not self.backward:
            return self._compared(outputs)
        kept = self.OP.kept(outputs, **options)
        return self._compared(backend.backward(*operands, *kept, saved, *cotangents, **options, **how))

    def program(self, inputs: Inputs, variant: Variant) -> tuple[Callable, Sequence[Any]]:
        """The function that runs the kernels, and its arguments."""
        return functools.partial(self.call, variant=variant), jax.tree.map(jnp.asarray, inputs)

    def compiled(self, inputs: Inputs, variant: Variant) -> Compiled:
        """Compiles the kernels and copies the inputs to the device."""
        run, given = self.program(inputs, variant)
        if variant.interpret and (self.eager_interpretation or self.implementation == "triton"):
            return Compiled(lambda: run(*given))
        lowered = jax.jit(run).lower(*given)
        program = lowered.compile()
        return Compiled(lambda: jax.block_until_ready(program(*given)), case_programs(lowered))

    def truth(self, inputs: Inputs) -> list[np.ndarray]:
        """The compared outputs in float64, computed on the host."""

        free = [name not in self.OP.fixed for name in self.OP.operands]

        def run(operands, cotangents):
            def form(*given):
                rest = iter(given)
                return self.reference(*(next(rest) if x else y for x, y in zip(free, operands, strict=True)))

            outputs, pull_back = jax.vjp(form, *itertools.compress(operands, free))
            return self._compared(pull_back(cotangents) if self.backward else outputs)

        exact = jax.tree.map(lambda x: wide(self.last(x)), inputs)
        with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
            return [np.asarray(x) for x in jax.jit(run)(*exact)]

    def last(self, x: np.ndarray) -> np.ndarray:
        """The compared part of (b,) arrays, of tokens or chunks (b, t or n, heads, ...), of states (b, heads, ...)."""
        if self.t <= LONG:
            return x
        if self.h == 1:  # channels in place of heads
            return x[-1:] if len(x) == self.b else x
        if x.ndim < 3:
            return x[-1:]
        return x[-1:, -1:] if x.shape[:2] == (self.b, self.h) else x[-1:, :, -1:]

    def checked(self, outputs: list[np.ndarray]) -> list[np.ndarray]:
        """Part of the outputs that `truth` computes."""
        return [self.last(x) for x in outputs]

    def _compared(self, values: Any) -> list[Any]:
        named = zip(self.compared[self.backward], jax.tree.leaves(values), strict=False)
        return [x for name, x in named if name]


def both_passes(
    kind: type[KernelCase], implementation: str, *shapes: dict[str, Any], **common: Any
) -> list[KernelCase]:
    """Forward and backward cases of every shape."""
    passes = ({"implementation": implementation, "backward": backward, **common} for backward in (False, True))
    return [kind(**one, **shape) for one in passes for shape in shapes]


def document_keep(b: int, t: int) -> np.ndarray:
    """Keep factors (b, t) of documents of 37 tokens: 0 at the first token of every document but the first."""
    place = np.arange(t)
    keep = (place % 37 > 0) | (place == 0)
    return np.broadcast_to(keep.astype(np.float32), (b, t))


def interpretation(implementation: str, variant: Variant) -> dict[str, Any]:
    """Options that make a backend's kernels run on a CPU."""
    if not variant.interpret or implementation == "triton":  # an environment variable selects Triton's interpreter
        return {}
    if implementation == "mosaic_tpu":
        return {"interpret": True}
    from jax.experimental.pallas import mosaic_gpu as plgpu

    return {"interpret": plgpu.InterpretGPUParams(detect_races=True)}


def case_programs(lowered: jax.stages.Lowered) -> list[str]:
    """Hashes of the Mosaic GPU and Triton kernels of a case, each once."""
    return sorted({*(kernel.program for kernel in kernels(lowered)), *triton_programs(lowered)})
