"""Token shards, or a mixture of several corpora of them, as training batches and validation windows.

Corpora may be of any size: training text is memory-mapped. `token_windows.py` defines the order of the windows,
`windows.py` the context of a token in its window.
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt

from jaxzoo.config.checked import Checked, PositiveFloat, Seed
from jaxzoo.data.base import Score
from jaxzoo.data.statistics.ngram import markov_baselines
from jaxzoo.data.tokenizer import DNATokenizer, Tokenizer
from jaxzoo.data.tokens.token_shards import Split, TokenDirectory, allow_open_shards
from jaxzoo.data.tokens.token_windows import Concatenation, ShuffledText, as_integers, source_of
from jaxzoo.data.tokens.tokenizer_files import load_tokenizer
from jaxzoo.data.windows import WindowedText, WindowsConfig
from jaxzoo.utils.checksums import text_sha256

MOST_COUNTED = 2**28
"""Most training tokens for which baselines are counted: a second or two per 100 million."""
SHOWN_SUBSETS = 4
"""Number of subsets in the summary, largest first."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenSourceConfig(Checked):
    """One token directory of a mixture."""

    path: str
    """Output directory of `jaxzoo data-tokenize`."""
    weight: PositiveFloat = 1.0
    """Share of the training rows and of the validation tokens, relative to the sum of all weights."""

    def __post_init__(self) -> None:
        self.require("path", bool(self.path), "must name a token directory")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenDataConfig(WindowsConfig):
    """Location of token shards, and their windows."""

    path: str = ""
    """Directory made by `jaxzoo data-tokenize`; empty if `sources` names several."""
    sources: tuple[TokenSourceConfig, ...] = ()
    """A mixture of token directories, all of one tokenizer; empty: `path` alone."""
    expected_tokenizer: str = ""
    """Required tokenizer of the shards: bytes, its file or its directory; empty: any."""
    valid_split: str = "valid"
    """Split for validation."""
    seed: Seed = 0
    """Seed of the order of the training windows."""
    reverse_complements: bool = False
    """DNA only: read half of the training windows from the other strand."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = "must name a token directory, or sources name several"
        self.require("path", bool(self.path) != bool(self.sources), rule, "give one of the two")
        is_one = not (self.valid_positions and self.sources)
        self.require("valid_positions", is_one, "must be empty for a mixture of sources", "score one of them by path")

    @property
    def mixture(self) -> tuple[TokenSourceConfig, ...]:
        return self.sources or (TokenSourceConfig(path=self.path),)

    def build(self, *, batch_size: int, valid_batch_size: int) -> "TokenData":
        return TokenData(self, batch_size=batch_size, valid_batch_size=valid_batch_size)

    def tokenizer(self) -> Tokenizer:
        return load_tokenizer(self.mixture[0].path)


class TokenData(WindowedText):
    """`Dataset` of token shards. In a mixture, each source contributes its share of `valid_tokens`, from its own
    beginning, in whole windows of every length, at least one; no window mixes sources. Baselines count every training
    token once, independent of the weights. Raises `ValueError` for a directory without token shards, without a split,
    with too little text for one window, or with tokens of another tokenizer."""

    def __init__(self, config: TokenDataConfig, *, batch_size: int, valid_batch_size: int):
        self._directories = [TokenDirectory(Path(source.path).expanduser()) for source in config.mixture]
        splits = ("train", config.valid_split)
        found = [d.splits[split] for d in self._directories for split in splits if split in d.splits]
        allow_open_shards(sum(len(split.shards) for split in found))
        tokenizer = _tokenizer_of(self._directories, expected=config.expected_tokenizer)
        config.require(
            "reverse_complements",
            not config.reverse_complements or isinstance(tokenizer, DNATokenizer),
            f"must be False for tokens of {tokenizer.name}",
            "it is for the tokenizer dna",
        )
        texts = [_read(config, d, "train", valid=False) for d in self._directories]
        reverses = config.reverse_complements
        self._texts = [
            ShuffledText(text, length=config.length, seed=(config.seed, i), reverse_complements=reverses)
            for i, text in enumerate(texts)
        ]
        self._shares = as_integers([source.weight for source in config.mixture])
        train = Concatenation(texts)
        fingerprint = self._directories[0].fingerprint
        if len(self._directories) > 1:
            content = json.dumps([directory.fingerprint for directory in self._directories])
            fingerprint = f"{tokenizer.fingerprint}:{text_sha256(content)[:12]}"
        super().__init__(
            config,
            tokenizer,
            fingerprint,
            train=train,
            valid=_valid_text(config, self._directories, self._shares),
            batch_size=batch_size,
            valid_batch_size=valid_batch_size,
        )
        total = sum(source.weight for source in config.mixture)
        parts = []
        for source, directory, text in zip(config.mixture, self._directories, self._texts, strict=True):
            steps = text.n_windows / batch_size / (source.weight / total)
            mixed = f", {100 * source.weight / total:.3g} % of the rows" if config.sources else ""
            valid = directory.split(config.valid_split).total.tokens
            parts.append(
                f"{source.path}{mixed}: {_describe(directory.split('train'))}, an epoch of {steps:,.1f} steps; "
                f"{config.valid_split} {valid:,} tokens"
            )
        if len(train) > MOST_COUNTED:
            parts.append(f"no baselines for more than {MOST_COUNTED:,} tokens")
        self.summary: str = f"tokens of {tokenizer.name}: {'; '.join(parts)}"

    def manifest(self) -> dict[str, Any]:
        """The manifests of the token directories, JSON-able: `{"sources": [manifest, ...]}`."""
        return {"sources": [directory.json for directory in self._directories]}

    def baselines(self) -> dict[str, Score]:
        """N-gram scores, or Markov scores of DNA; none for more than `MOST_COUNTED` training tokens (minutes)."""
        if len(self._train) > MOST_COUNTED:
            return {}
        if isinstance(self.tokenizer, DNATokenizer):
            return markov_baselines(self._train, *self._scored)
        return super().baselines()

    def windows(self, index: int, rows: Sequence[int]) -> UInt[np.ndarray, "b length+1"]:
        """Returns windows of the mixture; a source's share of the rows is its weight over the sum of all."""
        chosen = (source_of(index * self._batch_size + row, self._shares) for row in rows)
        return np.stack([self._texts[source].window(number) for source, number in chosen])


