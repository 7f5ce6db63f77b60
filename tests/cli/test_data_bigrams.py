"""`jaxzoo data-bigrams`. Kills: a second count of tokens that are counted."""

import numpy as np
import pytest

from jaxzoo.cli.data_bigrams import main
from tests.data.shards import random_documents, write_tokens


@pytest.fixture(name="data")
def token_directory(tmp_path):
    shards = [random_documents(np.random.default_rng(i), 5, n_ids=9, longest=40) for i in range(3)]
    write_tokens(tmp_path / "tokens", {"train": shards}, vocab_size=10)
    return str(tmp_path / "tokens")


def test_says_what_was_counted_before(data, tmp_path, capsys):
    """Kills: finished counts that are counted again."""
    words = ["--data", data, "--out", str(tmp_path / "counts")]
    assert (main(words), main(words)) == (0, 0)
    first, second = capsys.readouterr().out.splitlines()
    assert second == first.replace(": ", "; counted before: ")
