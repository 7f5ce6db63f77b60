"""Bytes between a chip and its memory in one run of a compiled program.

Every instruction reads its operands and writes its results once. On-chip memory of a TPU and values inside a fusion are
not counted, nor are caches and repeated reads of a matmul. If an array is sliced, or updated in place, only the slice
counts.
"""

from jaxzoo.plan.hlo import Array, Computation, Hlo, Instruction

_FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "call", "conditional", "after-all",
    "partition-id", "replica-id", "async-start", "opt-barrier", "domain",
}  # fmt: skip
_FREE_CALLS = ("ConcatBitcast", "AllocateBuffer", "AsyncCollective", "AssumeGatherIndicesInBound", "Sharding")
_PASSED_ON = ("parameter", "tuple", "all-gather", "all-reduce", "all-to-all", "reduce-scatter", "collective-permute")
"""Instructions that only pass an array on, in a TPU's fusion, while a collective runs next to its arithmetic."""
_SLICES = ("dynamic-slice", "slice", "gather")
_UPDATES = {"dynamic-update-slice": 1, "scatter": 2}
"""Updates in place of the first operand -> place of the operand that is written."""


def memory_bytes(hlo: Hlo) -> int:
    """Bytes read and written."""
    return sum(times * instruction_bytes(hlo, computation, each) for computation, each, times in hlo.steps())


def instruction_bytes(hlo: Hlo, computation: Computation, instruction: Instruction) -> int:
    """Bytes that one run of an instruction reads and writes."""
    if is_free(instruction):
        return 0
    return _read(hlo, computation, instruction) + _written(hlo, computation, instruction)


def is_free(instruction: Instruction) -> bool:
    """Whether an instruction moves no bytes."""
    if instruction.opcode == "custom-call":
        return any(f'custom_call_target="{name}' in instruction.attributes for name in _FREE_CALLS)
    return instruction.opcode in _FREE or instruction.opcode.endswith(("-done", "-update"))


def _read(hlo: Hlo, computation: Computation, instruction: Instruction) -> int:
    operands = [computation[name] for name in instruction.operands if name in computation]
    opcode = instruction.opcode.removesuffix("-start")
    if opcode in _SLICES and operands:
        return _size(_outputs(instruction), like=operands[0].results[0])
    if opcode in _UPDATES:
        return sum(_size(operand.results) for operand in operands[1:])
    if opcode == "fusion":
        inside = hlo.computations[instruction.called[0]]
        pairs = zip(operands, inside.parameters, strict=False)
        return sum(_used(hlo, inside, parameter, operand) for operand, parameter in pairs)
    return sum(_size(operand.results) for operand in operands)


def _written(hlo: Hlo, computation: Computation, instruction: Instruction) -> int:
    opcode = instruction.opcode.removesuffix("-start")
    if opcode == "fusion":
        inside = hlo.computations[instruction.called[0]]
        names = inside.root.operands if inside.root.opcode == "tuple" else (inside.root.name,)
        return sum(_put(hlo, inside, inside[name]) for name in names)
    if opcode in _UPDATES:
        return _put(hlo, computation, instruction)
    return _size(_outputs(instruction))


def _outputs(instruction: Instruction) -> tuple[Array, ...]:
    """Outputs of an instruction, without the operands that the result tuple of an asynchronous start also holds."""
    n = len(instruction.operands)
    if instruction.opcode == "copy-start":
        return instruction.results[:1]
    if instruction.opcode.endswith("-start") and len(instruction.results) >= 2 * n:
        return instruction.results[n : 2 * n]
    return instruction.results


def _used(hlo: Hlo, inside: Computation, parameter: Instruction, operand: Instruction) -> int:
    """Bytes that a fusion reads of an operand, by its slices and updates, also in a nested fusion."""
    names = {parameter.name}
    total = 0
    for user in inside.values():
        used = [i for i, name in enumerate(user.operands) if name in names]
        if not used or user.opcode in _PASSED_ON or (user.opcode == "custom-call" and is_free(user)):
            continue
        if user.opcode == "bitcast":
            names.add(user.name)
        elif user.opcode in _SLICES and used == [0]:
            total += _size(user.results, like=operand.results[0])
        elif user.opcode == "fusion":
            within = hlo.computations[user.called[0]]
            total += sum(_used(hlo, within, within.parameters[i], operand) for i in used)
        elif user.opcode not in _UPDATES or used != [0]:
            return _size(operand.results)
    return min(total, _size(operand.results))


def _put(hlo: Hlo, inside: Computation, result: Instruction) -> int:
    """Bytes that a computation writes for one result; an update in place counts the updated part only."""
    root = result  # after bitcasts
    while root.opcode == "bitcast" and root.operands[0] in inside:
        root = inside[root.operands[0]]
    if root.opcode == "fusion" and result.results[0].space == 0 and len(root.results) == 1:
        within = hlo.computations[root.called[0]]
        return _put(hlo, within, within.root)
    if root.opcode in _UPDATES and (update := root.operands[_UPDATES[root.opcode]]) in inside:
        return _size(inside[update].results, like=result.results[0])
    return 0 if root.opcode in _PASSED_ON else _size(result.results)


def _size(arrays: tuple[Array, ...], *, like: Array | None = None) -> int:
    """Bytes of the arrays that are in the chip's memory; `like`: array in whose memory space all of them are."""
    if like is not None:
        return sum(array.bytes for array in arrays) if like.space == 0 else 0
    return sum(array.bytes for array in arrays if array.space == 0)
