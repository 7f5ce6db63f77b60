"""A folder of transformers through every command that an owner of a checkpoint uses, and back into transformers."""

import json
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

import jaxzoo
from jaxzoo.cli.convert import main as convert
from jaxzoo.cli.evaluate import main as evaluate
from jaxzoo.cli.export import main as export
from jaxzoo.cli.generate import main as generate
from jaxzoo.cli.train import main as train
from jaxzoo.data.tokenizer import END_OF_TEXT
from jaxzoo.data.tokens.tokenizer_definition import byte_alphabet
from jaxzoo.data.tokens.tokenizer_files import gpt2_content
from tests.parity.carry import token_ids
from tests.parity.folders import make_model
from tests.parity.test_interop import logits_of

pytestmark = [pytest.mark.parity, pytest.mark.slow]

FAMILIES = (
    "llama-llama3",
    "mistral",
    "qwen2-windows",
    "qwen3",
    "gpt_neox-parallel",
    "mamba",
    "mamba2",
    "rwkv4",
    "recurrent_gemma",
    "qwen3_next",
)
ROWS = 258


def make_folder(name, place):
    """A random model over the bytes, `ab` and end-of-text, with its tokenizer; and some text."""
    make_model(name, vocab_size=ROWS).save_pretrained(place / "theirs")
    vocab = {**byte_alphabet(), "ab": 256, END_OF_TEXT: 257}
    (place / "theirs" / "tokenizer.json").write_text(json.dumps(gpt2_content(vocab, "a b\n")))
    (place / "text").mkdir()
    for i in range(8):
        (place / "text" / f"{i}.txt").write_text("a cab, a cabbage and the abbey. " * 60)


@pytest.mark.parametrize("name", FAMILIES)
def test_chain(name, tmp_path, torch, transformers, capsys):
    """Kills: a command that does not take an imported run of this family, a run that does not resume, a trained model
    that is written as another one: exported, and read by transformers, it has the logits of the run."""

    def run(command, *words):
        assert command([str(word) for word in words]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    make_folder(name, tmp_path)
    there, tuned, again = tmp_path / "run", tmp_path / "tuned", tmp_path / "again"
    data = ("--data.path", tmp_path / "text", "--data.length", "32", "--data.valid-tokens", "128")
    run(convert, "--from", tmp_path / "theirs", "--out", there)
    before = run(evaluate, "--run", there, *data, "--train.valid-batch-size", "2")
    assert "bits_per_byte" in before
    run(generate, "--run", there, "--prompt", "a cab", "--max-tokens", "4", "--temperature", "0")
    words = ("--config", there, "--run-dir", tuned, *data, "--optimizer.learning-rate", "3e-3")
    words += ("--train.batch-size", "8", "--train.valid-batch-size", "8", "--train.eval-every", "0")
    words += ("--train.steps", "6", "--train.checkpoint-every", "3", "--train.keep-checkpoints", "2")
    run(train, *words, "--init-from", there)
    tokens = token_ids(ROWS, b=2, t=29)
    expected = jaxzoo.load(tuned).model(jnp.asarray(tokens))
    shutil.rmtree(tuned / "checkpoints" / "6")
    assert "resumed at step 3" in run(train, *words, "--resume")
    run(generate, "--run", tuned, "--prompt", "a cab", "--max-tokens", "4")
    run(export, "--run", tuned, "--out", tmp_path / "tuned.safetensors")
    run(convert, "--run", tuned, "--to", again)

    def logits(path):
        return jaxzoo.load(path).model(jnp.asarray(tokens))

    assert np.abs(expected - logits(there)).max() > 1e-3  # it has learned
    for path in (tuned, tmp_path / "tuned.safetensors"):
        np.testing.assert_array_equal(logits(path), expected)
    theirs = type(make_model(name)).from_pretrained(again, dtype=torch.float32).eval()
    np.testing.assert_allclose(expected, logits_of(theirs, tokens, torch), rtol=0, atol=1e-4)
