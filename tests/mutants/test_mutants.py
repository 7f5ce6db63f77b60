"""The list of planted bugs stays true to the source; `python -m tests.mutants` runs it."""

from tests.mutants.all import MUTANTS
from tests.mutants.mutant import ROOT


def test_every_replacement_applies():
    """Kills a planted bug that is none any more because the source has changed."""
    for mutant in MUTANTS:
        assert mutant.mutate() != (ROOT / mutant.path).read_text(), mutant.name
        for test in mutant.tests:
            assert (ROOT / test.partition("::")[0]).exists(), f"{mutant.name}: {test}"


def test_no_bug_is_planted_twice():
    planted = [(mutant.path, mutant.old, mutant.new) for mutant in MUTANTS]
    assert len(planted) == len(set(planted))
