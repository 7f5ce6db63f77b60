"""Tokenizers of the library tokenizers. Kills: bytes that do not come back, a changed fingerprint."""

import json
from pathlib import Path

import numpy as np
import pytest

from jaxzoo.data.tokenizer import END_OF_TEXT, ByteTokenizer
from jaxzoo.data.tokens.library_tokenizer import LibraryTokenizer
from jaxzoo.data.tokens.tokenizer_files import load_tokenizer, save_tokenizer
from tests.data.gpt2 import gpt2_directory

SPECIAL = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
TEXTS = (
    "Hello world",
    "I've said: they'll go, it's 1999's don't'S",
    "  two  spaces\t\ttabs \n\n lines\r\n   ",
    "naïve ŁÓDŹ 漢字かな 😀👍🏽 مرحبا \u3000x\xa0y",
    f"a{END_OF_TEXT}b <|endoftext|",
    "\0\x01\x7f\ufffd\ufeff",
    "",
    " ",
)


@pytest.fixture(scope="module")
def gpt2() -> LibraryTokenizer:
    tokenizer = load_tokenizer(gpt2_directory())
    assert isinstance(tokenizer, LibraryTokenizer)
    return tokenizer


def fallback_content() -> dict:
    """A tokenizer of Llama 2's kind: characters, some merges, and a token for every byte."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁heloab/s<>"]
    pieces = list(dict.fromkeys([*pieces, "he", "ll", "▁he"]))
    added = [{"id": i, "content": name, **SPECIAL} for i, name in enumerate(("<unk>", "<s>", "</s>"))]
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {"type": "Fuse"},
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {piece: i for i, piece in enumerate(pieces)},
            "merges": ["h e", "l l", "▁ he"],
        },
    }


@pytest.fixture(scope="module")
def llama_like() -> LibraryTokenizer:
    return LibraryTokenizer(fallback_content(), None, "llama")


def test_known_ids(gpt2):
    """Kills: an encoder and its truth that are wrong together."""
    assert gpt2.encode("Hello world").tolist() == [15496, 995]
    assert gpt2.encode("Hello world").dtype == np.uint16
    assert (gpt2.vocab_size, gpt2.end_of_text) == (50257, 50256)


def test_bytes_come_back_whole_and_in_parts(request):
    """Kills: bytes of a token that depend on its neighbours, and counts that differ from the bytes."""
    for name in ["gpt2", "llama_like"]:
        tokenizer = request.getfixturevalue(name)
        rng = np.random.default_rng(0)
        codes = rng.choice([*range(0xD800), *range(0xE000, 0x11_0000)], (30, 40))
        for text in [*TEXTS, *("".join(map(chr, row)) for row in codes), "</s><s> hello heal", "hello", " hello"]:
            ids = tokenizer.encode(text)
            data = text.replace("▁", " ").encode() if name == "llama_like" else text.encode()
            assert tokenizer.to_bytes(ids) == data
            assert tokenizer.count_bytes(ids) == len(data)
            cut = rng.integers(0, len(ids) + 1)
            assert tokenizer.to_bytes(ids[:cut]) + tokenizer.to_bytes(ids[cut:]) == data
            assert not set(ids.tolist()) & set(tokenizer.special)
            assert tokenizer.decode(ids) == data.decode()


def test_byte_fallback_ids_by_hand(llama_like):
    """Kills: merges that are not made, bytes of what has no character, and a space before the first word."""
    vocab = fallback_content()["model"]["vocab"]
    names = ["he", "ll", "o", "▁he", "ll", "o", "<0xC3>", "<0xA9>"]
    assert llama_like.encode("hello helloé").tolist() == [vocab[name] for name in names]


def test_end_of_text_stands_for_no_byte_and_is_shown(gpt2):
    """Kills: bits per byte over bytes that no text has, and a sample that hides where a document ends."""
    ids = np.array([[*gpt2.encode("é a"), gpt2.end_of_text], [gpt2.end_of_text, *gpt2.encode("é a")]])
    assert gpt2.count_bytes(ids) == 8
    assert gpt2.to_bytes(ids[0]) == "é a".encode()
    assert gpt2.decode(ids[0]) == f"é a{END_OF_TEXT}"
    assert gpt2.decode(gpt2.encode("é")[:1][:0]) == ""
    with pytest.raises(ValueError, match=r"ids=\[50257\] must be in \[0, 50257\); mask the padding"):
        gpt2.decode(np.array([50257]))


def test_the_end_of_text_is_chosen_and_kept(tmp_path):
    """Kills: an end of text that is lost between the command that names it and the one that trains."""
    content = fallback_content()
    content["model"]["vocab"]["<fin>"] = len(content["model"]["vocab"])
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "tokenizer.json").write_text(json.dumps(content))
    assert load_tokenizer(tmp_path / "a").end_of_text == 2
    named = load_tokenizer(tmp_path / "a", "<fin>")
    assert named.end_of_text == content["model"]["vocab"]["<fin>"]
    (tmp_path / "b").mkdir()
    save_tokenizer(named, tmp_path / "b")
    again = load_tokenizer(tmp_path / "b")
    assert (again.end_of_text, again.fingerprint) == (named.end_of_text, named.fingerprint)
    (tmp_path / "a" / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<s>"}}))
    assert load_tokenizer(tmp_path / "a").end_of_text == 1


def write_content(path: Path, change) -> Path:
    content = fallback_content()
    change(content)
    path.write_text(json.dumps(content))
    return path


def test_what_is_no_tokenizer_for_language_models_is_refused(tmp_path):
    """Kills: tracebacks of the library, and tokenizers whose text is not the document's: their bits per byte lie."""
    for change, message in [
        (lambda c: c.pop("model"), "must be a tokenizer.json, but 'model' is missing"),
        (
            lambda c: c["model"].update(vocab=[1, 2]),
            "must be a tokenizer.json, but a field is of another type",
        ),
        (lambda c: c["model"].update(byte_fallback=False), "its tokens stand for no bytes; take another tokenizer"),
        (lambda c: c["model"]["merges"].append("z z"), "is no tokenizer.json that can be used: Token `z` out of voc"),
        (lambda c: c.update(normalizer={"type": "Lowercase"}), "does not give text back: 'Tab\\tand  '"),
        (lambda c: c.update(normalizer={"type": "NFKD"}), "does not give text back"),
        (lambda c: c["model"]["vocab"].update(a=-1), "must be integers in [0, 16,777,216)"),
    ]:
        with pytest.raises(ValueError) as refused:
            load_tokenizer(write_content(tmp_path / "tokenizer.json", change))
        assert message in str(refused.value)
        assert str(tmp_path / "tokenizer.json") in str(refused.value)


