"""Typed configs and JSON, independent of all other packages."""

import importlib
import warnings
from typing import Any

_MOVED = "jaxzoo.train.config"
"""Module of the names that config files have imported from here until version 0.1.0."""


def __getattr__(name: str) -> Any:
    if name.startswith("_") or not name[0].isupper():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MOVED), name)
    warnings.warn(f"{__name__}.{name} is now {_MOVED}.{name}; the old name goes in 0.2.0", FutureWarning, stacklevel=2)
    return value
