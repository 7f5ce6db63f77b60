"""Text as training batches and validation windows.

The tokens of a split, every document followed by end-of-text, are one uint16 array in memory: 2 bytes a
token, for corpora up to some GB. Training batch i is a pure function of (corpus, config, batch size, i);
grain makes it ahead of time in a thread, and its index is the whole cursor.

A window may hold parts of several documents. Packing says what a token may see of them:

- "concatenate", as in the papers: everything before it in its window;
- "segments": its own document alone. End-of-text opens the segment of the document behind it and so serves as its
  begin token. No label is lost: the target at the last token of a document is end-of-text, and the target at
  end-of-text is the first token of the next document. Tokens and targets are those of "concatenate".
"""

import dataclasses
import math
import sys
from collections.abc import Sequence
from typing import Annotated, Literal

import grain
import jax.numpy as jnp
import numpy as np
from jaxtyping import UInt16

from jaxzoo.checked import PositiveInt, Rule, Seed
from jaxzoo.data.base import Batch, DataConfig, Score, ValidSet
from jaxzoo.data.corpus import Document, read_corpus
from jaxzoo.data.ngram import ngram_baselines
from jaxzoo.data.tokenizer import ByteTokenizer

Packing = Literal["concatenate", "segments"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextDataConfig(DataConfig):
    """Byte-level text: where it lies and how it is cut."""

    path: str = ""
    """Directory, file or glob (`**` allowed) of UTF-8 text; empty: the source of the standard library."""
    length: PositiveInt = 256
    """Tokens of a window."""
    valid_lengths: tuple[PositiveInt, ...] = ()
    """Tokens of the windows of validation, each length scored by itself on the same targets; empty: `length` alone."""
    packing: Packing = "concatenate"
    """What a token may see of its window: all before it, or (segments) its own document alone."""
    valid_fraction: Annotated[float, Rule("must be in (0, 1)", 0, 1, excluded=(0, 1))] = 0.05
    """Share of the files, chosen by a hash of the name, kept for validation; of a single file, its end."""
    valid_tokens: PositiveInt = 100_000
    """Upper bound of the validation tokens that are scored; the files come in the order of their hashes."""
    seed: Seed = 0
    """Seed of the split and of the training windows."""

    def __post_init__(self) -> None:
        unit = self.valid_unit
        what = f"valid_lengths={self.valid_lengths}" if self.valid_lengths else f"length={self.length}"
        self.require("valid_tokens", self.valid_tokens >= unit, f"must be at least one window, {what}", f"take {unit}")

    @property
    def valid_unit(self) -> int:
        """The fewest tokens that are whole windows of every length of validation."""
        return math.lcm(*self.valid_lengths) if self.valid_lengths else self.length

    def build(self, *, batch_size: int, valid_batch_size: int) -> "TextData":
        """Reads the text."""
        return TextData(self, batch_size=batch_size, valid_batch_size=valid_batch_size)

    def tokenizer(self) -> ByteTokenizer:
        """Bytes."""
        return ByteTokenizer()


class TextData:
    """A `Dataset` of byte-level text: the targets are the next tokens, at every position.

    Attributes:
        summary: files and bytes of each split, in one line.
        fingerprint: changes with the tokenizer, the files, their content or the split; what the config says beyond
            these (lengths, packing) a resumed run compares with its own config.
        bytes_per_token: bytes of text over tokens of the validation targets; see `ngram.bits_per_byte`.

    Args:
        config: what to read and how to cut it.
        batch_size: windows of a training batch, positive.
        valid_batch_size: windows of a validation batch, positive; the last one may have fewer.

    Raises:
        ValueError: the path holds no readable text, or a split is too short for one window.
    """

    def __init__(self, config: TextDataConfig, *, batch_size: int, valid_batch_size: int):
        for name, size in (("batch_size", batch_size), ("valid_batch_size", valid_batch_size)):
            if size < 1:
                raise ValueError(f"TextData.{name}={size!r} must be positive")
        corpus = read_corpus(config.path, valid_fraction=config.valid_fraction, seed=config.seed)
        self.config = config
        self.tokenizer = config.tokenizer()
        self.vocab_size = self.tokenizer.vocab_size
        self.packed = config.packing == "segments"
        self.max_length = max((config.length, *config.valid_lengths))
        self.summary = f"text: {corpus.summary()}"
        self.fingerprint = f"{self.tokenizer.fingerprint}:{corpus.fingerprint()}"
        self._manifest = corpus.manifest()
        self._batch_size, self._valid_batch_size = batch_size, valid_batch_size
        self._train = self._flatten("train", corpus.train)
        valid = self._flatten("valid", corpus.valid)
        used = min(config.valid_tokens, len(valid) - 1) // config.valid_unit * config.valid_unit
        self._valid_tokens, self._valid_targets = valid[:used], valid[1 : used + 1]
        self._valid_bytes = self.tokenizer.count_bytes(self._valid_targets)
        self.bytes_per_token: float | None = self._valid_bytes / self._valid_targets.size

    def manifest(self) -> dict[str, list[list]]:
        """The files behind the tokens, JSON-able: `{split: [[name, bytes, sha256 of the content], ...]}`."""
        return self._manifest

    def train(self) -> "TextStream":
        """A new stream at batch 0; a batch is `batch_size` windows at independent, uniform random offsets."""
        source = _RandomWindows(
            self._train, length=self.config.length, batch_size=self._batch_size, seed=self.config.seed
        )
        return TextStream(source, self.config.packing, self.fingerprint)

    def valid(self) -> Sequence[ValidSet]:
        """Consecutive windows from the beginning of the validation text, every target scored once: one set, or one for
        each of `valid_lengths`.

        The remainder that fills no window (of every length) is left out. Each window starts without context, so that
        its first targets are harder than in a running text.
        """
        lengths = self.config.valid_lengths
        if not lengths:
            return [self._valid_set(self.config.length, {})]
        return [self._valid_set(length, {"length": length}) for length in lengths]

    def baselines(self) -> dict[str, Score]:
        """Unigram and bigram scores on the targets of `valid`."""
        return ngram_baselines(
            self._train,
            self._valid_tokens,
            self._valid_targets,
            vocab_size=self.vocab_size,
            n_bytes=self._valid_bytes,
        )

    def _valid_set(self, length: int, slices: dict[str, int]) -> ValidSet:
        tokens, targets = (x.reshape(-1, length) for x in (self._valid_tokens, self._valid_targets))
        n_batches = -(-len(tokens) // self._valid_batch_size)

        def batch(i: int) -> Batch:
            if not 0 <= i < n_batches:
                raise IndexError(f"validation batch {i} must be in [0, {n_batches})")
            rows = slice(i * self._valid_batch_size, (i + 1) * self._valid_batch_size)
            return _as_batch(tokens[rows], targets[rows], self.config.packing)

        return ValidSet(slices, n_batches, batch)

    def _flatten(self, split: str, documents: Sequence[Document]) -> UInt16[np.ndarray, "t"]:
        """All documents, each followed by end-of-text; checked to hold one window (of every length) and its last
        target."""
        end = np.array([self.tokenizer.end_of_text], np.uint16)
        tokens = np.concatenate([part for d in documents for part in (self.tokenizer.encode(d.data), end)])
        name, needed = "length", self.config.length
        if split == "valid" and self.config.valid_lengths:
            name, needed = "valid_lengths", self.config.valid_unit
        if len(tokens) < needed + 1:
            raise ValueError(
                f"TextDataConfig.{name}={needed} must be below the {len(tokens)} tokens of the "
                f"{split} split of path={self.config.path!r}; take more text, a shorter length or another "
                "valid_fraction"
            )
        return tokens


class TextStream:
    """An endless iterator of training batches (a `Stream`) that knows which data its cursor belongs to."""

    def __init__(self, source: "_RandomWindows", packing: Packing, fingerprint: str):
        ahead = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
        self._windows = iter(grain.MapDataset.source(source).to_iter_dataset(ahead))
        self._packing: Packing = packing
        self._fingerprint = fingerprint

    def __iter__(self) -> "TextStream":
        return self

    def __next__(self) -> Batch:
        """The next batch."""
        windows = next(self._windows)
        return _as_batch(windows[:, :-1], windows[:, 1:], self._packing)

    def get_state(self) -> dict:
        """The cursor, JSON-able; batches that were made ahead but not taken are still to come."""
        return {"fingerprint": self._fingerprint, "windows": self._windows.get_state()}

    def set_state(self, state: dict) -> None:
        """Moves to a saved cursor.

        Raises:
            ValueError: the cursor was saved on other files, another split or another tokenizer.
        """
        if state["fingerprint"] != self._fingerprint:
            raise ValueError(
                f"TextStream state fingerprint={state['fingerprint']!r} must equal {self._fingerprint!r}, "
                "that of the text as it is now; restore the files (compare the manifests), or start a new run"
            )
        self._windows.set_state(state["windows"])


class _RandomWindows:
    """A grain source: element number i is batch i, `length + 1` tokens a row."""

    def __init__(self, tokens: UInt16[np.ndarray, "t"], *, length: int, batch_size: int, seed: int):
        self._tokens, self._length, self._batch_size, self._seed = tokens, length, batch_size, seed

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, index: int) -> UInt16[np.ndarray, "b t+1"]:
        rng = np.random.default_rng((self._seed, index))
        starts = rng.integers(0, len(self._tokens) - self._length, size=self._batch_size)
        return self._tokens[starts[:, None] + np.arange(self._length + 1)[None, :]]


def _as_batch(tokens: UInt16[np.ndarray, "b t"], targets: UInt16[np.ndarray, "b t"], packing: Packing) -> Batch:
    segment_ids = None
    if packing == "segments":
        segment_ids = jnp.asarray(np.cumsum(tokens == ByteTokenizer.end_of_text, axis=1, dtype=np.int32))
    return Batch(
        tokens=jnp.asarray(tokens, jnp.int32), targets=jnp.asarray(targets, jnp.int32), segment_ids=segment_ids
    )
