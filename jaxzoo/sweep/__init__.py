"""Many runs for one figure: what is asked, who makes the runs, and what came out."""

from jaxzoo.sweep.experiment import (
    Experiment as Experiment,
    Measurement as Measurement,
    Point as Point,
    Scale as Scale,
    Value as Value,
    grid as grid,
)
from jaxzoo.sweep.results import Claim as Claim, Finding as Finding, Missing as Missing, Results as Results
