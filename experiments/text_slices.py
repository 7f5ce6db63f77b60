"""Text whose validation tells tokens that can be recalled from others (Zoology, Arora et al. 2023, Sec. 3.1).

The targets of the validation windows are in three slices, `valid/bits_per_byte/slice=N`:

0. AR hits: the bigram occurs earlier in the window, and rarely in training;
1. rare, not repeated: the bigram is as rare, but new in its window. A model that cannot recall is as bad on slice 0;
2. other tokens.

With `asked` the validation sets are questions, `valid/accuracy/question=N`: the share of the answer's tokens that are
the likeliest, each after the right ones. The questions are `QUESTIONS`: a field of a package's metadata (`records`, as
FDA in Based, Sec. 6), a number in a phone book, and a number in a repeated line.

The text is files; or sources of the standard library and of installed packages; or documents of
`jaxzoo.tasks.record_documents`: metadata of the installed packages, each with some of its fields again at its end (no
package is in training and validation).
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from experiments.recall_text import learn_bpe
from jaxzoo.config.checked import Count, NonNegativeInt, PositiveInt
from jaxzoo.data.base import UNLABELLED, ValidSet, make_valid_set
from jaxzoo.data.corpus.files import Corpus, Document, hash_share, read_corpus
from jaxzoo.data.corpus.python_pile import python_texts
from jaxzoo.data.text_data import TextData, TextDataConfig
from jaxzoo.data.tokenizer import Tokenizer
from jaxzoo.evals.recall_slices import HITS, target_repeats
from jaxzoo.tasks.record_documents import RecordsConfig, RecordSet
from jaxzoo.tasks.record_sources import debian_records, python_records
from jaxzoo.tasks.text_recall import NeedleConfig, PhoneBookConfig

FIRST = "rare, not repeated"
SLICES = (HITS, FIRST, "other tokens")
QUESTIONS = ("records", "phone book", "needle")
FIELDS = 4
"""Most fields of a document of package metadata; nearly all are repeated at its end."""
N_QUESTIONS = 200
"""Most questions of a kind."""
ENTRIES, LINES = 3, 2
"""Other entries of the phone book, and lines around the needle."""
BPE_BYTES = 10_000_000
"""Most text from which the tokenizer is learned."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlicedTextConfig(TextDataConfig):
    """Text, its windows, and the threshold of rare bigrams. `tokenizer_path` is not read."""

    records: NonNegativeInt = 0
    """Number of training documents of package metadata; 0: the files of `path`, or of `packages`."""
    document_bytes: PositiveInt = 96
    """Longest document of package metadata, without its repeated fields."""
    packages: tuple[str, ...] = ()
    """Installed packages whose sources are the text, with the standard library's; none: the files of `path`."""
    bpe_size: PositiveInt = 1024
    """Ids of the tokenizer, which is learned from the training documents."""
    rare: Count = 10
    """Most occurrences in training of a rare bigram."""
    asked: bool = False
    """Validate on `QUESTIONS`, not on `SLICES`."""

    def build(self, *, batch_size: int, valid_batch_size: int) -> "SlicedText":
        return SlicedText(self, batch_size=batch_size, valid_batch_size=valid_batch_size)

    def tokenizer(self) -> Tokenizer:
        return _tokenizer(self._source(), self.bpe_size)

    def corpus(self) -> Corpus:
        return _corpus(self._source())

    def _source(self) -> "SlicedTextConfig":
        """Returns a config of the same documents, equal for all models."""
        names = ("path", "valid_fraction", "seed", "records", "document_bytes", "packages")
        return SlicedTextConfig(length=1, **{name: getattr(self, name) for name in names})


@functools.cache
def _corpus(source: SlicedTextConfig) -> Corpus:
    if source.packages:
        return _sources(source)
    if not source.records:
        return read_corpus(source.path, valid_fraction=source.valid_fraction, seed=source.seed)
    sides = []
    for held_out in (False, True):
        rows = record_set(source.records, source.document_bytes).training_documents(held_out=held_out)
        sides.append(tuple(Document(f"{i:06}", row["text"].encode()) for i, row in enumerate(rows)))
    return Corpus(train=sides[0], valid=sides[1])