def test_places_without_a_tokenizer_are_refused(tmp_path):
    """Kills: a network request for what is no file, and a traceback where the library is missing."""
    with pytest.raises(ValueError, match=r"gpt2 does not exist; a tokenizer is 'bytes', a tokenizer\.json"):
        load_tokenizer("gpt2")
    with pytest.raises(ValueError, match=r"holds no tokenizer; a tokenizer is"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer\.json: must be JSON"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"must be UTF-8, but byte 0 is not"):
        load_tokenizer(tmp_path)
    with pytest.raises(ValueError, match="has no token '<none>' to end a document with"):
        load_tokenizer(gpt2_directory(), "<none>")
    with pytest.raises(ValueError, match="bytes have an end-of-text of their own"):
        load_tokenizer("bytes", "</s>")
    assert isinstance(load_tokenizer("bytes"), ByteTokenizer)
    content = fallback_content()
    content["added_tokens"] = []
    content["model"]["vocab"]["stop"] = content["model"]["vocab"].pop("</s>")
    with pytest.raises(ValueError, match=r"no token that is known to end a document .*--end-of-text TOKEN"):
        LibraryTokenizer(content, None, "x")


def test_a_byte_without_a_token(tmp_path, capsys):
    """Kills: a tokenizer refused for a byte that few texts hold; training data that lose one in silence; a line per
    text of what a model loses."""
    file = write_content(tmp_path / "tokenizer.json", lambda c: c["model"]["vocab"].pop("<0xC3>"))
    strict, lenient = load_tokenizer(file), load_tokenizer(file, lossless=False)
    assert strict.fingerprint == lenient.fingerprint
    assert strict.to_bytes(strict.encode("hello")) == b"hello"
    with pytest.raises(ValueError, match=r"no token for the byte 0xC3 of the text \(in 'é'\); leave it out, or"):
        strict.encode_batch(["hello", "héllo"])
    for _ in range(2):
        lenient.encode("héllo")
    assert capsys.readouterr().err.count("has no token for the byte 0xC3 of the text (in 'é'); it is left out") == 1


def test_a_model_reads_what_the_library_makes(tmp_path):
    """Kills: ids that differ from the library's own: no space before the first word, a begin token that is lost, or
    that `encode` adds; end tokens and the chat template that do not come back."""
    import tokenizers

    file = write_content(tmp_path / "tokenizer.json", lambda c: None)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 7], "bos_token_id": 1}))
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    library = tokenizers.Tokenizer.from_file(str(file))
    model, data = load_tokenizer(tmp_path, lossless=False), load_tokenizer(file)
    for text in ("hello", "hello hell", " é"):
        assert model.prompt(text).tolist() == library.encode(text).ids
        assert model.encode(text).tolist() == library.encode(text, add_special_tokens=False).ids
    assert (model.begin, model.ends, data.ends) == ((1,), (2, 7), (2,))
    assert model.fingerprint == data.fingerprint
    assert data.encode("hello")[0] != model.encode("hello")[0]
    save_tokenizer(model, tmp_path / "again")
    again = load_tokenizer(tmp_path / "again", lossless=False)
    assert (again.begin, again.ends, again.prompt("hello").tolist()) == ((1,), (2, 7), library.encode("hello").ids)
    assert (tmp_path / "again" / "chat_template.jinja").read_text() == "{{ messages }}"


