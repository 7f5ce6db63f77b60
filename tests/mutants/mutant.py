"""Planted bugs: text replacements in the source, read from the `.txt` files of this folder.

A file lists groups: one source file, the tests that must fail (paths below `tests/`), and bugs. A bug is a name, the
original text after `- `, which occurs once in the source, and its replacement after `+ `; `\\n` is a line break.
"""

import dataclasses
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mutant:
    """One wrong text replacement in one file.

    Args:
        name: what goes wrong, e.g. "decay missing in step".
        path: source file, relative to the repository root.
        old: text that occurs exactly once in the file.
        new: its replacement.
        tests: core tests of the affected package: folders, files or test ids, relative to the repository root.
    """

    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]

    def mutate(self, root: Path = ROOT) -> str:
        """Text of the file with the bug. Raises ValueError unless `old` occurs exactly once."""
        text = (root / self.path).read_text()
        if (found := text.count(self.old)) != 1:
            raise ValueError(f"{self.path}: {self.old!r} occurs {found} times, must occur once (mutant {self.name!r})")
        return text.replace(self.old, self.new)


def read_mutants(text: str) -> list[Mutant]:
    """Mutants of one list."""
    found = []
    for line in filter(None, text.splitlines()):
        key, _, value = line.partition(" ")
        if key == "file":
            path, tests = value, ()
        elif key == "test":
            tests = (*tests, f"tests/{value}")
        elif key == "bug":
            name = value
        elif key == "-":
            old = value.replace("\\n", "\n")
        else:
            found.append(Mutant(name=name, path=path, old=old, new=value.replace("\\n", "\n"), tests=tests))
    return found


MUTANTS = [mutant for file in sorted(Path(__file__).parent.glob("*.txt")) for mutant in read_mutants(file.read_text())]
