"""`jaxzoo.fit`. Kills: results that depend on a run directory."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import jaxzoo


def test_the_same_run_with_and_without_a_directory(small_config, tmp_path, monkeypatch, capsys):
    """Kills: files of a run that has no directory, rows that depend on one, a model that is not the trained one, a
    resumed run that begins again."""
    monkeypatch.chdir(tmp_path)
    config = dataclasses.replace(small_config, train=dataclasses.replace(small_config.train, steps=4, eval_every=2))
    memory = jaxzoo.fit(config)
    assert list(tmp_path.iterdir()) == []
    assert (memory.step, memory.run_dir) == (4, None)
    assert [row["step"] for row in memory.metrics if "valid/loss" in row] == [2, 4]
    written = jaxzoo.fit(config, "run")
    assert written.run_dir == tmp_path / "run"
    assert written.metrics == memory.metrics
    assert capsys.readouterr() == ("", "")
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 40, (2, 16)))
    stored = jaxzoo.load(tmp_path / "run")
    np.testing.assert_array_equal(memory.model(tokens), written.model(tokens))
    np.testing.assert_allclose(stored(tokens), written.model(tokens), atol=1e-6)  # compiled as one program
    assert list(stored.metrics) == list(written.metrics)
    resumed = jaxzoo.fit(config, "run", resume=True)
    assert resumed.step == 4
    assert resumed.metrics == written.metrics
    with pytest.raises(ValueError, match="holds a run; continue it with --resume"):
        jaxzoo.fit(config, "run")
    with pytest.raises(ValueError, match="need a run directory"):
        jaxzoo.fit(config, resume=True)
