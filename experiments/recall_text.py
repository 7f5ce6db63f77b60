"""Source code tokenized by a BPE trained on it, with validation on AR hits (Zoology, Arora et al. 2023, Sec. 3.1).

Validation scores the first windows of every held-out document, separately for AR hits and for all other tokens: an
AR hit ends a bigram that occurs earlier in its window and is rare in training. Metrics of document 3 end in
`hits=3` and `others=3`, metrics of all hits in `hit=1`, of all other tokens in `hit=0`.

Deviation: the paper's threshold, 1,250 occurrences in 10 billion tokens, is less than one occurrence here. With 25
occurrences in 2.2 million tokens the share of hits is about the paper's, 6.4 % of all tokens.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Integer

from jaxzoo.config.checked import Count, PositiveInt
from jaxzoo.data.base import UNLABELLED, ValidSet
from jaxzoo.data.corpus.files import Document, read_corpus
from jaxzoo.data.text_data import TextData, TextDataConfig
from jaxzoo.data.tokenizer import Tokenizer
from jaxzoo.data.tokens.tokenizer_training import learn_tokenizer
from jaxzoo.evals.recall_slices import target_repeats

HIT_ACCURACY = "valid/accuracy/hit=1"
"""Metric: the mean over windows of the share of AR hits that are the likeliest token."""


def learn_bpe(documents: Sequence[Document], vocab_size: int, max_bytes: int = 10**8) -> Tokenizer:
    """Learns a BPE from documents; `max_bytes` of text are read."""
    read = lambda _, order: (SimpleNamespace(text=documents[i].data.decode()) for i in order)  # noqa: E731
    data: Any = SimpleNamespace(path="", splits={"train": (len(documents),)}, read=read)
    return learn_tokenizer(data, vocab_size=vocab_size, max_bytes=max_bytes).tokenizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecallTextConfig(TextDataConfig):
    """Location of the text, its windows, and the threshold of AR hits."""

    bpe_size: PositiveInt = 2048
    """Ids of the tokenizer, which is learned from the training documents; `tokenizer_path` is not read."""
    rare: Count = 25
    """Most occurrences in training of the bigram that an AR hit ends."""
    windows: PositiveInt = 8
    """Windows of a document that are scored, from its beginning; `valid_tokens` is not read."""

    def build(self, *, batch_size: int, valid_batch_size: int) -> "RecallText":
        """Reads the text; a validation batch is one document, whatever `valid_batch_size` is."""
        return RecallText(self, batch_size=batch_size, valid_batch_size=valid_batch_size)

    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the text."""
        return _own_tokenizer(self.path, self.valid_fraction, self.seed, self.bpe_size)

    def guessing_lines(self) -> Mapping[str, float]:
        """Accuracy on AR hits of the most frequent successor in training."""
        text = self.build(batch_size=1, valid_batch_size=1)
        tokens, targets, hits = (np.concatenate(arrays) for arrays in zip(*text.documents, strict=True))
        right, asked = (text.seen.argmax(axis=1)[tokens] == targets) & hits, hits.any(axis=1)
        return {HIT_ACCURACY: round(float((right.sum(1)[asked] / hits.sum(1)[asked]).mean()), 4)}


@functools.cache
def _own_tokenizer(path: str, valid_fraction: float, seed: int, size: int) -> Tokenizer:
    return learn_bpe(read_corpus(path, valid_fraction=valid_fraction, seed=seed).train, size)


class ScoredDocument(NamedTuple):
    """Windows of a document; rows and positions beyond its end have no label."""

    tokens: Int[np.ndarray, "windows length"]
    targets: Int[np.ndarray, "windows length"]
    hits: Bool[np.ndarray, "windows length"]

    @property
    def others(self) -> Bool[np.ndarray, "windows length"]:
        return (self.targets != UNLABELLED) & ~self.hits


class RecallText(TextData):
    """`Dataset` of text whose validation sets are the AR hits and the other tokens of each held-out document. `seen`
    (vocab, vocab) counts how often a token (column) follows a token (row) in training."""

    def __init__(self, config: RecallTextConfig, *, batch_size: int, valid_batch_size: int):
        everything = dataclasses.replace(config, valid_tokens=2**31 - 1)
        super().__init__(everything, batch_size=batch_size, valid_batch_size=valid_batch_size)
        size, train = self.vocab_size, self._tokens.astype(np.int64)
        self.seen: Int[np.ndarray, "vocab vocab"] = np.bincount(
            train[:-1] * size + train[1:], minlength=size * size
        ).reshape(size, size)
        text = np.append(self._valid_tokens[:1], self._valid_targets).astype(np.int32)
        parts = np.split(text, np.flatnonzero(text == self.tokenizer.end_of_text) + 1)
        self.documents: list[ScoredDocument] = [self._document(config, part) for part in parts if len(part) > 1]
        tokens, targets, _ = (np.concatenate(arrays) for arrays in zip(*self.documents, strict=True))
        labelled = targets != UNLABELLED
        self._scored = tokens[labelled], targets[labelled]
        self._valid_bytes = self.tokenizer.count_bytes(self._scored[1])
        self.bytes_per_token: float | None = self._valid_bytes / self._scored[1].size

    def _document(self, config: RecallTextConfig, text: Integer[np.ndarray, "t"]) -> ScoredDocument:
        shape = config.windows, config.length
        text = text[: config.windows * config.length + 1]
        tokens, targets = np.zeros(shape, np.int32), np.full(shape, UNLABELLED, np.int32)
        tokens.flat[: len(text) - 1], targets.flat[: len(text) - 1] = text[:-1], text[1:]
        hits = (target_repeats(tokens, targets, 2) > 0) & (self.seen[tokens, targets] <= config.rare)
        return ScoredDocument(tokens, targets, hits & (targets != UNLABELLED))

    def valid(self) -> list[ValidSet]:
        """Two sets per document, of one batch each; none if it has no such tokens."""
        sets = []
        for number, document in enumerate(self.documents):
            for hit, name, scored in ((1, "hits", document.hits), (0, "others", document.others)):
                if scored.any():
                    batch = self.batch(document.tokens, np.where(scored, document.targets, UNLABELLED))
                    sets.append(ValidSet({"hit": hit, name: number}, 1, lambda _, batch=batch: batch))
        return sets


def text_numbers(length: int, windows: int, valid_fraction: float) -> dict[str, float]:
    """Returns numbers of documents, of targets by validation set (`hits=3`), bytes per token, and the bits per byte of
    the best n-gram model."""
    config = RecallTextConfig(length=length, windows=windows, valid_fraction=valid_fraction)
    text = config.build(batch_size=1, valid_batch_size=1)
    found = {"documents": float(len(text.documents)), "bytes_per_token": text.bytes_per_token or 0.0}
    for number, document in enumerate(text.documents):
        found |= {f"hits={number}": float(document.hits.sum()), f"others={number}": float(document.others.sum())}
    return {"valid/bits_per_byte": min(score.bits_per_byte for score in text.baselines().values()), **found}
