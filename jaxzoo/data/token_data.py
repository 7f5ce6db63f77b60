"""Token shards, or a mixture of several corpora of them, as training batches and validation windows.

Corpora may be of any size: nothing of the training text is held in memory but the pages that the operating system keeps
of files. `token_windows.py` says in which order its windows come, `windows.py` what a token may see of its window.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt

from jaxzoo.checked import Checked, PositiveFloat, Seed
from jaxzoo.data.base import Score, ValidSet
from jaxzoo.data.statistics.markov import markov_baselines
from jaxzoo.data.statistics.ngram import ngram_baselines
from jaxzoo.data.tokenizer import DNATokenizer, Tokenizer
from jaxzoo.data.tokens.token_shards import TokenDirectory
from jaxzoo.data.tokens.token_sources import describe, fingerprint_of, open_directories, tokenizer_of
from jaxzoo.data.tokens.token_windows import Concatenation, Share, ShuffledText, ShuffledWindows, as_integers, source_of
from jaxzoo.data.tokens.tokenizer_files import load_tokenizer
from jaxzoo.data.windows import WindowsConfig, WindowStream, require_batch_sizes, valid_sets

TRAIN = "train"
"""The split that is learnt from."""

MOST_COUNTED = 2**28
"""Training tokens, in all, up to which the baselines are counted: a second or two for each 100 million."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenSourceConfig(Checked):
    """One token directory of a mixture."""

    path: str
    """Directory that `python -m jaxzoo.data.tokenize` made."""
    weight: PositiveFloat = 1.0
    """Its share of the training rows, and of the validation tokens, is this over the sum of all weights."""

    def __post_init__(self) -> None:
        self.require("path", bool(self.path), "must name a token directory")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenDataConfig(WindowsConfig):
    """Token shards: where they lie and how they are cut."""

    path: str = ""
    """Directory that `python -m jaxzoo.data.tokenize` made; empty where `sources` name several."""
    sources: tuple[TokenSourceConfig, ...] = ()
    """A mixture of token directories, all of one tokenizer; empty: `path` alone."""
    expected_tokenizer: str = ""
    """The tokenizer that must have made the shards: bytes, its file or its directory; empty: whichever did."""
    valid_split: str = "valid"
    """The split that is scored."""
    seed: Seed = 0
    """Seed of the order of the training windows."""
    reverse_complements: bool = False
    """Of DNA: half of the training windows are read from the other strand."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = "must name a token directory, or sources name several"
        self.require("path", bool(self.path) != bool(self.sources), rule, "give one of the two")

    @property
    def mixture(self) -> tuple[TokenSourceConfig, ...]:
        """The sources, also where there is one alone."""
        return self.sources or (TokenSourceConfig(path=self.path),)

    def build(self, *, batch_size: int, valid_batch_size: int) -> "TokenData":
        """Opens the shards."""
        return TokenData(self, batch_size=batch_size, valid_batch_size=valid_batch_size)

    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the shards."""
        return load_tokenizer(self.mixture[0].path)


