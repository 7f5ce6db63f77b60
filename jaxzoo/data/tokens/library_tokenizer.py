"""Tokenizers of the library `tokenizers`: unchanged for models of other libraries, lossless for training data."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt

from jaxzoo.config.checked import shorten
from jaxzoo.data.tokenizer import END_OF_TEXT, Tokenizer
from jaxzoo.data.tokens import tokenizer_definition as definition
from jaxzoo.data.tokens.token_shards import token_dtype
from jaxzoo.utils.extras import need
from jaxzoo.utils.screen import warn

END_OF_TEXT_NAMES = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>")
"""Default end-of-text tokens; the first one in the vocabulary is used."""
UTF8_BYTES = bytes(byte for byte in range(0xF5) if byte not in (0xC0, 0xC1))
MOST_IDS = 2**24
"""Bound of ids, for which tables are made."""
PROBE = "Tab\tand  two spaces\r\n\n naïve ŁÓDŹ 漢字 😀 \0\x7f x=['a'] 12345 don't <0x41> "
"""Text that a lossless tokenizer must reproduce, with characters that normalizers often change; in NFC."""


class LibraryTokenizer(Tokenizer):
    """`Tokenizer` of a `tokenizer.json`.

    Text never becomes special tokens: `<|endoftext|>` in a document is thirteen characters. `begin` holds the begin
    tokens of the file's template (its post-processor); `encode` leaves them out.

    Args:
      content: of a `tokenizer.json`.
      end_of_text: token that ends a document; None: the first of `END_OF_TEXT_NAMES` in the vocabulary.
      where: name in errors.
      lossless: whether the tokens of a text must stand for its bytes, as training data need it: then no space is put
        before a text, and a byte without token is an error. Otherwise a text means what it means to `tokenizers`, and
        what is lost is reported once.
      files: contents of other files that belong to the tokenizer, by name; see `save_tokenizer`.

    Raises `ValueError`: the library refuses the content, it has no such end-of-text, or it cannot be lossless.
    """

    def __init__(
        self,
        content: Mapping[str, Any],
        end_of_text: str | None,
        where: str,
        *,
        lossless: bool = True,
        files: Mapping[str, Any] | None = None,
    ):
        need("tokenizers", "a tokenizer.json")
        self._where, self._lossless = where, lossless
        self.files: dict[str, Any] = dict(files or {})
        try:
            ids = definition.token_ids(content)
            by_id = {i: name for name, i in ids.items()}
            known = [*END_OF_TEXT_NAMES, *(by_id.get(i, "") for i in _ends(self.files))]
            chosen = end_of_text or next((name for name in known if name in ids), None)
            self._check_ids(ids, chosen)
            assert chosen
            plain = definition.lossless(content, chosen)
            self.fingerprint: str = definition.fingerprint(content, chosen)
        except (KeyError, TypeError, AttributeError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else f"a field is of another type: {error}"
            raise ValueError(f"{where} must be a tokenizer.json, but {what}") from error
        self.content: dict[str, Any] = plain if lossless else {**content, "truncation": None, "padding": None}
        self.end_of_text_name: str = chosen
        self.end_of_text: int = ids[chosen]
        self.vocab_size: int = max(ids.values()) + 1
        self.name: str = f"{self.fingerprint.split('-')[0]}-{self.vocab_size}"
        self._dtype = token_dtype(self.vocab_size)
        self._library = self._load(self.content)
        self.begin: tuple[int, ...] = () if lossless else self._template(content)
        self.ends: tuple[int, ...] = tuple(dict.fromkeys([self.end_of_text, *_ends(self.files)]))
        added = definition.added_tokens(self.content)
        self.special: dict[int, str] = {token["id"]: token["content"] for token in added if token.get("special")}
        scheme = definition.scheme(self.content)
        if lossless and scheme is None:
            raise ValueError(
                f"{where} is BPE neither over bytes nor with byte fallback: its tokens stand for no bytes; take "
                "another tokenizer, or make one with jaxzoo data-train-tokenizer"
            )
        table = self._pieces() if scheme is None else definition.byte_table(self.content)
        present = {token[0] for token in table if len(token) == 1}
        self._present = bytes(sorted(present)) if scheme else UTF8_BYTES
        self._is_complete = set(UTF8_BYTES) <= set(self._present)
        self._reported: set[int] = set()
        super().__init__(table, self.special)
        if lossless:
            self._check_lossless(scheme)

    @property
    def begin_of_text(self) -> int:
        ids = definition.token_ids(self.content)
        named = self.files.get("generation_config.json", {}).get("bos_token_id")
        token = token_text(self.files.get("tokenizer_config.json", {}).get("bos_token"))
        return ids.get(token or "", named if isinstance(named, int) else self.end_of_text)

    def encode(self, text: str) -> UInt[np.ndarray, "t"]:
        """Ids of a text, without begin tokens and end-of-text; uint16, or uint32 above 65,536 ids. Raises `ValueError`
        at a lone surrogate, which no bytes stand for."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[UInt[np.ndarray, "t"]]:
        if not self._is_complete:
            for text in texts:
                self._report(text)
        try:
            with _library_errors(self._where):
                encodings = self._library.encode_batch_fast(texts, add_special_tokens=False)
        except TypeError as error:
            for text in texts:
                text.encode()  # raises UnicodeEncodeError, a ValueError, at a lone surrogate
            raise error
        return [np.array(encoding.ids, self._dtype) for encoding in encodings]

    def _report(self, text: str) -> None:
        """Reports the first byte of a text that no token stands for."""
        lost = set(text.encode().translate(None, self._present))
        if not lost or (not self._lossless and lost <= self._reported):
            return
        character = next(c for c in text if lost & set(c.encode()))
        what = f"{self._where} has no token for the byte 0x{min(lost):02X} of the text (in {character!r})"
        if self._lossless:
            raise ValueError(f"{what}; leave it out, or take another tokenizer")
        self._reported |= lost
        warn(f"{what}; it is left out")

    def _check_ids(self, ids: Mapping[str, int], chosen: str | None) -> None:
        where = self._where
        if not all(isinstance(i, int) and 0 <= i < MOST_IDS for i in ids.values()):
            raise ValueError(f"{where}: ids of its vocabulary must be integers in [0, {MOST_IDS:,})")
        if chosen is None:
            raise ValueError(
                f"{where} has no token that is known to end a document ({', '.join(END_OF_TEXT_NAMES)}); name it "
                "with " + ("--end-of-text TOKEN" if self._lossless else "eos_token in tokenizer_config.json")
            )
        if chosen not in ids:
            raise ValueError(f"{where} has no token {chosen!r} to end a document with; name another --end-of-text")

    def _load(self, content: Mapping[str, Any]) -> Any:
        import tokenizers

        with _library_errors(self._where):
            library = tokenizers.Tokenizer.from_str(json.dumps(content))
        library.encode_special_tokens = True
        return library

    def _template(self, content: Mapping[str, Any]) -> tuple[int, ...]:
        """Returns the tokens that the file's own template puts before a text."""
        settings = self.files.get("tokenizer_config.json", {})
        names = definition.token_ids(content)
        if settings.get("add_bos_token") is True and (token := token_text(settings.get("bos_token"))) in names:
            return (names[token],)
        if not content.get("post_processor"):
            return ()
        library = self._load({**self.content, "post_processor": content["post_processor"]})
        with _library_errors(self._where):
            plain = library.encode("a", add_special_tokens=False).ids
            whole = library.encode("a", add_special_tokens=True).ids
        starts = [at for at in range(len(whole)) if whole[at : at + len(plain)] == plain]
        return tuple(whole[: starts[0]]) if starts else ()

    def _pieces(self) -> list[bytes]:
        """Returns what the library's decoder adds for each id after another token, for tokens without own bytes."""
        with _library_errors(self._where):
            first = self._library.encode("a", add_special_tokens=False).ids[:1]
            before = self._library.decode(first)
            if not before:  # "a" is unknown: a token that is left out shows no space after it
                alone = self._library.decode_batch([[i] for i in range(self.vocab_size)])
                first, before = next(([i], text) for i, text in enumerate([*alone, "a"]) if text.strip())
            texts = self._library.decode_batch([[*first, i] for i in range(self.vocab_size)])
        return [text.removeprefix(before).encode() for text in texts]

    def _check_lossless(self, scheme: str | None) -> None:
        """Raises `ValueError` unless text is reproduced, including that of special tokens."""
        known, special = set(self._present), self.special
        probe = "".join(c for c in PROBE if set(c.encode()) <= known)
        text = " ".join([probe, *special.values()])
        if scheme == "byte-fallback":
            text = text.replace(definition.space_of(self.content), " ")
        ids = self.encode(text)
        for i in ids.tolist():
            if i in special:
                rule = f"makes the special token {special[i]!r} of text that reads so"
                raise ValueError(f"{self._where} {rule}; take another tokenizer")
        back, expected = self.to_bytes(ids), text.encode()
        if back != expected:
            at = next((i for i, (a, b) in enumerate(zip(back, expected, strict=False)) if a != b), len(back))
            shown = [data[max(at - 9, 0) : at + 9].decode(errors="replace") for data in (expected, back)]
            raise ValueError(
                f"{self._where} does not give text back: {shown[0]!r} becomes {shown[1]!r}; training needs a "
                "tokenizer that keeps all characters"
            )


@contextlib.contextmanager
def _library_errors(where: str) -> Iterator[None]:
    """Raises `ValueError` for the errors of the library: plain Exceptions, and panics, which are BaseExceptions."""
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"{where} is no tokenizer.json that can be used: {error}") from error


def token_text(value: Any) -> str | None:
    """Returns the text of a token in `tokenizer_config.json`: a string, or an object with content."""
    text = value.get("content") if isinstance(value, dict) else value
    if not isinstance(text, str | None):
        raise ValueError(f"a token must be a string, or an object with content; got {shorten(value)}")
    return text


def _ends(files: Mapping[str, Any]) -> list[int]:
    """Returns the ids that end a model's text, from the generation config."""
    named = files.get("generation_config.json", {}).get("eos_token_id")
    return [i for i in (named if isinstance(named, list) else [named]) if isinstance(i, int)]
