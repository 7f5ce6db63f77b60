"""`jaxzoo convert` to a run and back. Kills: a tensor or tokenizer lost on the way."""

import json

import numpy as np
import pytest

import jaxzoo
from jaxzoo.cli.convert import main as convert
from jaxzoo.cli.generate import main as generate
from jaxzoo.data.tokenizer import END_OF_TEXT
from jaxzoo.data.tokens.tokenizer_definition import byte_alphabet
from jaxzoo.data.tokens.tokenizer_files import gpt2_content
from jaxzoo.interop.loading import read_tensors
from tests.interop import published


@pytest.fixture
def folder(tmp_path):
    """A Llama of one layer over the bytes, `ab` and end-of-text, with its tokenizer."""
    config, shapes, _ = published.read("llama")
    config |= {"num_hidden_layers": 1, "vocab_size": 258}
    shapes = {key: (258, shape[1]) if shape[0] == 61 else shape for key, shape in shapes.items()}
    arrays = {
        key: published.numbers(key, shape) for key, shape in shapes.items() if ".1." not in key and ".2." not in key
    }
    published.write_folder(tmp_path / "folder", config, arrays)
    vocab = {**byte_alphabet(), "ab": 256, END_OF_TEXT: 257}
    (tmp_path / "folder" / "tokenizer.json").write_text(json.dumps(gpt2_content(vocab, "a b\n")))
    (tmp_path / "text").mkdir()
    for i in range(8):
        (tmp_path / "text" / f"{i}.txt").write_text("a cab, a cabbage and the abbey. " * 40)
    return tmp_path / "folder"


def run(command, *words):
    return command([str(word) for word in words])


def test_there_and_back(folder, tmp_path, capsys):
    """Kills: a tensor changed by the conversion, a lost tokenizer, an overwritten run or folder, an incomplete
    report."""
    there, again = tmp_path / "run", tmp_path / "again"
    assert run(convert, "--from", folder, "--out", there, "--report") == 0
    out, err = capsys.readouterr()
    assert "model.layers.0.self_attn.q_proj.weight -> layers.0.mixer.q_proj.kernel (transposed)" in out
    assert "family llama" in err
    assert run(convert, "--from", folder, "--out", there) == 2
    assert "holds a run" in capsys.readouterr().err
    assert run(convert, "--run", there, "--to", again) == 0
    first, second = read_tensors(folder), read_tensors(again)
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[key], second[key]) for key in first)
    assert json.loads((again / "tokenizer.json").read_text())["model"]["merges"] == ["a b"]
    assert run(convert, "--run", there, "--to", again) == 2
    assert "holds files" in capsys.readouterr().err
    (tmp_path / "own.py").write_text("configs = {'two': None, 'sizes': None}\n")  # defines what a run may need
    assert run(convert, "--run", there, "--to", tmp_path / "third", "--config", tmp_path / "own.py") == 0
    capsys.readouterr()
    for words in (
        ("--from", folder),
        ("--from", folder, "--run", there),
        ("--run", there),
        (),
        ("--from", folder, "--to", again),
    ):
        assert run(convert, *words) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_begin_and_end_tokens(folder, tmp_path, capsys):
    """Kills: a begin token that the tokenizer's template asks for, lost on import, in generation, in the windows of the
    data or on export; end tokens and a chat template that the exported folder does not name."""
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    begin, text = {"SpecialToken": {"id": END_OF_TEXT, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    special = {END_OF_TEXT: {"id": END_OF_TEXT, "ids": [257], "tokens": [END_OF_TEXT]}}
    template = {"single": [begin, text], "pair": [begin, text], "special_tokens": special}
    content["post_processor"] = {"type": "TemplateProcessing", **template}
    file.write_text(json.dumps(content))
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": [257, 5], "bos_token_id": 257}))
    there, again = tmp_path / "run", tmp_path / "again"
    assert run(convert, "--from", folder, "--out", there) == 0
    assert "token 257 begins every text" in capsys.readouterr().err
    loaded = jaxzoo.load(there)
    assert (loaded.tokenizer.begin, loaded.tokenizer.ends, loaded.config.data.begin) == ((257,), (257, 5), 257)
    words = ("--run", there, "--prompt", "a cab", "--max-tokens", "3", "--temperature", "0", "--echo")
    said = {}
    for bos in ("auto", "yes", "no"):
        assert run(generate, *words, "--bos", bos) == 0
        output = capsys.readouterr()
        said[bos] = output.err.split("read ")[-1].split(" prompt")[0]
    assert said["auto"] == said["yes"] == str(int(said["no"]) + 1)
    assert run(convert, "--run", there, "--to", again) == 0
    written = json.loads((again / "config.json").read_text())
    assert (written["eos_token_id"], written["bos_token_id"]) == ([257, 5], 257)
    assert json.loads((again / "generation_config.json").read_text())["eos_token_id"] == [257, 5]
    assert json.loads((again / "tokenizer.json").read_text())["post_processor"] == content["post_processor"]
    assert (again / "chat_template.jinja").read_text() == "{{ messages }}"
