"""Many runs for one figure: experiments, workers that train the runs, and reports.

Names are imported on first use, so that `jaxzoo sweep --help` does not wait for JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxzoo.sweep.claims import Change, Claim, Finding, learned, solved
    from jaxzoo.sweep.experiment import Experiment, Measurement, Point, Scale, Value, grid
    from jaxzoo.sweep.results import Missing, Results

_MODULES = {
    "claims": ("Change", "Claim", "Finding", "learned", "solved"),
    "experiment": ("Experiment", "Measurement", "Point", "Scale", "Value", "grid"),
    "results": ("Missing", "Results"),
}
__all__ = ["Change", "Claim", "Experiment", "Finding", "Measurement", "Missing", "Point", "Results", "Scale", "Value"]
__all__ += ["grid", "learned", "solved"]


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
