"""Names of classes. Kills: one name for two classes."""

import ast
import collections
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "jaxzoo"


def test_every_class_of_the_package_has_a_name_of_its_own():
    """Kills: a second `Progress` or `Manifest`, which a reader who searches for the first one finds instead."""
    places = collections.defaultdict(list)
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(file.relative_to(PACKAGE)))
    assert len(places) > 400
    assert {name: files for name, files in places.items() if len(files) > 1} == {}
