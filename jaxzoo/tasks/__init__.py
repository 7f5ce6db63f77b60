"""Synthetic recall tasks: example i is a pure function of (config, seed, i, split).

Names are imported on first use, so that `python -m jaxzoo.tasks.mqar` runs a module that is not yet loaded.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxzoo.tasks.mqar import MQAR, MQARConfig

__all__ = ["MQAR", "MQARConfig"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("jaxzoo.tasks.mqar"), name)
