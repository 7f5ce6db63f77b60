"""Many runs for one figure: experiments, the workers that make the runs, and reports.

Nothing here imports JAX: `python -m jaxzoo.sweep --help` need not wait for it.
"""

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
