"""Frontiers of recall over state size. Kills: a size or trend read from the wrong runs."""

import pytest

from experiments.frontier import by_state, frontier, leads, more_recalls_more
from jaxzoo.sweep import Missing, Results
from tests.experiments.hand_made import row


def of_state(model, accuracy, state, learning_rate=0.01):
    return {**row(accuracy, model=model, learning_rate=learning_rate), "state_bytes": state}


def test_frontier_by_hand():
    """Kills: a budget that leaves its own size out, rates that are averaged, models without a state that count,
    budgets beyond what was tried."""
    results = Results(
        [
            of_state("A", 0.2, 100),
            of_state("A", 0.4, 100, learning_rate=0.1),
            of_state("A", 0.3, 200),
            of_state("B", 0.5, 150),
            of_state("B", 1.0, None),
        ]
    )
    assert by_state(results, model="A") == {100: 0.4, 200: 0.3}
    assert [frontier(results, budget, model="A") for budget in (99, 100, 200)] == [None, 0.4, 0.4]
    assert leads(results, (100, 150, 200), {"model": "B"}, {"model": "A"}) == pytest.approx({150: 0.1})
    with pytest.raises(Missing, match="model B: no state as large as those of model A"):
        leads(results, (100,), {"model": "B"}, {"model": "A"})


def test_more_recalls_more_by_hand():
    """Kills: pairs at the ceiling that count, a fall that counts as a rise, an empty set that holds, a trend of chance
    gives."""
    finding = more_recalls_more({"A": {1: 0.1, 2: 0.3, 3: 0.2, 4: 0.995, 5: 1.0}})
    assert finding.numbers == "the larger one recalls more in A 8 of 9 pairs of sizes; by chance with p = 0.067"
    assert not finding.holds
    rising = {size: size / 10 for size in range(1, 7)}
    assert more_recalls_more({"A": rising}).holds
    assert not more_recalls_more({"A": {**rising, 1: 0.9}}).holds  # 10 of 15
    with pytest.raises(Missing):
        more_recalls_more({"A": {1: 1.0, 2: 0.99}})
    with pytest.raises(Missing, match="too few sizes"):
        more_recalls_more({"A": {1: 0.1, 2: 0.3, 3: 0.4}})