class TokenData:
    """A `Dataset` of token shards: the targets are the next tokens, at every position.

    Attributes:
      summary: tokens, documents and subsets of each source, and the steps of its epoch, in one line.
      fingerprint: changes with the tokenizer or a token of any source; what the config says beyond these (weights,
        lengths, packing) a resumed run compares with its own config.
      bytes_per_token: bytes of text over tokens of the validation targets; see `ngram.bits_per_byte`.

    Args:
      config: what to read and how to cut it.
      batch_size: windows of a training batch, positive.
      valid_batch_size: windows of a validation batch, positive; the last one may have fewer.

    Raises:
      ValueError: a directory holds no token shards, lacks a split, holds too little text for one window, or tokens of
        another tokenizer.
    """

    def __init__(self, config: TokenDataConfig, *, batch_size: int, valid_batch_size: int):
        require_batch_sizes("TokenData", batch_size=batch_size, valid_batch_size=valid_batch_size)
        self.config = config
        self._batch_size, self._valid_batch_size = batch_size, valid_batch_size
        paths = [source.path for source in config.mixture]
        self._directories = open_directories(paths, (TRAIN, config.valid_split))
        self.tokenizer = tokenizer_of(self._directories, expected=config.expected_tokenizer)
        config.require(
            "reverse_complements",
            not config.reverse_complements or isinstance(self.tokenizer, DNATokenizer),
            f"must be False for tokens of {self.tokenizer.name}",
            "it is for the tokenizer dna",
        )
        made_by = self._directories[0].tokenizer
        self.vocab_size, self._end_of_text = made_by.vocab_size, made_by.end_of_text
        self.packed = config.packing == "segments"
        self.max_length = config.max_length
        self.fingerprint = fingerprint_of(self._directories)
        self._train = [self._read(d, TRAIN, valid=False) for d in self._directories]
        self._shares = [
            Share(
                ShuffledText(
                    tokens,
                    length=config.length,
                    seed=(config.seed, i),
                    reverse_complements=config.reverse_complements,
                ),
                source.weight,
            )
            for i, (tokens, source) in enumerate(zip(self._train, config.mixture, strict=True))
        ]
        self._valid_tokens, self._valid_targets = self._valid_text()
        self._valid_bytes = self.tokenizer.count_bytes(self._valid_targets)
        if not self._valid_bytes:
            what = f"the first {self._valid_targets.size} tokens of split {config.valid_split!r}"
            raise ValueError(f"TokenDataConfig: {what} stand for no byte of text; take more valid_tokens")
        self.bytes_per_token: float | None = self._valid_bytes / self._valid_targets.size
        sources = [self._source_summary(i) for i in range(len(self._directories))]
        uncounted = [] if self._is_counted else [f"no baselines for more than {MOST_COUNTED:,} tokens"]
        self.summary = f"tokens of {self.tokenizer.name}: {'; '.join([*sources, *uncounted])}"

    def manifest(self) -> dict[str, Any]:
        """The manifests of the token directories, JSON-able: `{"sources": [manifest, ...]}`."""
        return {"sources": [directory.json for directory in self._directories]}

    def train(self, rows: Sequence[int] | None = None) -> WindowStream:
        """A new stream at batch 0.

        Args:
          rows: which rows of every batch it gives, in this order; the others are not read. None: all.
        """
        windows = ShuffledWindows(self._shares, batch_size=self._batch_size, rows=rows)
        return WindowStream(
            windows,
            packing=self.config.packing,
            end_of_text=self._end_of_text,
            fingerprint=self.fingerprint,
        )

    def valid(self) -> Sequence[ValidSet]:
        """`windows.valid_sets` of the beginning of the validation text, the same in every process.

        Of a mixture, each source gives its share by weight of `valid_tokens`, in whole windows of every length and at
        least one, from its own beginning; no window holds tokens of two sources.
        """
        return valid_sets(
            self.config,
            self._valid_tokens,
            self._valid_targets,
            batch_size=self._valid_batch_size,
            end_of_text=self._end_of_text,
        )

    def baselines(self) -> dict[str, Score]:
        """`ngram_baselines`, or `markov_baselines` of DNA, on the targets of `valid`.

        They are counted on every training token once, whatever the weight of its source. There are none for more than
        `MOST_COUNTED` training tokens, which would take minutes to read.
        """
        if not self._is_counted:
            return {}
        if isinstance(self.tokenizer, DNATokenizer):
            return markov_baselines(Concatenation(self._train), self._valid_tokens, self._valid_targets)
        return ngram_baselines(
            Concatenation(self._train),
            self._valid_tokens,
            self._valid_targets,
            vocab_size=self.vocab_size,
            n_bytes=self._valid_bytes,
        )

    @property
    def _is_counted(self) -> bool:
        return sum(map(len, self._train)) <= MOST_COUNTED

    def _read(self, directory: TokenDirectory, split: str, *, valid: bool) -> Concatenation:
        """The text of a split, which holds a window."""
        tokens = Concatenation(directory.shards(split))
        self.config.require_window(
            len(tokens),
            valid=valid,
            text=f"the {split} split of {directory.path}",
            remedy="take more text or a shorter length",
        )
        return tokens

    def _valid_text(self) -> tuple[UInt[np.ndarray, "t"], UInt[np.ndarray, "t"]]:
        """Tokens and targets of all sources' shares, one after the other."""
        unit, parts = self.config.valid_unit, []
        weights = as_integers([source.weight for source in self.config.mixture])
        chosen = [source_of(i, weights)[0] for i in range(self.config.valid_tokens // unit)]
        for i, directory in enumerate(self._directories):
            text = self._read(directory, self.config.valid_split, valid=True)
            n = min(max(chosen.count(i), 1), (len(text) - 1) // unit) * unit
            parts.append((text[:n], text[1 : n + 1]))
        tokens, targets = (np.concatenate(each) for each in zip(*parts, strict=True))
        return tokens, targets

    def _source_summary(self, index: int) -> str:
        source, directory, share = self.config.mixture[index], self._directories[index], self._shares[index]
        weight = source.weight / sum(each.weight for each in self.config.mixture)
        steps = share.text.n_windows / self._batch_size / weight
        mixed = f", {100 * weight:.3g} % of the rows" if self.config.sources else ""
        valid = sum(counts.tokens for counts in directory.split(self.config.valid_split).subsets.values())
        return (
            f"{source.path}{mixed}: {describe(directory.split(TRAIN).subsets)}, an epoch of {steps:,.1f} steps; "
            f"{self.config.valid_split} {valid:,} tokens"
        )
