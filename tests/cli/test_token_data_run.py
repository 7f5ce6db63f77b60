"""Training on token shards, resumed. Kills: a cursor that skips or repeats batches."""

import json
import textwrap

import pytest

from jaxzoo.train.session import Session
from tests.data.test_token_data import write
from tests.train.conftest import CONFIG


@pytest.mark.slow
def test_a_run_that_dies_and_is_resumed_equals_an_unbroken_one(tmp_path, run, rows, monkeypatch, capsys):
    """Kills: a cursor that is not saved, counts batches made ahead, or begins an epoch or a source again."""
    paths = [str(write(tmp_path / name, seed=seed)) for name, seed in (("a", 1), ("b", 2))]
    sources = f"TokenSourceConfig(path={paths[0]!r}, weight=2), TokenSourceConfig(path={paths[1]!r})"
    data = f"TokenDataConfig(sources=({sources}), length=16, valid_tokens=96, packing='concatenate')"
    file = tmp_path / "tokens.py"
    imports = "from jaxzoo.train.config import TokenDataConfig, TokenSourceConfig\n"
    file.write_text(imports + textwrap.dedent(CONFIG).replace("data=DATA", f"data={data}"))
    assert run(file, "whole") == 0
    assert f"tokens of bytes: {paths[0]}, 66.7 % of the rows: " in capsys.readouterr().out
    manifest = json.loads((tmp_path / "whole" / "manifest.json").read_text())
    assert [source["tokenizer"]["name"] for source in manifest["sources"]] == ["bytes", "bytes"]
    assert "baseline/unigram/bits_per_byte" in rows("whole")[0]
    with monkeypatch.context() as patch:
        update, count = Session.update, [0]

        def dies(self, state, batch):
            count[0] += 1
            if count[0] == 5:
                raise OSError("no power")
            return update(self, state, batch)

        patch.setattr(Session, "update", dies)
        assert run(file, "broken") == 1
    assert run(file, "broken", "--resume") == 0
    assert "resumed at step 3" in capsys.readouterr().out
    assert rows("broken") == rows("whole")
