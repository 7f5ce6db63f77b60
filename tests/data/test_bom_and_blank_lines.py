"""Byte order marks and blank lines in all readers. Kills: one reader with other rules."""

import codecs
import gzip

import pytest

from jaxzoo.config.json_files import read_json, read_json_lines
from jaxzoo.data.completions import CompletionsConfig, read_pairs
from jaxzoo.data.corpus.documents import DocumentFields, Skipped, read_documents
from jaxzoo.data.corpus.fasta import read_bases, read_layout
from jaxzoo.data.corpus.files import read_corpus
from jaxzoo.data.corpus.labelled import read_labelled
from jaxzoo.data.corpus.lines import read_lines
from jaxzoo.data.tokens.tokenizer_files import load_tokenizer
from jaxzoo.train.export import opened

BOM = codecs.BOM_UTF8
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 516567560\n"


@pytest.fixture
def write(tmp_path):
    def make(name, content):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return tmp_path / name

    return make


def test_json_lines(write):
    """Kills: a blank last line refused, a mark that makes the first line no JSON, in one of the readers alone."""
    rows = b'{"prompt": "a", "response": "b", "text": "t"}'
    for content in (rows + b"\n\n \n" + rows + b"\n\n", BOM + rows + b"\r\n" + rows, BOM + b"\n" + rows + b"\n" + rows):
        for name in ("pairs.jsonl", "pairs.jsonl.gz"):
            file = write(name, content)
            assert read_pairs(str(file), CompletionsConfig(path=str(file))) == [("a", "b")] * 2
            found = read_documents([file], DocumentFields("text"), Skipped())
            assert [document.text for document in found] == ["t", "t"]
        assert len(list(read_json_lines(write("plain.jsonl", content), dict))) == 2
    assert read_json(write("one.json", BOM + rows), dict)["text"] == "t"


def test_other_texts(write, tmp_path):
    """Kills: three bytes of a mark as text, a FASTA file whose first header is not seen, a CSV without columns."""
    assert [d.data for d in read_corpus(str(write("a.txt", BOM + b"ab" * 40)), valid_fraction=0.5, seed=0).train] == [
        b"ab" * 20
    ]
    assert next(read_documents([write("b.txt", BOM + b"text")], None, Skipped())).text == "text"
    bases = list(read_bases(write("c.fa", BOM + b">one\nACGT\n\nAC\n"), read_layout()))
    assert [(document.subset, document.text) for document in bases] == [("one", "ACGTAC")]
    world = b"".join(b"%d %r 1\n\n" % (i + 1, bytes([i])) for i in range(256))
    assert load_tokenizer(write("rwkv_vocab_v1.txt", BOM + world + b" \r\n")).encode("ab").tolist() == [98, 99]
    assert read_labelled(write("train.csv", BOM + b"sequence,label\nacgt,1\n"))[0].text == "ACGT"


def test_lfs_pointers(write):
    """Kills: the pointer of Git LFS taken for text, or for a damaged file."""
    for folder in ("merges", "template"):  # nothing else in them is a pointer
        write(f"{folder}/vocab.json", b'{"</s>": 0}')
    write("template/merges.txt", b"")
    for read in (
        lambda: read_json(write("tokenizer.json", POINTER), dict),
        lambda: list(read_json_lines(write("rows.jsonl", POINTER), dict)),
        lambda: list(read_lines(write("rows.zst", POINTER))),
        lambda: opened(write("export.safetensors", POINTER)),
        lambda: list(read_bases(write("c.fa", POINTER), read_layout())),
        lambda: read_corpus(str(write("a.txt", POINTER)), valid_fraction=0.5, seed=0),
        lambda: load_tokenizer(write("rwkv_vocab_v1.txt", POINTER)),
        lambda: load_tokenizer(write("merges/merges.txt", POINTER).parent),
        lambda: load_tokenizer(write("template/chat_template.jinja", POINTER).parent),
    ):
        with pytest.raises(ValueError, match="is a Git LFS pointer, not the file itself; run git lfs pull"):
            read()
