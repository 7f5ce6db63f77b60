"""Training sizes of recurrent mixers. Kills: a validation on few pairs."""

from experiments import delta_mqar, hybrid_ratio


def test_recall_is_learned_at_three_sizes_and_asked_at_the_last():
    """Kills: a validation on few pairs, a size that is left out or seen more often than the others."""
    for module in (delta_mqar, hybrid_ratio):
        scale = module.experiment.scales["laptop"]()
        data = scale.config(scale.points[0]).data
        assert [part.task.n_pairs for part in data.train] == [*module.FEWER, module.N_PAIRS]
        assert len({part.n_examples for part in data.train}) == 1
        assert [part.task.n_pairs for part in data.valid] == [module.N_PAIRS]
