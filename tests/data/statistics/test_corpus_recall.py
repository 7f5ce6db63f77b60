"""Recall statistics of source code. Kills: shares of the wrong total."""

import json
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from jaxzoo.data.statistics.corpus_recall import Cut, make_recall_statistics
from jaxzoo.data.statistics.recall_summary import TOGETHER, distance_bins
from jaxzoo.data.tokens.token_shards import TokenDirectory
from tests.data import recall_reference
from tests.data.shards import BYTES, write_tokens

LENGTH = 256
FILES = {"distances.png", "distances_by_source.png", "manifest.json", "repeats_by_source.png", "statistics.json"}


def texts() -> list[list[tuple[list[int], str]]]:
    """Two shards of source code, and a subset of one short text."""
    library = Path(sysconfig.get_path("stdlib"))
    files = [(name, sorted((library / name).glob("*.py"))) for name in ("json", "wsgiref")]
    documents = [(list(file.read_bytes()[:3000]), name) for name, some in files for file in some]
    return [[*documents[::2], ([97, 98], "short")], documents[1::2]]


@pytest.fixture(name="data", scope="module")
def token_directory(tmp_path_factory) -> TokenDirectory:
    return write_tokens(tmp_path_factory.mktemp("tokens"), {"train": texts()}, tokenizer=BYTES)


def test_numbers(data, tmp_path):
    """Kills: shares of the wrong whole, quantiles off by one, subsets mixed up; bins that lose distances."""
    assert make_recall_statistics(Cut(data.path, "train", LENGTH, (2, 3)), tmp_path / "out")
    assert {p.name for p in (tmp_path / "out").iterdir()} == FILES | {"table.md"}
    found = json.loads((tmp_path / "out" / "statistics.json").read_text())
    assert list(found) == [TOGETHER, "json", "wsgiref"]
    for subset in ("json", "wsgiref"):
        for n in (2, 3):
            distances, per_sequence = recall_reference.repeats_of_subset(
                texts(), subset, end_of_text=256, length=LENGTH, n=n
            )
            numbers, total = found[subset]["all"][str(n)], sum(per_sequence)
            assert found[subset]["tokens"] == LENGTH * len(per_sequence)
            assert numbers["repeats"] == total
            assert numbers["share"] == pytest.approx(total / (LENGTH * len(per_sequence)))
            assert numbers["per_sequence"]["mean"] == pytest.approx(np.mean(per_sequence))
            for q in (0.05, 0.25, 0.5, 0.75, 0.95):
                expected = np.quantile(per_sequence, q, method="inverted_cdf")
                assert numbers["per_sequence"][f"{q:g}"] == expected
            near = sum(count for d, count in distances.items() if d <= 100)
            assert numbers["within_100"] == pytest.approx(near / total)
            bins = numbers["distances"]
            for first, last, share in zip(bins["first"], bins["last"], bins["share"], strict=True):
                count = sum(distances[d] for d in range(first, last + 1))
                assert share == pytest.approx(count / (last - first + 1) / total)
    assert found[TOGETHER]["sequences"] == sum(found[name]["sequences"] for name in ("json", "wsgiref"))
    repeats = [found[name]["content"]["2"]["repeats"] for name in (TOGETHER, "json", "wsgiref")]
    assert repeats[0] == repeats[1] + repeats[2]
    assert 0 < repeats[0] < found[TOGETHER]["all"]["2"]["repeats"]
    table = (tmp_path / "out" / "table.md").read_text()
    assert f"| 3, all | json | {found['json']['sequences']} |" in table
    assert "Too short for one sequence in any shard: short." in table


def test_bins_hold_every_distance_once():
    for m in [1, 2, 39, 41, 2047]:
        counts = np.random.default_rng(m).integers(0, 9, m)
        counts[0] += 1
        first, last, share = (np.array(distance_bins(counts)[key]) for key in ("first", "last", "share"))
        assert (first[0], last[-1]) == (1, m)
        np.testing.assert_array_equal(first[1:], last[:-1] + 1)
        assert (share * (last - first + 1)).sum() == pytest.approx(1)
