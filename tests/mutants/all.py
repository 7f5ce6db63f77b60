"""All planted bugs, one list per area."""

from tests.mutants import cli, data, interop, kernels, mixers, ops, sweep, train

MUTANTS = [
    *mixers.MUTANTS,
    *ops.MUTANTS,
    *kernels.MUTANTS,
    *train.MUTANTS,
    *data.MUTANTS,
    *interop.MUTANTS,
    *sweep.MUTANTS,
    *cli.MUTANTS,
]
