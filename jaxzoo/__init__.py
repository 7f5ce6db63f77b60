"""jaxzoo: sequence mixers beyond attention, and the recall tasks that tell them apart."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxzoo.fitting import fit as fit
    from jaxzoo.inspection import capture as capture
    from jaxzoo.loading import load as load

__version__ = "0.1.0"

__all__ = ["capture", "fit", "load"]

_LAZY = {"capture": "jaxzoo.inspection", "fit": "jaxzoo.fitting", "load": "jaxzoo.loading"}
"""Names of the package and the modules that hold them, which import JAX."""


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
