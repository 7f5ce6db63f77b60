"""experiments/linearize.py. Kills: an error that counts tokens as independent."""

import json

import numpy as np
import pytest

from experiments import linearize


def test_the_error_of_a_change_is_that_of_paired_rows():
    """Kills: slices that mix, an error that counts tokens as independent, or rows that are not paired."""
    rng = np.random.default_rng(0)
    before, change = rng.normal(size=(2, 50, 8))
    change[:] = change[:, :1]  # all tokens of a row change alike
    masks = {"hits": np.arange(8)[None] % 2 == np.zeros((50, 1))}
    found = linearize.Nats(before + change, masks).change(linearize.Nats(before, masks), "hits")
    wanted = change[:, 0].mean(), change[:, 0].std(ddof=1) / np.sqrt(50)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.slow
def test_all_stages(tmp_path):
    """Kills: a stage that fails, is left out, or is made again when the command is repeated."""
    steps = ("--pretraining-steps", "1", "--transfer-steps", "1", "--finetuning-steps", "1", "--valid-windows", "2")
    assert linearize.main(["--out", str(tmp_path / "out"), *steps]) == 0
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert list(found["stages"]) == list(linearize.STAGES)
    assert len(found["layers"]) == linearize.N_LAYERS
    (tmp_path / "out" / "results.json").unlink()
    kept = (tmp_path / "out" / "transfer.json").stat().st_mtime_ns
    assert linearize.main(["--out", str(tmp_path / "out"), *steps]) == 0
    assert (tmp_path / "out" / "transfer.json").stat().st_mtime_ns == kept
