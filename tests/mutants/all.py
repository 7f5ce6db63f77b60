"""All planted bugs, one list per area."""

from tests.mutants import cli, data, kernels, mixers, sweep, train

MUTANTS = [*mixers.MUTANTS, *kernels.MUTANTS, *train.MUTANTS, *data.MUTANTS, *sweep.MUTANTS, *cli.MUTANTS]
