"""Parts that the forms of `python -m jaxzoo.evaluate` share: its name, checks of its options, and its output."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxzoo.cli.flags import UsageError
from jaxzoo.cli.runner import say
from jaxzoo.whole_files import write_whole

if TYPE_CHECKING:
    from jaxzoo.models.blueprint import Blueprint

PROGRAM = "python -m jaxzoo.evaluate"


def check_out(out: Path | None) -> Path | None:
    """Returns the file of `--out` with `~` expanded.

    Raises:
      UsageError: its directory does not exist.
    """
    if out is None:
        return None
    if not (out := out.expanduser()).parent.is_dir():
        raise UsageError(f"--out {out}: its directory does not exist")
    return out


def write_results(table: str, out: Path | None, report: Mapping[str, Any]) -> None:
    """Prints a table, after writing the report, whole or not at all, to `out` if there is one.

    Raises:
      OSError: the report or the table cannot be written.
    """
    if out is not None:
        text = json.dumps(report, indent=1) + "\n"
        if out.exists() and not out.is_file():  # such as /dev/stdout
            out.write_text(text)
        else:
            write_whole(out.resolve(), text)
        say(f"written to {out}")
    print(table, flush=True)


def check_variables(trained: "Blueprint", asked: "Blueprint") -> None:
    """Refuses a model that has other variables than the trained one, by the name of the first.

    Raises:
      UsageError: which variable, and its shapes.
    """
    import jax

    shapes = [
        {
            jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape
            for path, leaf in jax.tree.leaves_with_path(blueprint.shapes)
        }
        for blueprint in (trained, asked)
    ]
    for name in sorted(shapes[0].keys() | shapes[1].keys()):
        before, after = (each.get(name) for each in shapes)
        if before != after:
            raise UsageError(
                f"variable {name} has shape {before} in the run and {after} with these flags; those of --model may "
                "change what is computed, not which variables there are"
            )
