"""Prompt and response pairs. Kills: a loss on the prompt or on padding."""

import json

import numpy as np
import pytest

from jaxzoo.data.base import UNLABELLED
from jaxzoo.data.completions import CompletionsConfig

X, END = UNLABELLED, 256


def write(path, pairs):
    path.write_text("".join(json.dumps({"prompt": p, "response": r}) + "\n" for p, r in pairs))
    return str(path)


def test_the_mask_by_hand(tmp_path):
    """Kills: a loss on the prompt, on padding, not on the first token of the response or on its end; the wrong end
    cut; bytes of what was cut."""
    pairs = [("ab", "cd"), ("", "e"), ("abcdefgh", "ij"), ("ab", "cdefghijk")]
    path = write(tmp_path / "pairs.jsonl", pairs)
    data = CompletionsConfig(path=path, valid_path=path, length=6).build(batch_size=4, valid_batch_size=4)
    batch = data.valid()[0].batch(0)
    a, b, c, d, e, f, g, h, i, j = range(ord("a"), ord("k"))
    tokens = [[a, b, c, d, END, END], [END, e, END, END, END, END], [e, f, g, h, i, j], [b, c, d, e, f, g]]
    targets = [[X, c, d, END, X, X], [e, END, X, X, X, X], [X, X, X, i, j, END], [c, d, e, f, g, h]]
    np.testing.assert_array_equal(batch.tokens, tokens)
    np.testing.assert_array_equal(batch.targets, targets)
    assert data.summary == "pairs: train 4, valid 4; 2 of train are cut"
    assert data.bytes_per_token == (2 + 1 + 2 + 6) / (3 + 2 + 3 + 6)


def test_batches_are_functions_of_their_number(tmp_path):
    """Kills: a pair that an epoch shows twice or never, a cursor that is not the place in the stream or of other
    pairs, a validation pair that is trained on."""
    path = write(tmp_path / "pairs.jsonl", [(f"{n}+1=", str(n + 1)) for n in range(200)])
    data = CompletionsConfig(path=path, length=8).build(batch_size=5, valid_batch_size=7)
    stream, n_train = data.train(), data.manifest()["train"]
    assert 150 < n_train < 200
    batches = [next(stream) for _ in range(n_train // 5)]
    seen = {row.tobytes() for batch in batches for row in np.asarray(batch.tokens)}
    assert len(seen) == n_train // 5 * 5
    held_out = [data.valid()[0].batch(i).tokens for i in range(data.valid()[0].n_batches)]
    held_out = {row.tobytes() for tokens in held_out for row in np.asarray(tokens)}
    assert not seen & held_out
    state, later = stream.get_state(), next(stream)
    again = data.train([3, 1])
    again.set_state(state)
    np.testing.assert_array_equal(next(again).targets, later.targets[np.array([3, 1])])
    with pytest.raises(ValueError, match="restore the files, or start again"):
        again.set_state({**state, "fingerprint": "bytes-257:other"})


@pytest.mark.parametrize(
    "line",
    [
        '{"prompt": "a"}',
        "\xff",
        *(pytest.param(x, marks=pytest.mark.full) for x in ("{", '{"prompt": "a", "response": ""}', "[1]", "3")),
        pytest.param("[" * 100_000, marks=pytest.mark.full),
    ],
)
def test_a_line_that_is_no_pair(line, tmp_path):
    """Kills: a traceback, and a line that is skipped in silence."""
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "a", "response": "b"}\n' + line)
    config = CompletionsConfig(path=str(tmp_path / "*.jsonl"))
    with pytest.raises(ValueError, match=r"pairs.jsonl:2: must be an object with texts prompt and response"):
        config.build(batch_size=1, valid_batch_size=1)
