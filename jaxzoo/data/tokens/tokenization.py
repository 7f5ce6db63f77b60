"""Resumable tokenization of documents: one token shard per file of a data set.

`request.json` records data and tokenizer; another request is refused. The result depends on these two alone, not on
the number of workers or on interruptions.
"""

import contextlib
import importlib.metadata
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from jaxzoo.data.corpus.built import BuiltData
from jaxzoo.data.corpus.lines import TextDocument
from jaxzoo.data.resumable import Job, ResumableDirectory
from jaxzoo.data.tokenizer import Tokenizer
from jaxzoo.data.tokens.token_shards import (
    FORMAT,
    Counts,
    TokenDirectory,
    TokenizedDocument,
    read_note,
    shard_name,
    token_dtype,
    write_manifest,
    write_shard,
)
from jaxzoo.data.tokens.tokenizer_files import load_tokenizer, save_tokenizer

BATCH_BYTES = 2**20
"""Size of the text that is encoded together."""

_HEADER_BYTES = 128


class TokenizationProgress(NamedTuple):
    shards: int
    """Finished shards."""
    tokens: int
    """Tokens, also of unfinished shards."""
    bytes: int
    """Bytes of the text of finished shards."""


class Tokenization:
    """Token shards of the documents of a directory. Refuses unusable inputs before anything is written. Raises
    `ValueError` if there are no such data, or `out` holds something else, or tokens of other data or another
    tokenizer."""

    def __init__(self, data: Path, tokenizer: Tokenizer, out: Path):
        self._data = BuiltData(data)
        self._tokenizer = tokenizer
        self._identity = {
            name: getattr(tokenizer, name) for name in ("name", "fingerprint", "vocab_size", "end_of_text")
        }
        plan = {"format": FORMAT, "tokenizer": self._identity, "data": self._data.identity()}
        self._work = ResumableDirectory(out, plan, "request.json", ".", temporary=())
        shards = [(split, i) for split, lengths in self._data.splits.items() for i in range(len(lengths))]
        self._arguments = {shard_name(*shard): (self._data.path, *shard) for shard in shards}

    @property
    def n_shards(self) -> int:
        return len(self._arguments)

    @property
    def is_finished(self) -> bool:
        return self._work.is_finished and all(self._work.note(name).exists() for name in self._arguments)

    def progress(self) -> TokenizationProgress:
        """Returns the progress of all commands that share the work."""
        out = self._work.path
        done = Counts()
        under_way = 0
        names = [name for name in self._arguments if self._work.note(name).exists()]
        for name in names:
            done = sum(read_note(out, name).subsets.values(), done)
        for file in out.glob("*.tokens.npy.*.tmp"):
            with contextlib.suppress(FileNotFoundError):  # renamed since it was listed
                n_bytes = max(file.stat().st_size - _HEADER_BYTES, 0)
                under_way += n_bytes // token_dtype(self._tokenizer.vocab_size).itemsize
        return TokenizationProgress(len(names), done.tokens + under_way, done.bytes)

    def run(self, *, workers: int = 1) -> TokenDirectory:
        """Makes the missing shards and the manifest. Raises `ValueError` for damaged data."""
        out = self._work.path
        if not self.is_finished:
            (out / "manifest.json").unlink(missing_ok=True)

        def prepare() -> None:
            if not all((out / name).exists() for name in ("tokenizer.json", "tokenizer_config.json")):
                save_tokenizer(self._tokenizer, out)

        def finish() -> None:
            versions = {name: _version(name) for name in ("jaxzoo", "numpy", "tokenizers")}
            for name, (_, split, index) in self._arguments.items():  # a note may be that of another tokenization
                n = sum(read_note(out, name).subsets.values(), Counts()).documents
                if n != (there := self._data.splits[split][index]):
                    what = f"{out / name}.json counts {n:,} documents, and the data have {there:,}"
                    raise ValueError(f"{what}; remove it and tokenize again")
            n_shards = {split: len(lengths) for split, lengths in self._data.splits.items()}
            write_manifest(out, n_shards, tokenizer=self._identity, versions=versions)

        self._work.make(write_token_shard, self._arguments, finish, prepare=prepare, workers=workers)
        return TokenDirectory(out)


def write_token_shard(data: Path, split: str, index: int, job: Job) -> None:
    """Makes the token shard of one file of the data, with the tokenizer next to its note."""
    note = job.note
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # workers are the parallelism; read when a batch is encoded
    for draft in note.parent.glob(f"{note.stem}.*.tmp"):  # left by a killed worker
        draft.unlink(missing_ok=True)
    tokenizer = load_tokenizer(note.parent)
    documents = _tokenized(BuiltData(data).shard(split, index), tokenizer)
    ids = {"vocab_size": tokenizer.vocab_size, "end_of_text": tokenizer.end_of_text}
    write_shard(note.parent, note.stem, documents, **ids)


def _tokenized(documents: Iterator[TextDocument], tokenizer: Tokenizer) -> Iterator[TokenizedDocument]:
    """Encodes the documents in batches of about `BATCH_BYTES`."""
    while True:
        some: list[TextDocument] = []
        n_bytes = 0
        while n_bytes < BATCH_BYTES and (document := next(documents, None)):
            n_bytes += len(document.text)
            some.append(document)
        if not some:
            return
        tokens = tokenizer.encode_batch([document.text for document in some])
        for document, ids in zip(some, tokens, strict=True):
            yield TokenizedDocument(ids, len(document.text.encode()), document.subset, document.is_repaired)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
