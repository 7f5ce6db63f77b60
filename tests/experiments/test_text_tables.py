"""Tables of text. Kills: slices, questions or verdicts that differ from those by hand, a row that is another model."""

import dataclasses
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments import text_tables as tables
from experiments.text_models import ABLATIONS, ATTENTION, CAT_BARE, OWN_CONVOLUTION, TABLES, TRANSFORMER, Sizes
from experiments.text_slices import SLICES, SlicedTextConfig, questions, record_set
from jaxzoo.data.base import UNLABELLED
from jaxzoo.mixers import GatedShortConvConfig, SelectiveAttentionConfig, SlidingWindowAttentionConfig
from jaxzoo.models.blueprint import make_blueprint
from jaxzoo.sweep import Missing, Results
from jaxzoo.sweep.claims import Change, changed
from jaxzoo.sweep.results import BITS

ROOT = Path(__file__).parents[2]
TABLE_3 = "Zoology, Table 3"


@pytest.fixture
def config(tmp_path):
    """Forty short files of few letters."""
    rng = np.random.default_rng(0)
    for i in range(40):
        letters = rng.choice(list("abcdefgh"), p=[0.4, 0.2, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05], size=5 + 3 * i)
        (tmp_path / f"{i}.txt").write_text("".join(letters))
    return SlicedTextConfig(path=str(tmp_path), length=16, valid_fraction=0.3, bpe_size=257, rare=40, valid_tokens=320)


