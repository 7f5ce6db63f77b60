"""Imports and unpickling (CONTRIBUTING, trusted inputs). Kills: data that run code when read."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "jaxzoo"

IMPORTS = {"import_module", "exec_module", "spec_from_file_location", "run_path", "run_module", "__import__"}
CODE = {"exec", "eval", "source_to_code", "Unpickler", "allow_pickle"}
MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "runpy", "yaml"}

ALLOWED = {
    ("__init__.py", "import_module"): "modules of this package, by names in the source",
    ("cli/commands.py", "import_module"): "commands of this package, by names in the source",
    ("cli/user_files.py", "exec"): "the file that the user names by --config or --experiment",
    ("config/__init__.py", "import_module"): "a module of this package, by its name in the source",
    ("data/corpus/python_pile.py", "import_module"): "installed packages, by names in the source",
    ("sweep/__init__.py", "import_module"): "modules of this package, by names in the source",
    ("train/trackers.py", "import_module"): "wandb or trackio, as the user names it by --tracker",
    ("tasks/demos.py", "import_module"): "modules of this package, by names in the source",
}
"""(File, what it calls or imports) -> what reaches it. Nothing here may read a name or bytes from a data file."""


def uses(file: Path) -> set[str]:
    """Names in a file by which Python runs code that is not in its source."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.keyword) and node.arg and not (node.arg == "allow_pickle" and _is_false(node.value)):
            found.add(node.arg)
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {(node.module or "").split(".")[0], *(alias.name for alias in node.names)}
    return found & (IMPORTS | CODE | MODULES)


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def test_only_listed_places_import_or_unpickle():
    """Kills: a run, a checkpoint, a corpus or a sweep that runs code as soon as it is read."""
    files = sorted(PACKAGE.rglob("*.py"))
    found = {(str(file.relative_to(PACKAGE)), name) for file in files for name in uses(file)}
    assert len(files) > 200
    assert found - ALLOWED.keys() == set()
