import dataclasses

import jax
import numpy as np
import pytest

from jaxzoo.mixers import RWKV4ChannelMixConfig, RWKV4TimeMixConfig, RWKV5TimeMixConfig
from jaxzoo.models import LanguageModelConfig, presets
from jaxzoo.models.blueprint import split_variables
from jaxzoo.models.layout import Fold, fold_layers
from tests.models.hybrids import initialised, random_tokens, run


def unfold(folds: tuple[Fold, ...]) -> tuple:
    return tuple(layer for fold in folds for period in fold.periods for layer in period)


def test_folds_join_up_to_the_layers():
    """Kills folds that lose, repeat or reorder a layer at the seam between two runs."""
    rng = np.random.default_rng(1)
    for n_layers in range(1, 40):
        for n_kinds in (1, 2, 3):
            layers = rng.integers(n_kinds, size=n_layers).tolist()
            assert unfold(fold_layers(layers)) == tuple(layers)


def test_every_fold_is_the_longest_run_from_its_start():
    """Kills a search that stops at the first period, or misses the last repeat and compiles it apart."""
    rng = np.random.default_rng(7)
    for _ in range(50):
        period, repeats, tail = rng.integers(2, size=4).tolist(), int(rng.integers(2, 5)), [2, 0, 0]
        layers = tuple(period * repeats + tail)
        start = 0
        for fold in fold_layers(layers):
            reach = {
                w * r: w
                for w in range(len(layers), 0, -1)
                for r in range(2, len(layers) // w + 1)
                if layers[start : start + w * r] == layers[start : start + w] * r
            }
            covered = max(reach, default=1)
            assert len(fold.period) * fold.repeats == covered
            assert len(fold.period) == reach.get(covered, 1)
            start += covered


def test_hand_worked_folds():
    """Kills a tie that takes `aa` twice for `a` four times."""
    for layers, folds in (
        ("aaaa", [("a", 4)]),
        ("abcabc", [("abc", 2)]),
        ("abaab", [("a", 1), ("b", 1), ("a", 2), ("b", 1)]),
        ("abababc", [("ab", 3), ("c", 1)]),
        ("a", [("a", 1)]),
    ):
        assert fold_layers(layers) == tuple(Fold((tuple(period),) * repeats) for period, repeats in folds)


@pytest.mark.parametrize("period", ["ab", *(pytest.param(p, marks=pytest.mark.full) for p in ("a", "abcdefg"))])
def test_deep_models_fold_at_once(period):
    """Kills a search that tries every width at a cost of its own: 30000 layers took it minutes."""
    n = 30_000
    folds = fold_layers((period * n)[:n])
    assert folds[0] == Fold((tuple(period),) * (n // len(period)))
    assert "".join(unfold(folds)) == (period * n)[:n]


def test_based_360m_folds_into_two_scans():
    """Kills a preset whose layers sit one off: Table 7 has period 5, then two convolutions."""
    first, second = presets.based_360m().folds
    assert (len(first.period), first.repeats) == (5, 5)
    assert (len(second.period), second.repeats) == (1, 2)
    names = [type(mixer).__name__.removesuffix("Config") for mixer in first.period]
    assert names == ["GatedShortConv", "TaylorLinearAttention", "SlidingWindowAttention"] + ["GatedShortConv"] * 2
    assert second.period[0] == first.period[0]


@pytest.mark.full
@pytest.mark.parametrize(
    "time_mix", [RWKV4TimeMixConfig(), pytest.param(RWKV5TimeMixConfig(n_heads=2), marks=pytest.mark.slow)]
)
def test_layers_that_begin_differently_are_one_scan(time_mix):
    """Kills: layers that all begin as the first does, variables that come to another layer, and a scan that is none."""
    pattern = tuple(
        dataclasses.replace(mixer, layer_index=i, n_layers=2)
        for i in range(2)
        for mixer in (time_mix, RWKV4ChannelMixConfig())
    )
    config = LanguageModelConfig(pattern=pattern, n_layers=4, d_model=8, vocab_size=20, max_length=8, mlp="none")
    scanned, flat = (initialised(config, scanned=scanned) for scanned in (True, False))
    assert [(len(fold.period), fold.repeats) for fold in config.folds] == [(2, 2)]
    assert (len(scanned.stacks), len(flat.stacks)) == (1, 4)
    jax.tree.map(np.testing.assert_array_equal, split_variables(scanned.unstacked()), split_variables(flat))
    for block in scanned.stacks[0].blocks:
        assert len(np.unique(block.mixer.time_mix_key[...], axis=0)) == 2
    tokens = random_tokens(config, length=7)
    np.testing.assert_allclose(run(scanned, tokens), run(flat, tokens), atol=1e-5)
