"""Pallas Mosaic GPU kernels of a lowered program: text and hash of each module."""

import hashlib
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax

_NAMES = re.compile(
    r'(?P<module>^module )@\S+|(?P<dump>mosaic_gpu\.dump_basename)(?: = "[^"]*")?'
    r'|(?P<kernel>llvm\.emit_c_interface, )sym_name = "[^"]*"',
    re.MULTILINE,
)
"""Names in a module: the kernel's name, and with JAX 0.11 a counter of modules."""


class Kernel(NamedTuple):
    """One kernel launch of a lowered program."""

    key: str
    """JAX's hash, as printed in compiled programs."""
    text: str
    """The module in MLIR's generic form, without source locations."""

    @property
    def program(self) -> str:
        """SHA-256 of the text without names: equal for kernels that compile to the same machine code."""
        text = _NAMES.sub(lambda found: found[found.lastgroup or ""], self.text)
        return hashlib.sha256(text.encode()).hexdigest()


def kernels(lowered: jax.stages.Lowered) -> list[Kernel]:
    """Mosaic GPU kernels of a program lowered for CUDA, in program order; needs no GPU."""
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
