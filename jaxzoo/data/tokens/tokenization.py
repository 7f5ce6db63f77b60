"""Tokenization of documents: one token shard for each file of a data set, made independently, restartable.

`request.json` records data and tokenizer; another request is refused. The result depends on these two alone, not on
the number of workers or on interruptions.
"""

import functools
import importlib.metadata
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from jaxzoo.data.corpus.built import BuiltData, BuiltDocument
from jaxzoo.data.pieces.resumable import begun, check_plan, remove_drafts
from jaxzoo.data.pieces.share_out import Piece, share_out
from jaxzoo.data.tokenizer import Tokenizer
from jaxzoo.data.tokens.token_shards import (
    FORMAT,
    TokenDirectory,
    TokenizedDocument,
    read_note,
    shard_name,
    token_dtype,
    total_of,
    write_manifest,
    write_shard,
)
from jaxzoo.data.tokens.tokenizer_files import load_tokenizer, save_tokenizer

BATCH_BYTES = 2**20
"""Text that is encoded together."""

_HEADER_BYTES = 128


class Progress(NamedTuple):
    """Progress of a tokenization."""

    shards: int
    """Finished shards."""
    tokens: int
    """Tokens, also of unfinished shards."""
    bytes: int
    """Bytes of the text of finished shards."""
    finished_tokens: int
    """Tokens of finished shards."""


class Tokenization:
    """Token shards of the documents of a directory. Refuses what could not work before anything is written.

    Raises `ValueError` if there are no such data, or `out` holds something else, or tokens of other data or another
    tokenizer.
    """

    def __init__(self, data: Path, tokenizer: Tokenizer, out: Path):
        self.out: Path = out
        self._tokenizer = tokenizer
        self._data = BuiltData(data)
        self._identity = {
            name: getattr(tokenizer, name) for name in ("name", "fingerprint", "vocab_size", "end_of_text")
        }
        self._request = {"format": FORMAT, "tokenizer": self._identity, "data": self._data.identity()}
        check_plan(out, "request.json", self._request)
        self._pieces = [
            Piece(name, out / f"{name}.json", (self._data.path, out, split, i))
            for split, lengths in self._data.splits.items()
            for i in range(len(lengths))
            for name in [shard_name(split, i)]
        ]

    @property
    def n_shards(self) -> int:
        """Number of shards, of all splits."""
        return len(self._pieces)

    @property
    def is_finished(self) -> bool:
        """Whether the shards and their manifest exist."""
        return (self.out / "manifest.json").is_file() and all(piece.makes.exists() for piece in self._pieces)

    def progress(self) -> Progress:
        """Progress of all commands that share the work."""
        names = [piece.name for piece in self._pieces if piece.makes.exists()]
        done = total_of(counts for name in names for counts in read_note(self.out, name).subsets.values())
        under_way = 0
        for file in self.out.glob("*.tokens.npy.*.tmp"):
            try:
                n_bytes = file.stat().st_size
            except FileNotFoundError:  # renamed since it was listed
                continue
            under_way += max(n_bytes - _HEADER_BYTES, 0) // token_dtype(self._tokenizer.vocab_size).itemsize
        return Progress(len(names), done.tokens + under_way, done.bytes, done.tokens)

    def run(self, *, workers: int = 1) -> TokenDirectory:
        """Makes the missing shards and the manifest in so many processes. Raises `ValueError` for damaged data."""
        claims, manifest = self.out / ".claims", self.out / "manifest.json"
        with begun(self.out, "request.json", self._request, results="*-[0-9]*.json", claims=claims):
            if not all((self.out / name).exists() for name in ("tokenizer.json", "tokenizer_config.json")):
                save_tokenizer(self._tokenizer, self.out)
            if not self.is_finished:
                manifest.unlink(missing_ok=True)
            share_out(write_token_shard, self._pieces, workers=workers, claims=claims)
        versions = {name: _version(name) for name in ("jaxzoo", "numpy", "tokenizers")}
        n_shards = {split: len(lengths) for split, lengths in self._data.splits.items()}
        finish = functools.partial(write_manifest, tokenizer=self._identity, versions=versions)
        share_out(finish, [Piece("the manifest", manifest, (self.out, n_shards))], workers=1, claims=claims)
        remove_drafts(self.out)
        return TokenDirectory(self.out)


def write_token_shard(data: Path, out: Path, split: str, index: int) -> None:
    """Makes one token shard of one file of the data, with the tokenizer in `out`."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # workers are the parallelism; read when a batch is encoded
    name = shard_name(split, index)
    for draft in out.glob(f"{name}.*.tmp"):  # of a killed worker
        draft.unlink(missing_ok=True)
    tokenizer = load_tokenizer(out)
    documents = _tokenized(BuiltData(data).shard(split, index), tokenizer)
    write_shard(out, name, documents, vocab_size=tokenizer.vocab_size, end_of_text=tokenizer.end_of_text)


def _tokenized(documents: Iterator[BuiltDocument], tokenizer: Tokenizer) -> Iterator[TokenizedDocument]:
    """Encodes the documents, some at a time."""
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


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
