"""Pallas Mosaic GPU kernels and Triton kernels of a lowered program: text and hash of each."""

import hashlib
import re
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax

_NAMES = re.compile(
    r'(?P<module>^module )@\S+|(?P<dump>mosaic_gpu\.dump_basename)(?: = "[^"]*")?'
    r'|(?P<kernel>llvm\.emit_c_interface, )sym_name = "[^"]*"',
    re.MULTILINE,
)
"""Names in a module: the kernel's name, and with JAX 0.11 a counter of modules."""
_NOT_CODE = re.compile(r"^\s*\.(?:file|section\s+\.debug).*", re.MULTILINE | re.DOTALL)
"""Tables of debug information at the end of PTX."""
_PLACES = re.compile(r"[ \t]*//.*|^\s*\.loc\b.*|^\$L__(?:tmp|func_begin|func_end)\d+:.*", re.MULTILINE)
"""Comments and source locations in PTX."""
_MESSAGES, _PTX, _SOURCE = {(1,), (1, 1)}, (1, 1, 4), (1, 1, 5)
"""Fields of jax-triton's message: the launch and its kernel, its PTX, and the module from which that is made."""


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
    for call in _custom_calls(module, "mosaic_gpu"):
        config = call.attributes["mhlo.backend_config"]
        kernel = type(module).parse(config["module"].value_bytes, context=module.context)
        found.append(Kernel(str(config["kernel_hash"])[1:-1], str(kernel)))
    return found


def triton_programs(lowered: jax.stages.Lowered) -> list[str]:
    """SHA-256 of each launch of a Triton kernel, without source locations."""
    return [
        _launch_hash(zlib.decompress(call.attributes["backend_config"].value_bytes))
        for call in _custom_calls(lowered.compiler_ir("stablehlo"), "triton_kernel_call")
    ]


def _launch_hash(config: bytes) -> str:
    """Hash of the message that jax-triton passes to XLA: PTX without its locations, shared memory, warps, grid."""
    digest = hashlib.sha256()
    for path, value in _fields(config):
        text = str(value) if isinstance(value, int) else value.decode(errors="replace")
        if path == _PTX:
            text = "\n".join(filter(str.strip, _PLACES.sub("", _NOT_CODE.sub("", text)).splitlines()))
        if path != _SOURCE:
            digest.update(f"{path} {text}\n".encode())
    return digest.hexdigest()


def _fields(message: bytes, path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Numbers and values of the fields of a protocol buffer, with those of the kernel in it."""
    place = 0

    def number() -> int:
        nonlocal place
        found = shift = 0
        while True:
            byte = message[place]
            place, found, shift = place + 1, found | (byte & 127) << shift, shift + 7
            if byte < 128:
                return found

    while place < len(message):
        key = number()
        name, size = (*path, key >> 3), number()
        if key & 7 == 0:
            yield name, size
            continue
        if key & 7 != 2:
            raise ValueError(f"jax-triton's message has a field {name} of type {key & 7}, not a number or bytes")
        value, place = message[place : place + size], place + size
        yield from _fields(value, name) if name in _MESSAGES else [(name, value)]


def _custom_calls(module: Any, target: str) -> Iterator[Any]:
    for call in _operations(module.operation):
        if call.name == "stablehlo.custom_call" and target in str(call.attributes["call_target_name"]):
            yield call


def _operations(operation: Any) -> Iterator[Any]:
    for region in operation.regions:
        for block in region.blocks:
            for child in block.operations:
                yield child.operation
                yield from _operations(child.operation)
