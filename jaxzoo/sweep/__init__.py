"""Many runs for one figure: experiments, the workers that make the runs, and reports.

Names are imported when they are asked for: `python -m jaxzoo.sweep --help` need not wait for JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxzoo.sweep.claims import (
        Change as Change,
        Claim as Claim,
        Finding as Finding,
        learned as learned,
        solved as solved,
    )
    from jaxzoo.sweep.experiment import (
        Experiment as Experiment,
        Measurement as Measurement,
        Point as Point,
        Scale as Scale,
        Value as Value,
        grid as grid,
    )
    from jaxzoo.sweep.results import Missing as Missing, Results as Results

_HOMES = {
    **dict.fromkeys(("Experiment", "Measurement", "Point", "Scale", "Value", "grid"), "experiment"),
    **dict.fromkeys(("Change", "Claim", "Finding", "learned", "solved"), "claims"),
    **dict.fromkeys(("Missing", "Results"), "results"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
