"""Libraries that only work on text on disk needs: the extra `data`."""

import importlib.util


def need(library: str, what: str) -> None:
    """Raises `ValueError`, with the remedy, where a library of the extra `data` is missing.

    Args:
        library: name of its module.
        what: what needs it.
    """
    if importlib.util.find_spec(library) is None:
        raise ValueError(f"{what} needs the library {library!r}; pip install -e '.[data]'")
