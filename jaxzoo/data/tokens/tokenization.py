"""Tokenization of documents: one token shard for each file of a data set, made independently, restartable.

`request.json` says which data and which tokenizer; another request is refused. What comes out depends on these two
alone, not on the number of workers or on where the work was stopped and begun again.
"""

import importlib.metadata
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from jaxzoo.data.corpus.built import BuiltData, BuiltDocument
from jaxzoo.data.pieces.resumable import check_plan, remove_drafts, removed_if_refused, write_plan
from jaxzoo.data.pieces.share_out import Piece, is_shared, share_out
from jaxzoo.data.tokenizer import Tokenizer
from jaxzoo.data.tokens.token_shards import (
    FORMAT,
    TokenDirectory,
    TokenizedDocument,
    is_whole,
    read_note,
    shard_name,
    total_of,
    write_manifest,
    write_shard,
)
from jaxzoo.data.tokens.tokenizer_files import load_tokenizer, save_tokenizer

BATCH_BYTES = 2**20
"""Text that is encoded together."""

_HEADER = 128
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


class Progress(NamedTuple):
    """How far a tokenization is."""

    shards: int
    """Finished ones."""
    tokens: int
    """Tokens, also of unfinished shards."""
    bytes: int
    """Bytes of the text of finished shards."""
    finished_tokens: int
    """Tokens of finished shards."""


class Tokenization:
    """Token shards in a directory. Refuses what could not work before anything is written.

    Args:
        data: the documents' directory; see `BuiltData`.
        tokenizer: what makes the tokens.
        out: directory of the token shards, which need not exist.

    Raises:
        ValueError: there are no such data; or `out` holds something else, or tokens of other data or another tokenizer.
        OSError: something cannot be read.
    """

    def __init__(self, data: Path, tokenizer: Tokenizer, out: Path):
        self.out, self._tokenizer = out, tokenizer
        self._data = BuiltData(data)
        self._names = {
            split: [shard_name(split, i) for i in range(len(lengths))] for split, lengths in self._data.splits.items()
        }
        identity = {name: getattr(tokenizer, name) for name in ("name", "fingerprint", "vocab_size", "end_of_text")}
        self._request = {"format": FORMAT, "tokenizer": identity, "data": self._data.identity()}
        check_plan(out, "request.json", self._request)

    @property
    def n_shards(self) -> int:
        """Number of shards, of all splits."""
        return sum(map(len, self._names.values()))

    @property
    def n_documents(self) -> int:
        """Number of documents, of all splits."""
        return sum(map(sum, self._data.splits.values()))

    @property
    def is_finished(self) -> bool:
        """Whether the shards and their manifest are there."""
        names = (name for names in self._names.values() for name in names)
        return (self.out / "manifest.json").is_file() and all(is_whole(self.out, name) for name in names)

    def progress(self) -> Progress:
        """How far all that work on it are together."""
        names = [name for names in self._names.values() for name in names if is_whole(self.out, name)]
        done = total_of(counts for name in names for counts in read_note(self.out, name).subsets.values())
        sizes = [_size(file) for file in self.out.glob("*.tokens.npy.*.tmp")]
        width = 2 if self._tokenizer.vocab_size <= 2**16 else 4
        under_way = sum(max(size - _HEADER, 0) // width for size in sizes)
        return Progress(len(names), done.tokens + under_way, done.bytes, done.tokens)

    def run(self, *, workers: int = 1, report: Callable[[str, int, int], None] = lambda *_: None) -> TokenDirectory:
        """Makes what is missing.

        Args:
            workers: processes.
            report: gets name of a shard, number of finished shards and of all, after each.

        Raises:
            ValueError: a file of the data is damaged.
            OSError: the tokens cannot be written, or a worker was killed.
        """
        where = (os.fspath(self._data.path), os.fspath(self.out))
        pieces = [
            Piece(name, self.out / f"{name}.json", (*where, split, i))
            for split, names in self._names.items()
            for i, name in enumerate(names)
        ]
        claims = self.out / ".claims"
        with removed_if_refused(self.out, lambda: is_shared(claims) or any(piece.makes.exists() for piece in pieces)):
            write_plan(self.out, "request.json", self._request)
            if not all((self.out / name).exists() for name in _TOKENIZER_FILES):
                save_tokenizer(self._tokenizer, self.out)
            if any(not piece.makes.exists() for piece in pieces):
                (self.out / "manifest.json").unlink(missing_ok=True)
            share_out(write_token_shard, pieces, workers=workers, report=report, claims=claims)
        remove_drafts(self.out, "request.json", *_TOKENIZER_FILES, "manifest.json")
        versions = {name: _version(name) for name in ("jaxzoo", "numpy", "tokenizers")}
        n_shards = {split: len(names) for split, names in self._names.items()}
        for is_last_try in (False, True):
            try:
                write_manifest(self.out, n_shards, tokenizer=self._request["tokenizer"], versions=versions)
                break
            except FileNotFoundError:  # its draft was removed by another command that finishes the same work
                if is_last_try:
                    raise
        return TokenDirectory(self.out)


def write_token_shard(data: str, out: str, split: str, index: int) -> None:
    """Makes one token shard of one file of the data, with the tokenizer in `out`.

    Raises:
        ValueError: the file is damaged.
        OSError: the shard cannot be written.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # workers are the parallelism; read when a batch is encoded
    directory, name = Path(out), shard_name(split, index)
    for file in directory.glob(f"{name}.*.tmp"):  # of a worker that was killed
        file.unlink(missing_ok=True)
    tokenizer = load_tokenizer(directory)
    documents = _tokenized(BuiltData(Path(data)).shard(split, index), tokenizer)
    write_shard(directory, name, documents, vocab_size=tokenizer.vocab_size, end_of_text=tokenizer.end_of_text)


def _tokenized(documents: Iterator[BuiltDocument], tokenizer: Tokenizer) -> Iterator[TokenizedDocument]:
    """The documents as tokens, encoded some at a time."""
    some: list[BuiltDocument] = []
    n_bytes = 0
    for document in documents:
        some.append(document)
        n_bytes += len(document.text)
        if n_bytes >= BATCH_BYTES:
            yield from _encoded(some, tokenizer)
            some, n_bytes = [], 0
    yield from _encoded(some, tokenizer)


def _encoded(documents: list[BuiltDocument], tokenizer: Tokenizer) -> Iterator[TokenizedDocument]:
    tokens = tokenizer.encode_batch([document.text for document in documents])
    for document, ids in zip(documents, tokens, strict=True):
        yield TokenizedDocument(ids, len(document.text.encode()), document.subset, document.is_repaired)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:  # renamed since it was listed
        return 0


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
