"""Libraries that are extras of pyproject.toml."""

import importlib.util


def need(library: str, what: str, extra: str = "data") -> None:
    """Raises `ValueError`, with the remedy, where a library is missing.

    Args:
        library: name of its module.
        what: what needs it.
        extra: the one that installs it.
    """
    if importlib.util.find_spec(library) is None:
        raise ValueError(f"{what} needs the library {library!r}; pip install -e '.[{extra}]'")
