"""Reports of `verify`, `benchmark` and `compile_check`: files, Markdown tables, versions in one line."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def write_whole(path: Path, text: str) -> None:
    """Writes a file atomically, and creates its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_text(text)
    unfinished.replace(path)


def write_json(path: Path, report: Mapping[str, Any]) -> None:
    """Writes a report atomically."""
    write_whole(path, json.dumps(report, indent=1) + "\n")


def table(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> list[str]:
    """Lines of a Markdown table; columns whose names end with ":" are aligned to the right."""
    names = list(columns)
    marks = ["---:" if name.endswith(":") else "---" for name in names]
    cells = ([name.rstrip(":") for name in names], marks, *rows)
    return [f"| {' | '.join(str(x).replace('|', '/') for x in row)} |" for row in cells]


def named(values: Mapping[str, Any]) -> str:
    """Names and values in one line: `jax 0.12.0, python 3.12.3`."""
    return ", ".join(f"{name} {value}" for name, value in values.items())
