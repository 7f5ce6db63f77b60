"""Parser of a lowered Mosaic GPU module into a tree of operations.

JAX serializes such modules in a dialect without Python bindings; operations are printed in MLIR's generic form, one per
line, regions between `({` and `})`:

    %7 = "stable_mosaic_gpu.arith.addi"(%5, %6) : (index, index) -> index
    %9:2 = "stable_mosaic_gpu.scf.for"(%1, %2, %3, %4, %5) ({
    ^bb0(%arg2: index, %arg3: f32, %arg4: f32):
      ...
    }) : (index, index, index, f32, f32) -> (f32, f32)
"""

import collections
import dataclasses
import itertools
import re
from collections.abc import Iterator

_OPERATION = re.compile(
    r'^\s*(?:(?P<result>%\w+)(?::\d+)? = )?"(?:stable_mosaic_gpu\.)?(?P<name>[\w.]+)"\((?P<operands>[^)]*)\)'
)
_BLOCK = re.compile(r"^\s*\^\w+\((?P<arguments>.*)\):")
_ARGUMENT = re.compile(r"(%\w+):")


@dataclasses.dataclass(eq=False)
class Operation:
    """One operation; results of an operation with several ones are named `%9#0`, `%9#1`."""

    name: str
    """For example `scf.for`."""
    result: str | None
    operands: list[str]
    text: str
    """Attributes and types."""
    regions: list[list["Operation"]] = dataclasses.field(default_factory=list)
    arguments: list[str] = dataclasses.field(default_factory=list)
    """Arguments of the first region's block."""

    def integer(self, attribute: str) -> int | None:
        """Value of an integer attribute."""
        found = re.search(rf"\b{attribute} = (-?\d+|true|false)\b", self.text)
        if found is None:
            return None
        return int(found[1] == "true") if found[1].isalpha() else int(found[1])


class _Scope:
    """Operations of a region and visible values; MLIR reuses names in sibling regions."""

    def __init__(self, number: int, parent: Operation | None, names: collections.ChainMap):
        self.number, self.parent, self.names = number, parent, names
        self.operations: list[Operation] = []
        if parent is not None:
            parent.regions.append(self.operations)

    def unique(self, name: str) -> str:
        """Makes the name unique among regions."""
        self.names[name] = f"{name}.{self.number}"
        return self.names[name]

    def seen(self, name: str) -> str:
        base, hash_, number = name.partition("#")
        return self.names.get(base, base) + hash_ + number


def read_module(text: str) -> list[Operation]:
    """Top-level operations of a module, with unique value names."""
    numbers = itertools.count()
    scopes = [_Scope(next(numbers), None, collections.ChainMap())]
    for line in text.splitlines():
        scope, stripped = scopes[-1], line.strip()
        if stripped.startswith("}, {"):
            scopes[-1] = _Scope(next(numbers), scope.parent, scope.names.parents.new_child())
        elif stripped.startswith("})") and scope.parent is not None:
            scopes.pop()
            scope.parent.text += stripped[2:]
        elif block := _BLOCK.match(line):
            names = [scope.unique(name) for name in _ARGUMENT.findall(block["arguments"])]
            if scope.parent is not None and not scope.parent.arguments:
                scope.parent.arguments = names
        elif found := _OPERATION.match(line):
            operands = [scope.seen(x.strip()) for x in found["operands"].split(",") if x.strip()]
            result = found["result"] and scope.unique(found["result"])
            rest = line[found.end() :]
            operation = Operation(found["name"], result, operands, rest)
            scope.operations.append(operation)
            if rest.rstrip().endswith("({"):
                scopes.append(_Scope(next(numbers), operation, scope.names.new_child()))
    return scopes[0].operations


def by_result(operations: list[Operation]) -> dict[str, Operation]:
    """All operations with a result, by its name."""
    return {x.result: x for x in walk(operations) if x.result}


def walk(operations: list[Operation]) -> Iterator[Operation]:
    """All operations in text order, outer before inner."""
    for operation in operations:
        yield operation
        for region in operation.regions:
            yield from walk(region)
