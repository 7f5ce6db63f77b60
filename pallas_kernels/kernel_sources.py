"""Hash of the syntax trees of an op's kernels, which changes whenever their lowered programs could change.

It ignores docstrings, comments, formatting, file names and the version of Python. Kernels in Mosaic and in Triton have
hashes of their own. Triton's code is in modules `triton*.py`, Mosaic's in modules `mosaic*.py` and what these import.
What other modules say of Triton does not count for Mosaic's hash: functions with "triton" in their names, entries
"triton" of tables, and what is imported for these alone.
"""

import ast
import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent
MOSAIC, TRITON = "mosaic", "triton"
LANGUAGES = (MOSAIC, TRITON)
"""Languages of kernels."""
CHOICE = {
    "certificates",
    "dispatch",
    "halo",
    "kernel_sources",
    "layout",
    "op",
    "programs",
    "registry",
    "triton_packages",
    "workload",
}
"""Modules that contain no part of a kernel."""


@functools.cache
def kernel_hash(op: str, language: str = MOSAIC) -> str:
    """SHA-256 of the syntax trees of an op's `*api.py` and of all modules of this package that they import, but for
    modules of the other language."""
    found: dict[Path, ast.Module] = {}
    left, other = sorted(ROOT.glob(f"{op}/*api.py")), MOSAIC if language == TRITON else TRITON
    while left:
        file = left.pop()
        if file not in found and not file.name.startswith(other):
            tree = ast.parse(file.read_text())
            found[file] = tree if language == TRITON else _without_triton(tree)
            left += _imported(found[file])
    return hashlib.sha256("\n".join(sorted(map(_tree_hash, found.values()))).encode()).hexdigest()


def has_triton(op: str) -> bool:
    """Whether an op has Triton kernels."""
    return (ROOT / op / "triton.py").is_file()


def _without_triton(tree: ast.Module) -> ast.Module:
    """Removes what a module says of Triton kernels, and names that are imported for that alone."""
    before = _names(tree)
    tree = _WithoutTriton().visit(tree)
    return _WithoutImports(before - _names(tree)).visit(tree)


def _names(tree: ast.Module) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


class _WithoutImports(ast.NodeTransformer):
    """Removes imports of names."""

    def __init__(self, names: set[str]):
        self._names = names

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        names = [name for name in node.names if (name.asname or name.name) not in self._names]
        return ast.ImportFrom(node.module, names, node.level) if names else None


class _WithoutTriton(ast.NodeTransformer):
    """Removes functions with "triton" in their names, and entries "triton" of tables."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST | None:
        return None if TRITON in node.name else self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        kept = [(key, value) for key, value in zip(node.keys, node.values, strict=True) if not _is_triton(key)]
        return self.generic_visit(ast.Dict([key for key, _ in kept], [value for _, value in kept]))


def _is_triton(key: ast.AST | None) -> bool:
    return isinstance(key, ast.Constant) and key.value == TRITON


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