def test_slices_by_hand(config):
    """Kills: a bigram of another window, counts of held-out text, a target in two slices or in none."""
    data = config.build(batch_size=1, valid_batch_size=7)
    corpus, tokenizer = config.corpus(), config.tokenizer()
    train, valid = (
        [int(token) for d in side for token in [*tokenizer.encode(d.data.decode()), tokenizer.end_of_text]]
        for side in (corpus.train, corpus.valid)
    )
    seen = list(itertools.pairwise(train))
    wanted = []
    for i in range(320):
        window = valid[i // 16 * 16 : i + 1]
        repeated = (valid[i], valid[i + 1]) in itertools.pairwise(window)
        is_rare = seen.count((valid[i], valid[i + 1])) <= config.rare
        wanted.append(2 if not is_rare else 0 if repeated else 1)
    found = np.full(320, -1)
    for valid_set in data.valid():
        batches = [valid_set.batch(i) for i in range(valid_set.n_batches)]
        targets = np.concatenate([np.asarray(batch.targets) for batch in batches]).ravel()
        labelled = targets != UNLABELLED
        assert targets[labelled].tolist() == [valid[i + 1] for i in np.flatnonzero(labelled)]
        assert (found[labelled] == -1).all()
        found[labelled] = valid_set.slices["slice"]
    assert found.tolist() == wanted
    assert min(wanted.count(i) for i in range(3)) > 10


@pytest.mark.full
def test_sources_of_packages_are_split_by_file():
    """Kills: a file in both splits, validation from one package alone, packages without the standard library."""
    corpus = SlicedTextConfig(packages=("optax",), length=16, valid_fraction=0.1).corpus()
    train, valid = ([document.name for document in side] for side in (corpus.train, corpus.valid))
    assert not set(train) & set(valid)
    assert 0.05 < len(valid) / len(train + valid) < 0.15
    for side in (train, valid):
        assert {"Python packages", "Python reference", "Python source"} == {name.split("/")[0] for name in side[:200]}
    assert sum(name.startswith("Python packages/optax/") for name in train + valid) > 50
    with pytest.raises(ValueError, match="packages='no-such-package': not installed"):
        SlicedTextConfig(packages=("no-such-package",), length=16).corpus()


def test_questions_are_labelled_at_their_answers():
    """Kills: a label one token off, an answer that is cut, a package that is asked and trained on."""
    config = SlicedTextConfig(records=50, bpe_size=300, length=512, asked=True)
    data = config.build(batch_size=1, valid_batch_size=64)
    pairs = list(questions(config))
    assert [len(each) for each in pairs[1:]] == [200, 200]
    for valid_set in data.valid():
        batch = valid_set.batch(0)
        known = {f"{prompt}{answer}": answer for prompt, answer in pairs[valid_set.slices["question"]]}
        for tokens, targets in zip(np.asarray(batch.tokens), np.asarray(batch.targets), strict=True):
            (places,) = np.nonzero(targets != UNLABELLED)
            answer = data.tokenizer.decode(targets[places])
            text = data.tokenizer.decode(tokens[: places[0] + 1]) + answer
            assert known[text] == answer
            assert tokens[places[1:]].tolist() == targets[places[:-1]].tolist()
    sides = record_set(50, config.document_bytes)
    assert not {record.group for record in sides.train} & {record.group for record in sides.valid}


def test_rows_are_the_papers():
    """Kills: a row whose mixers are those of another, a window or feature dimension that is not scaled."""
    sizes = Sizes(n_layers=12, n_heads=4, length=512, window=32, feature_dim=8, n_taps=5)
    layers: dict[str, Any] = {name: sizes.layers(name) for name in tables.MODELS}
    same = {names for names in itertools.combinations(layers, 2) if layers[names[0]] == layers[names[1]]}
    assert not same
    assert all(len(each) == 12 for each in layers.values())
    assert all(
        (type(each[0]).__name__ == "BaseConvConfig") != (name in OWN_CONVOLUTION) for name, each in layers.items()
    )
    selected = [each for each in layers["BaseConv + learned"] if isinstance(each, SelectiveAttentionConfig)]
    assert [each.n_selected for each in selected] == [64, 64]
    based = {name: layers[each] for name, each in ABLATIONS.items()}
    assert {each.window for each in based["window-128"] if isinstance(each, SlidingWindowAttentionConfig)} == {64}
    features = {
        name: {each.feature_dim for each in rows if hasattr(each, "feature_dim")} for name, rows in based.items()
    }
    assert features == {**{name: {8} for name in ABLATIONS}, "taylor-32": {16}, "taylor-24": {12}, "taylor-8": {4}} | {
        "cosformer-64": {32},
        "linear-only": {12},
    }
    assert not any(isinstance(each, GatedShortConvConfig) for each in based["no-convolutions"])


@pytest.mark.full
def test_models_of_a_scale_are_equal_but_for_their_mixers():
    """Kills: more tokens for one model, a size that the scale does not say."""
    for name in tables.experiment.scales:
        scale = tables.experiment.scales[name]()
        runs: list[Any] = [scale.config(point) for point in scale.points]
        assert len({(run.data, run.train, run.optimizer, run.model.d_model) for run in runs}) == 1
        if name == "device":
            counts = [make_blueprint(run.model).n_params / 1e6 for run in runs]
            assert 30 < min(counts) < max(counts) < 50, counts
            assert runs[0].train.steps * runs[0].train.batch_size * 1024 == 81_920_000


def test_longer_windows_score_the_same_targets_with_slower_rotary_positions():
    """Kills: YaRN at the trained length or without rotary positions, a factor of another length."""
    setting = tables.SMOKES
    also: Any = setting.also({"model": TRANSFORMER, "learning_rate": 1e-2, "seed": 0})
    assert list(also) == ["asked", "at 128", "at 256", "YaRN 256"]
    assert also["YaRN 256"].model.pattern[0].rotary_scaling.factor == 2
    assert also["at 256"].model.pattern[0].rotary_scaling.factor == 1
    scored = {(run.data.valid_tokens, run.data.valid_lengths) for key, run in also.items() if key != "asked"}
    assert scored == {(1024, (128,)), (1024, (256,))}
    assert not any("YaRN" in key for key in setting.also({"model": CAT_BARE, "learning_rate": 1e-2, "seed": 0}))
    assert list(setting.also({"model": ATTENTION, "learning_rate": 1e-2, "seed": 0})) == ["asked"]


def rows(*changes):
    scale = dataclasses.replace(tables.experiment.scales["device"]())
    return changed(tables.experiment.made_up_rows(scale), changes)


def test_a_table_has_a_verdict_only_if_its_baseline_recalls():
    """Kills: a verdict on models that have not learned, slices that change places, bits for nats."""
    for bits, verdict in ((2.9, tables.ONE_SEED), (3.1, tables.UNTRAINED)):
        results = Results(rows(Change({"model": ATTENTION}, {f"{BITS}/slice=0": bits})))
        assert tables.verdict(results, "Zoology, Table 2") == verdict
        assert tables.verdict(results, "CAT, Table 2") == tables.ONE_SEED
        lines = tables.table(results)
        (line,) = (dict(zip(lines[0], each, strict=True)) for each in lines if each[:2] == [TABLE_3, ATTENTION])
        assert line["verdict"] == verdict
        assert [line[name] for name in ("perplexity", *SLICES)] == [f"{2**x:.2f}" for x in (2.0, bits, 4.0, 1.5)]
    (row,) = Results(rows()).select(model=TRANSFORMER)
    assert tables.nats(row, 0) == pytest.approx(2 * math.log(2))


def test_a_table_without_rivals_of_its_baseline_is_left_out():
    """Kills: a table or panel that shows a baseline alone, a table that is left out although two models have run."""
    one = Results([row for row in rows() if row["point"]["model"] == ATTENTION])
    two = Results([row for row in rows() if row["point"]["model"] in (ATTENTION, "Liquid-S4")])
    assert len(tables.table(one)) == 1
    with pytest.raises(Missing):
        tables.draw(one)
    assert [line[:2] for line in tables.table(two)[1:]] == [[TABLE_3, ATTENTION], [TABLE_3, "Liquid-S4"]]
    assert [panel.get_title().split(":")[0] for panel in tables.draw(two).axes[:1]] == [TABLE_3]


def test_curves_by_length():
    """Kills: a curve of another model, a length out of order, YaRN in the curve without it."""
    losses = {"at 2048/valid/loss": 2.5, "at 1024/valid/loss": 2.0, "YaRN 2048/valid/loss": 2.25}
    results = Results(rows(Change({"model": TRANSFORMER}, losses)))
    assert tables.by_length(results) == {TRANSFORMER: {1024: 2.0, 2048: 2.5}, f"{TRANSFORMER}, YaRN": {2048: 2.25}}
    lines = [line for line in tables.table(results) if line[0] == "CAT, Figure 1, right"]
    assert [line[3] for line in lines] == ["7.39 at 1024, 12.18 at 2048", "9.49 at 2048"]
    panels = tables.draw(results).axes
    assert [panel.get_title().split(":")[0] for panel in panels[: len(TABLES)]] == list(TABLES)


def test_the_page_has_the_verdicts_of_the_kept_results():
    """Kills: a verdict of docs/papers.json that the kept results do not give."""
    kept = ROOT / "experiments/results/text_tables"
    results = Results([json.loads(line) for line in (kept / "results.jsonl").read_text().splitlines()])
    papers = json.loads((ROOT / "docs/papers.json").read_text())
    lines: Any = {(name, row[0]): row for name, paper in papers.items() for row in paper["rows"]}
    for name in TABLES:
        _, _, file, _, verdict, *_ = lines[tuple(name.split(", "))]
        assert (ROOT / file) == kept
        assert verdict.startswith(tables.verdict(results, name)), name
    assert tables.verdict(results, "CAT, Table 2") in lines["CAT", "Figure 1"][4]