def _read(config: TokenDataConfig, directory: TokenDirectory, split: str, *, valid: bool) -> Concatenation:
    """Opens the text of a split, which must hold a window."""
    tokens = Concatenation(directory.shards(split))
    config.require_window(
        len(tokens),
        valid=valid,
        text=f"the {split} split of {directory.path}",
        remedy="take more text or a shorter length",
    )
    return tokens


def _valid_text(
    config: TokenDataConfig, directories: Sequence[TokenDirectory], shares: Sequence[int]
) -> tuple[UInt[np.ndarray, "t"], UInt[np.ndarray, "t"]]:
    """Returns tokens and targets of all sources' shares, in sequence."""
    unit = config.valid_unit
    parts = []
    chosen = [source_of(i, shares)[0] for i in range(config.valid_tokens // unit)]
    for i, directory in enumerate(directories):
        text = _read(config, directory, config.valid_split, valid=True)
        n = min(max(chosen.count(i), 1), (len(text) - 1) // unit) * unit
        parts.append((text[:n], text[1 : n + 1]))
    tokens, targets = (np.concatenate(each) for each in zip(*parts, strict=True))
    return tokens, targets


def _tokenizer_of(directories: Sequence[TokenDirectory], *, expected: str) -> Tokenizer:
    """Loads the tokenizer of all directories. Raises `ValueError` if there are several, or not the expected one."""
    first = directories[0]
    made_by = first.tokenizer.fingerprint
    for directory in directories:
        if (other := directory.tokenizer.fingerprint) != made_by:
            raise ValueError(
                f"TokenDataConfig.sources must be of one tokenizer, but {directory.path} was made by {other!r} and "
                f"{first.path} by {made_by!r}; tokenize one of them again"
            )
    if expected and (found := load_tokenizer(expected).fingerprint) != made_by:
        raise ValueError(
            f"TokenDataConfig.expected_tokenizer={expected!r} is {found!r}, but {first.path} was made by {made_by!r}; "
            "name that one, or tokenize again"
        )
    return load_tokenizer(first.path)


def _describe(split: Split) -> str:
    """Returns tokens and documents, and the largest subsets with their shares of the tokens."""
    subsets = split.subsets
    total = split.total
    ranked = sorted(subsets, key=lambda name: -subsets[name].tokens)
    shown = [f"{name} {100 * subsets[name].tokens / total.tokens:.0f} %" for name in ranked[:SHOWN_SUBSETS]]
    more = [f"{len(ranked) - SHOWN_SUBSETS} more"] if len(ranked) > SHOWN_SUBSETS else []
    names = f" ({', '.join([*shown, *more])})" if len(ranked) > 1 else ""
    return f"{total.tokens:,} tokens in {total.documents:,} documents{names}"
