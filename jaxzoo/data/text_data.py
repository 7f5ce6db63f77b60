"""Text files as training batches and validation windows.

The tokens of a split, every document followed by end-of-text, are one array in memory: 2 bytes a token, 4 for
tokenizers of more than 65,536 ids, for corpora up to some GB. Training batch i is a pure function of (corpus, config,
batch size, i).
`windows.py` says what a token may see of its window.
"""

import dataclasses
import sys
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from jaxtyping import UInt

from jaxzoo.checked import Rule, Seed
from jaxzoo.data.base import Score, ValidSet
from jaxzoo.data.corpus.files import Document, read_corpus
from jaxzoo.data.statistics.ngram import ngram_baselines
from jaxzoo.data.tokenizer import ByteTokenizer, Tokenizer
from jaxzoo.data.tokens.token_shards import token_dtype
from jaxzoo.data.tokens.tokenizer_files import load_tokenizer
from jaxzoo.data.windows import WindowsConfig, WindowStream, require_batch_sizes, valid_sets


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextDataConfig(WindowsConfig):
    """Text: where it lies and how it is cut. The files of validation come in the order of their hashes."""

    path: str = ""
    """Directory, file or glob (`**` allowed) of UTF-8 text; empty: the source of the standard library."""
    tokenizer_path: str = "bytes"
    """Tokenizer of the text: bytes, a tokenizer.json, or a directory that holds one."""
    valid_fraction: Annotated[float, Rule("must be in (0, 1)", 0, 1, excluded=(0, 1))] = 0.05
    """Share of the files, chosen by a hash of the name, kept for validation; of a single file, its end."""
    seed: Seed = 0
    """Seed of the split and of the training windows."""

    def build(self, *, batch_size: int, valid_batch_size: int) -> "TextData":
        """Reads the text."""
        return TextData(self, batch_size=batch_size, valid_batch_size=valid_batch_size)

    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the text."""
        return load_tokenizer(self.tokenizer_path)


class TextData:
    """A `Dataset` of text: the targets are the next tokens, at every position.

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
        require_batch_sizes("TextData", batch_size=batch_size, valid_batch_size=valid_batch_size)
        corpus = read_corpus(config.path, valid_fraction=config.valid_fraction, seed=config.seed)
        self.config = config
        self.tokenizer = config.tokenizer()
        self.vocab_size = self.tokenizer.vocab_size
        self.packed = config.packing == "segments"
        self.max_length = config.max_length
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
        """The files of the tokens, JSON-able: `{split: [[name, bytes, sha256 of the content], ...]}`."""
        return self._manifest

    def train(self, rows: Sequence[int] | None = None) -> WindowStream:
        """A new stream at batch 0, of these rows of it (None: all); a batch is `batch_size` windows at independent,
        uniform random offsets."""
        config = self.config
        source = _RandomWindows(
            self._train, length=config.length, batch_size=self._batch_size, seed=config.seed, rows=rows
        )
        return WindowStream(
            source, packing=config.packing, end_of_text=self.tokenizer.end_of_text, fingerprint=self.fingerprint
        )

    def valid(self) -> Sequence[ValidSet]:
        """`windows.valid_sets` of the beginning of the validation text; the remainder that fills no window (of every
        length) is left out."""
        return valid_sets(
            self.config,
            self._valid_tokens,
            self._valid_targets,
            batch_size=self._valid_batch_size,
            end_of_text=self.tokenizer.end_of_text,
        )

    def baselines(self) -> dict[str, Score]:
        """Unigram and bigram scores on the targets of `valid`."""
        return ngram_baselines(
            self._train,
            self._valid_tokens,
            self._valid_targets,
            vocab_size=self.vocab_size,
            n_bytes=self._valid_bytes,
        )

    def _flatten(self, split: str, documents: Sequence[Document]) -> UInt[np.ndarray, "t"]:
        """All documents, each followed by end-of-text; checked to hold one window (of every length) and its last
        target."""
        end = np.array([self.tokenizer.end_of_text], token_dtype(self.vocab_size))
        tokens = np.concatenate([part for d in documents for part in (self._encode(d), end)])
        self.config.require_window(
            len(tokens),
            valid=split == "valid",
            text=f"the {split} split of path={self.config.path!r}",
            remedy="take more text, a shorter length or another valid_fraction",
        )
        return tokens

    def _encode(self, document: Document) -> UInt[np.ndarray, "t"]:
        if isinstance(self.tokenizer, ByteTokenizer):
            return self.tokenizer.encode(document.data)
        return self.tokenizer.encode(document.data.decode("utf-8"))


class _RandomWindows:
    """A grain source: element number i is batch i, `length + 1` tokens a row, of which it gives `rows` (None: all)."""

    def __init__(
        self,
        tokens: UInt[np.ndarray, "t"],
        *,
        length: int,
        batch_size: int,
        seed: int,
        rows: Sequence[int] | None = None,
    ):
        self._tokens, self._length, self._batch_size, self._seed = tokens, length, batch_size, seed
        self._rows = slice(None) if rows is None else np.asarray(rows)

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, index: int) -> UInt[np.ndarray, "b t+1"]:
        rng = np.random.default_rng((self._seed, index))
        starts = rng.integers(0, len(self._tokens) - self._length, size=self._batch_size)[self._rows]
        return self._tokens[starts[:, None] + np.arange(self._length + 1)[None, :]]