@pytest.mark.parametrize("kind", ["WordLevel", "WordPiece", "Unigram"])
def test_other_kinds_serve_models(kind, tmp_path):
    """Kills: a tokenizer of another kind refused for a model; pieces that do not join to the library's text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    words = ["</s>", "[UNK]", "a", "cab", "abbey", "##s", "▁a", "▁cab", "▁abbey", "s"]
    vocab = {word: i for i, word in enumerate(words)}
    if kind == "Unigram":
        library = Tokenizer(models.Unigram([(word, -float(i)) for i, word in enumerate(words)], unk_id=1))
        library.pre_tokenizer, library.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    else:
        library = Tokenizer(getattr(models, kind)(vocab, unk_token="[UNK]"))
        library.pre_tokenizer = pre_tokenizers.Whitespace()
        library.decoder = decoders.WordPiece()
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path, lossless=False)
    ids = library.encode("a cab abbey").ids
    assert tokenizer.encode("a cab abbey").tolist() == ids
    assert tokenizer.to_bytes(np.array(ids)).decode().strip() == library.decode(ids).strip() == "a cab abbey"
    with pytest.raises(ValueError, match="its tokens stand for no bytes"):
        load_tokenizer(tmp_path)


def test_words_without_the_letter_a(tmp_path):
    """Kills: no spaces between words, where the library's probe is the unknown token."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    words = {"[UNK]": 0, "</s>": 1, "the": 2, "cat": 3, "sat": 4}
    library = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.add_special_tokens([AddedToken("[UNK]", special=True), AddedToken("</s>", special=True)])
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path, lossless=False)
    assert tokenizer.to_bytes(tokenizer.encode("the cat sat")).decode().strip() == "the cat sat"


# Fingerprints that earlier versions gave: shards and models keep them.
KEPT = {"gpt2": "bpe-50257-5e418fbf6ff4", "llama_like": "bpe-273-49d2c2394ae3"}


@pytest.mark.parametrize("name", KEPT)
def test_kept_fingerprints(name, request):
    """Kills: kept shards and models that are refused because their tokenizer's identity changed."""
    assert request.getfixturevalue(name).fingerprint == KEPT[name]
