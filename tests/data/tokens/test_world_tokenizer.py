"""RWKV's World vocabulary. Kills: a shorter token than the longest."""

import importlib.util
import random
from pathlib import Path

import pytest

from jaxzoo.data.tokens.tokenizer_files import load_tokenizer, save_tokenizer

MISSING = importlib.util.find_spec("rwkv") is None


def write(directory, *more):
    lines = [f"{byte + 1} {bytes([byte])!r} 1" for byte in range(256)]
    tokens = ["ab", "abc", "é", "bcde", b"\xe6\xbc", "\n\n"]
    for i, token in enumerate(tokens, 257):
        lines.append(f"{i} {token!r} {len(token.encode() if isinstance(token, str) else token)}")
    (directory / "rwkv_vocab_v20230424.txt").write_text("\n".join([*lines, *more]) + "\n")


def test_longest_token_first(tmp_path):
    """Kills: a shorter token, a token across its own bytes, ids without their bytes, a line that is misread."""
    write(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("abcde").tolist() == [258, ord("d") + 1, ord("e") + 1]
    assert tokenizer.encode("xbcdé\n\n漢").tolist() == [121, 99, 100, 101, 259, 262, 261, 0xA2 + 1]
    assert tokenizer.encode("").tolist() == []
    text = "naïve abcab 漢字 é\n\n\n"
    assert tokenizer.to_bytes(tokenizer.encode(text)).decode() == text
    assert (tokenizer.end_of_text, tokenizer.vocab_size, tokenizer.begin) == (0, 263, ())
    save_tokenizer(tokenizer, tmp_path / "again")
    again = load_tokenizer(tmp_path / "again")
    assert again.fingerprint == tokenizer.fingerprint
    write(tmp_path, "300 'abc' 4")
    with pytest.raises(ValueError, match=r"20230424.txt:263: must be an id below 65,536, a literal"):
        load_tokenizer(tmp_path / "rwkv_vocab_v20230424.txt")


@pytest.mark.full
@pytest.mark.skipif(MISSING, reason="needs the authors' vocabulary: pip install --no-deps rwkv")
def test_released_vocabulary():
    """Kills: other ids than the authors' own tokenizer gives, on their released file."""
    from rwkv.rwkv_tokenizer import TRIE_TOKENIZER  # pyright: ignore[reportMissingImports]

    spec = importlib.util.find_spec("rwkv")
    assert spec is not None
    assert spec.origin is not None
    file = Path(spec.origin).parent / "rwkv_vocab_v20230424.txt"
    ours, authors, rng = load_tokenizer(file.parent), TRIE_TOKENIZER(str(file)), random.Random(0)
    assert (ours.vocab_size, ours.end_of_text) == (65530, 0)
    assert ours.encode("The sea 漢字 naïve\n\n").tolist() == [6699, 22446, 33, 14038, 11860, 46644, 261]
    ranges = (range(32, 127), range(0x80, 0x2000), range(0x4E00, 0x9FFF), range(0x1F300, 0x1F6FF))
    texts = [
        Path(__file__).read_text(),
        *("".join(chr(rng.choice(rng.choice(ranges))) for _ in range(400)) for _ in "ab"),
    ]
    for text in texts:
        ids = ours.encode(text)
        assert ids.tolist() == authors.encode(text)
        assert ours.to_bytes(ids).decode() == text
