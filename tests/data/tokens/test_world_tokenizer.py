"""RWKV's World vocabulary. Kills: a shorter token than the longest."""

import pytest

from jaxzoo.data.tokens.tokenizer_files import load_tokenizer, save_tokenizer


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
