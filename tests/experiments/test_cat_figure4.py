"""The experiment of CAT's Figure 4, small: its numbers, its files, and what it refuses."""

import json

import pytest

from experiments.cat_figure4 import main
from jaxzoo.theory.landmark import critical_dimensions


def test_the_bands_are_quantiles_of_critical_dimensions(tmp_path, capsys):
    """Kills: a band of another filter or space of queries, a success that falls with d, a picture without its file."""
    out, picture = tmp_path / "new" / "f.json", tmp_path / "new" / "f.png"
    flags = f"--length 1000 --block-sizes 8 32 --query-dims 0 3 --draws 200 --out {out} --picture {picture}"
    assert main(flags.split()) == 0
    facts = json.loads(out.read_text())
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert len(capsys.readouterr().out.splitlines()) == 7
    assert [(r["smoothing"], r["query_dim"], r["block_size"], r["n_blocks"]) for r in facts["rows"]] == [
        (smoothing, dim, size, n)
        for size, n in ((8, 125), (32, 32))
        for smoothing, dim in (("mean", 0), ("exponential", 0), ("mean", 3))
    ]
    for row in facts["rows"]:
        low, high = row["band"]
        assert low < high < row["bound"]
    critical = critical_dimensions(200, n_blocks=125, block_size=8)
    low, high = facts["rows"][0]["band"]
    assert (critical < low).mean() == pytest.approx(0.1, abs=0.006)
    assert (critical < high).mean() == pytest.approx(0.5, abs=0.006)


def test_too_few_blocks_are_refused(capsys):
    """Kills a simulation in which nothing competes."""
    assert main(["--length", "64", "--block-sizes", "8", "32"]) == 2
    assert "--block-sizes: 32 must be at most a third of --length 64" in capsys.readouterr().err
