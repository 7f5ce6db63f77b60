"""The byte tokenizer. Kills: bytes that change on the way."""

import numpy as np
import pytest

from jaxzoo.data.tokenizer import END_OF_TEXT, ByteTokenizer

TOKENIZER = ByteTokenizer()


def test_ids_are_the_utf8_bytes():
    """Kills: code points for bytes, a signed dtype, and an end-of-text that `encode` adds unasked."""
    ids = TOKENIZER.encode("aé漢\0")
    assert ids.dtype == np.uint16
    assert ids.tolist() == [97, 0xC3, 0xA9, 0xE6, 0xBC, 0xA2, 0]
    assert TOKENIZER.encode(bytes(range(256))).tolist() == list(range(256))
    assert TOKENIZER.encode("").shape == (0,)


def test_decode_inverts_encode_and_shows_the_end_of_text():
    """Kills: a lost or moved end-of-text, and one that text with the same characters could forge."""
    text = f"aé{END_OF_TEXT}漢\n"
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.end_of_text not in ids
    assert TOKENIZER.decode(ids) == text
    eot = [TOKENIZER.end_of_text]
    assert TOKENIZER.decode(np.array([*eot, *eot, *b"ab", *eot, *b"c"])) == f"{END_OF_TEXT * 2}ab{END_OF_TEXT}c"
    assert TOKENIZER.decode(np.array([], np.int32)) == ""


def test_decode_survives_half_characters():
    """Kills: a crash on a sample that stops, or is interrupted by end-of-text, inside a character."""
    ids = [*"é".encode()[:1], TOKENIZER.end_of_text, *"é".encode()[1:], *b"x"]
    assert TOKENIZER.decode(np.array(ids)) == f"\ufffd{END_OF_TEXT}\ufffdx"


def test_decode_refuses_ids_outside_the_vocabulary():
    """Kills: the wrap of 257 to byte 1 in a cast to uint8."""
    for wrong in [257, -1]:
        with pytest.raises(ValueError, match=rf"decode ids=\[{wrong}\] must be in \[0, 257\); mask the padding"):
            TOKENIZER.decode(np.array([65, wrong]))


def test_end_of_text_counts_no_byte():
    """Kills: bits per byte over tokens instead of bytes."""
    ids = np.array([[255, 256, 0], [256, 256, 65]], np.uint16)
    assert TOKENIZER.count_bytes(ids) == 3
    assert TOKENIZER.vocab_size == 257


def test_parts_of_a_text_are_its_bytes():
    """Kills: a part that is decoded by itself, and so loses the character that it cuts."""
    ids = TOKENIZER.encode("é漢")
    parts = [TOKENIZER.to_bytes(ids[:1]), TOKENIZER.to_bytes(ids[1:4]), TOKENIZER.to_bytes(ids[4:])]
    assert b"".join(parts).decode() == "é漢"
    assert TOKENIZER.to_bytes(np.array([97, TOKENIZER.end_of_text, 98], np.int32)) == b"ab"
