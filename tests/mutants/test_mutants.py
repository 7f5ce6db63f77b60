"""The list of planted bugs stays true to the source; `python -m tests.mutants` runs it."""

import dataclasses

import pytest

from tests.mutants import __main__ as runner
from tests.mutants.mutant import MUTANTS, ROOT


def test_every_replacement_applies():
    """Kills a planted bug that is none any more because the source has changed."""
    for mutant in MUTANTS:
        assert mutant.mutate() != (ROOT / mutant.path).read_text(), mutant.name
        for test in mutant.tests:
            path, _, name = test.partition("::")
            assert (ROOT / path).exists(), f"{mutant.name}: {test}"
            assert not name or f"def {name.partition('[')[0]}(" in (ROOT / path).read_text(), f"{mutant.name}: {test}"


def test_no_bug_is_planted_twice():
    planted = [(mutant.path, mutant.old, mutant.new) for mutant in MUTANTS]
    assert len(planted) == len(set(planted))


@pytest.mark.slow
def test_a_bug_is_killed_and_a_harmless_change_survives(monkeypatch, capsys):
    """Kills: a runner whose tests read another copy of the source, or whose bugs stay in the copy."""
    (bug,) = (mutant for mutant in MUTANTS if mutant.name == "ALiBi: slopes of the power of two alone")
    harmless = dataclasses.replace(bug, name="ALiBi: spaces", new=bug.old.replace(":", " :"))
    monkeypatch.setattr(runner, "MUTANTS", [bug, harmless])
    assert runner.main(["ALiBi"]) == 1
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ["killed", "SURVIVED", "of"]
