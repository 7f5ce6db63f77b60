"""Hash of the syntax trees of an op's kernels, which changes whenever their lowered programs could change.

It ignores docstrings, comments, formatting, file names and the version of Python.
"""

import ast
import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent
CHOICE = {"certificates", "dispatch", "halo", "kernel_sources", "layout", "op", "programs", "registry", "workload"}
"""Modules that contain no part of a kernel."""


@functools.cache
def kernel_hash(op: str) -> str:
    """SHA-256 of the syntax trees of an op's `*api.py` and of all modules of this package that they import."""
    found: dict[Path, ast.Module] = {}
    left = sorted(ROOT.glob(f"{op}/*api.py"))
    while left:
        file = left.pop()
        if file not in found:
            found[file] = ast.parse(file.read_text())
            left += _imported(found[file])
    return hashlib.sha256("\n".join(sorted(map(_tree_hash, found.values()))).encode()).hexdigest()


def _imported(tree: ast.Module) -> Iterator[Path]:
    """Files of this package that a module imports at any level."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == ROOT.name:
            path = ROOT.joinpath(*(node.module or "").split(".")[1:])
            for file in (path.with_suffix(".py"), *(path / f"{name.name}.py" for name in node.names)):
                if not file.is_file() or file.name == "reference.py":
                    continue
                if file.relative_to(ROOT).with_suffix("").as_posix() not in CHOICE:
                    yield file


def _tree_hash(tree: ast.Module) -> str:
    digest = hashlib.sha256()
    for word in _words(tree):
        digest.update(word.encode() + b"\0")
    return digest.hexdigest()


def _words(value: object) -> Iterator[str]:
    """Words of a syntax tree, without empty fields, in which versions of Python differ."""
    if isinstance(value, ast.AST):
        yield type(value).__name__
        for name, child in ast.iter_fields(value):
            if child not in (None, []) and (type(value), name) != (ast.ImportFrom, "module"):
                yield name
                yield from _words(child)
        yield "."
    elif isinstance(value, list):
        for child in value:
            if not _is_text(child):  # a docstring
                yield from _words(child)
    else:
        yield repr(value)


def _is_text(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
