"""Configs and experiments of the package by name: `mqar/based`, `zoology_figure2`.

A wheel holds them in `jaxzoo/packaged`; in a clone they are the folders `configs` and `experiments` of the repository.
"""

from pathlib import Path
from typing import Literal

PACKAGE = Path(__file__).parents[1]

Kind = Literal["configs", "experiments"]


def folder(kind: Kind) -> Path:
    """Folder of the packaged files of a kind."""
    inside = PACKAGE / "packaged" / kind
    return inside if inside.is_dir() else PACKAGE.parent / kind


def names(kind: Kind) -> list[str]:
    """Names of the packaged files."""
    files = folder(kind).rglob("*.py")
    return sorted(file.relative_to(folder(kind)).with_suffix("").as_posix() for file in files if file.stem[0] != "_")


def find(text: str, kind: Kind) -> str:
    """Returns the packaged file of this name; an existing path or a path with a suffix is returned unchanged."""
    if text in names(kind) and not Path(text).exists():
        return str(folder(kind) / f"{text}.py")
    return text


def missing(file: Path, kind: Kind) -> str:
    """Returns ` does not exist`, with the name of the packaged file that was probably meant."""
    from jaxzoo.config.checked import nearest

    parts = file.with_suffix("").parts
    name = "/".join(parts[parts.index(kind) + 1 :] if kind in parts else parts)
    known = names(kind)
    if name in known:
        return f"does not exist; the packaged one is {name}"
    return f"does not exist{nearest(name, known)}" if not file.suffix else "does not exist"