def _sources(source: SlicedTextConfig) -> Corpus:
    """Returns the files of `python_texts`, both splits in the order of a hash of seed and name."""
    texts = [(f"{subset}/{name}", text) for subset, name, text in python_texts(source.packages)]
    shares = sorted((hash_share(f"{source.seed}:{name}".encode()), name, text) for name, text in texts)
    train, valid = (
        tuple(Document(name, text.encode()) for share, name, text in shares if (share < source.valid_fraction) == held)
        for held in (False, True)
    )
    return Corpus(train=train, valid=valid)


@functools.cache
def record_set(records: int, document_bytes: int) -> RecordSet:
    """Metadata of the installed packages, split into training and validation."""
    sizes: Any = {"document_bytes": document_bytes, "fields_per_document": FIELDS, "questions": FIELDS}
    return RecordSet([*python_records(), *debian_records()], RecordsConfig(documents=max(records, 1), **sizes))


@functools.cache
def _tokenizer(source: SlicedTextConfig, size: int) -> Tokenizer:
    return learn_bpe(_corpus(source).train, size, max_bytes=BPE_BYTES)


def questions(config: SlicedTextConfig) -> Iterator[list[tuple[str, str]]]:
    """Yields prompts and answers of each of `QUESTIONS`."""
    rows = record_set(config.records, config.document_bytes).examples()
    yield [(row["text"], f" {row['value']}") for row in rows[:: max(1, len(rows) // N_QUESTIONS)][:N_QUESTIONS]]
    for kind, size in ((PhoneBookConfig, ENTRIES), (NeedleConfig, LINES)):
        task, rng = kind(length=2**20), np.random.default_rng(0)
        yield [(text.prompt, text.answer) for text in (task.text(rng, size) for _ in range(N_QUESTIONS))]


class SlicedText(TextData):
    """`Dataset` of text whose validation sets are `SLICES`, `QUESTIONS`, or windows of each of `valid_lengths`."""

    def __init__(self, config: SlicedTextConfig, *, batch_size: int, valid_batch_size: int):
        super().__init__(config, batch_size=batch_size, valid_batch_size=valid_batch_size)
        self._text = config

    def masks(self) -> dict[str, np.ndarray]:
        """Returns the targets (windows, length) of each slice."""
        size, train = self.vocab_size, self._tokens.astype(np.int64)
        tokens, targets = self.windows_of_valid()
        seen = np.bincount(train[:-1] * size + train[1:], minlength=size * size).reshape(size, size)
        repeated, rare = target_repeats(tokens, targets, 2) > 0, seen[tokens, targets] <= self._text.rare
        return dict(zip(SLICES, (repeated & rare, rare & ~repeated, ~rare), strict=True))

    def windows_of_valid(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns tokens and targets of the validation windows, (windows, length) each."""
        shape = -1, self._text.length
        return self._valid_tokens.astype(np.int32).reshape(shape), self._valid_targets.astype(np.int32).reshape(shape)

    @functools.cached_property
    def _sets(self) -> Sequence[ValidSet]:
        if self._text.valid_lengths:
            return super().valid()
        if self._text.asked:
            found = [(i, *self._asked(each)) for i, each in enumerate(questions(self._text))]
            return [self._set("question", *each) for each in found if len(each[1])]
        tokens, targets = self.windows_of_valid()
        labels = [np.where(mask, targets, UNLABELLED) for mask in self.masks().values()]
        return [self._set("slice", i, tokens, each) for i, each in enumerate(labels) if (each != UNLABELLED).any()]

    def valid(self) -> Sequence[ValidSet]:
        return self._sets

    def _set(self, name: str, number: int, tokens: np.ndarray, targets: np.ndarray) -> ValidSet:
        batch = lambda rows: self.batch(tokens[rows], targets[rows])  # noqa: E731
        return make_valid_set({name: number}, len(tokens), self._valid_batch_size, batch)

    def _asked(self, pairs: Sequence[tuple[str, str]]) -> tuple[np.ndarray, np.ndarray]:
        """Returns tokens and targets of questions that fit into a window, labelled at the answer."""
        length, end = self._text.length, self.tokenizer.end_of_text
        texts = [[self.tokenizer.encode(part).tolist() for part in pair] for pair in pairs]
        texts = [(prompt, answer) for prompt, answer in texts if len(prompt) + len(answer) <= length]
        tokens, targets = (np.full((len(texts), length), fill, np.int32) for fill in (end, UNLABELLED))
        for row, (prompt, answer) in enumerate(texts):
            n = len(prompt) + len(answer)
            tokens[row, :n] = [*prompt, *answer]
            targets[row, len(prompt) - 1 : n - 1] = answer
        return tokens, targets
