"""The description of one planted bug."""

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


def planted(path: str, test: str, *bugs: tuple[str, str, str]) -> list[Mutant]:
    """Bugs in one file, each a name, a text and its replacement, that one test, or file of tests, kills."""
    return [Mutant(name=name, path=path, old=old, new=new, tests=(test,)) for name, old, new in bugs]
