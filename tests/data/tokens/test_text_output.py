"""Streamed text. Kills: half a character or half a stop string."""

import numpy as np

from jaxzoo.data.tokenizer import ByteTokenizer
from jaxzoo.data.tokens.text_output import TextOutput

TOKENIZER = ByteTokenizer()
TEXT = "naïve 漢字 🦊 for x in self.selfish: pass\n"


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def stream(data: bytes, cuts: list[int], stops=()) -> tuple[list[str], str | None]:
    output = TextOutput(TOKENIZER, stops)
    shown = [output.push(TOKENIZER.encode(piece)) for piece in pieces(data, cuts)]
    return [*shown, output.finish()], output.ended_by


def test_never_half_a_character():
    """Kills: bytes decoded block by block, and characters that wait for more than their own bytes."""
    for size in [1, 2, 3, 5, 1000]:
        data = TEXT.encode()
        shown, _ = stream(data, list(range(size, len(data), size)))
        assert "".join(shown) == TEXT
        if size == 1:
            assert [text for text in shown if text] == list(TEXT)


def test_broken_bytes_are_what_decode_makes_of_them():
    """Kills: text that is lost, stuck or different where the model writes no UTF-8, or stops in a character."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        data = bytes(rng.choice([0x41, 0x80, 0xC3, 0xE2, 0x82, 0xF0, 0x9F, 0xFF], size=12).astype(np.uint8))
        cuts = sorted(rng.choice(12, size=3, replace=False).tolist())
        shown, _ = stream(data, cuts)
        assert "".join(shown) == TOKENIZER.decode(TOKENIZER.encode(data))


def expected_end(text: str, stops) -> tuple[str, str | None]:
    """End of the text by the definition, character by character."""
    for end in range(len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


def test_text_ends_before_the_stop_string_wherever_it_is_cut():
    """Kills: a stop string that is missed across a border of blocks, shown in part, or found in another place
    when it comes in other pieces."""
    for stops in [
        ["self"],
        ["\n"],
        ["selfish", "self"],
        ["abab"],
        ["bc", "abcd"],
        ["cd", "abcd"],
        ["🦊", "x"],
        ["never"],
    ]:
        rng = np.random.default_rng(0)
        for text in (TEXT, "aabababc", "xabcdx", "a self", "selfis"):
            data, truth = text.encode(), expected_end(text, stops)
            for n_cuts in (0, 1, 3, len(data) - 1):
                cuts = sorted(
                    rng.choice(np.arange(1, len(data)), size=min(n_cuts, len(data) - 1), replace=False).tolist()
                )
                shown, ended_by = stream(data, cuts, stops)
                assert ("".join(shown), ended_by) == truth
