"""Libraries that are extras of pyproject.toml."""

import importlib.util


def need(library: str, what: str, extra: str = "data") -> None:
    """Raises `ValueError`, with the remedy, if the module `library`, part of an extra, is missing; `what` needs it."""
    if importlib.util.find_spec(library) is None:
        raise ValueError(f"{what} needs the library {library!r}; pip install -e '.[{extra}]'")
