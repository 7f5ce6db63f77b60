"""Pallas Mosaic GPU kernels of a lowered program, as text and as hashes that identify what they compute."""

import hashlib
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax

_NAME = re.compile(r'(llvm\.emit_c_interface, )sym_name = "[^"]*"')


class Kernel(NamedTuple):
    """One kernel launch of a lowered program."""

    key: str
    """JAX's hash, as compiled programs print it."""
    text: str
    """The module in MLIR's generic form, without source locations."""

    @property
    def program(self) -> str:
        """SHA-256 of the text without the kernel's name: equal for kernels that compile to the same machine code."""
        return hashlib.sha256(_NAME.sub(r"\1", self.text).encode()).hexdigest()


def kernels(lowered: jax.stages.Lowered) -> list[Kernel]:
    """Mosaic GPU kernels of a program lowered for CUDA, in the order of the program; no GPU is needed."""
    module: Any = lowered.compiler_ir("stablehlo")
    module.context.allow_unregistered_dialects = True
    found = []
    for call in _operations(module.operation):
        if call.name != "stablehlo.custom_call" or "mosaic_gpu" not in str(call.attributes["call_target_name"]):
            continue
        config = call.attributes["mhlo.backend_config"]
        kernel = type(module).parse(config["module"].value_bytes, context=module.context)
        found.append(Kernel(str(config["kernel_hash"])[1:-1], str(kernel)))
    return found


def _operations(operation: Any) -> Iterator[Any]:
    for region in operation.regions:
        for block in region.blocks:
            for child in block.operations:
                yield child.operation
                yield from _operations(child.operation)
