"""jaxzoo: sequence mixers beyond attention, and the recall tasks that tell them apart."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxzoo.fitting import fit as fit
    from jaxzoo.inspection import capture as capture
    from jaxzoo.layers.variables import (
        learning_rate_scales as learning_rate_scales,
        shardings as shardings,
        weight_decay_mask as weight_decay_mask,
    )
    from jaxzoo.loading import load as load

__version__ = "0.1.0"

__all__ = ["capture", "fit", "learning_rate_scales", "load", "shardings", "weight_decay_mask"]

_LAZY = {
    "capture": "jaxzoo.inspection",
    "fit": "jaxzoo.fitting",
    "learning_rate_scales": "jaxzoo.layers.variables",
    "load": "jaxzoo.loading",
    "shardings": "jaxzoo.layers.variables",
    "weight_decay_mask": "jaxzoo.layers.variables",
}
"""Names of the package and the modules that hold them, which import JAX."""

_PACKAGES = ("generation", "interop", "layers", "mixers", "models", "ops", "tasks", "testing")
"""Packages that are imported when they are first used: `jaxzoo.mixers.Hyena` after `import jaxzoo`."""


def __getattr__(name: str) -> Any:
    import importlib

    if name in _PACKAGES:
        return importlib.import_module(f"jaxzoo.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, *_PACKAGES, "__version__"])
