"""`jaxzoo data-demo-pile`: writes a small corpus in the Pile's format."""

import dataclasses
from pathlib import Path

from jaxzoo.cli.runner import command_line
from jaxzoo.config.checked import Checked


@dataclasses.dataclass(frozen=True, kw_only=True)
class DemoPileCommand(Checked):
    """Writes a small corpus of real text from the files of a Python installation, in the Pile's format: jsonl.zst files
    of two subsets, the standard library's sources and the language reference.

    The bytes depend only on the versions of Python and of the packages.
    """

    out: Path
    """Directory of the corpus: train/00.jsonl.zst, train/01.jsonl.zst, val.jsonl.zst."""
    packages: tuple[str, ...] = ()
    """Installed packages, such as numpy, whose sources are a third subset."""
    overwrite: bool = False
    """Replace existing files."""


@command_line()
def main(command: DemoPileCommand) -> None:
    from jaxzoo.data.corpus.python_pile import write_python_pile

    out = command.out.expanduser()
    for file, subsets in write_python_pile(out, command.packages, overwrite=command.overwrite).items():
        counts = "; ".join(f"{subset}: {n:,} documents, {n_bytes:,} bytes" for subset, (n, n_bytes) in subsets.items())
        print(f"{out / file}  {(out / file).stat().st_size:,} bytes of zst; {counts}")
