"""Text files as training batches and validation windows.

The tokens of a split, every document followed by end-of-text, are one array in memory: 2 bytes per token, 4 for
tokenizers of more than 65,536 ids, for corpora up to some GB. Training batch i is a pure function of (corpus, config,
batch size, i): windows at independent, uniform random offsets.
"""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from jaxtyping import UInt

from jaxzoo.config.checked import Rule, Seed
from jaxzoo.data.corpus.files import Corpus, Document, read_corpus
from jaxzoo.data.tokenizer import ByteTokenizer, Tokenizer
from jaxzoo.data.tokens.token_shards import token_dtype
from jaxzoo.data.tokens.tokenizer_files import load_tokenizer
from jaxzoo.data.windows import WindowedText, WindowsConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextDataConfig(WindowsConfig):
    """Location of text, and its windows. Validation files are sorted by their hashes."""

    path: str = ""
    """Directory, file or glob (`**` allowed) of UTF-8 text; empty: the source of the standard library."""
    tokenizer_path: str = "bytes"
    """Tokenizer of the text: bytes, a tokenizer.json, or a directory that holds one."""
    valid_fraction: Annotated[float, Rule("must be in (0, 1)", 0, 1, excluded=(0, 1))] = 0.05
    """Share of the files, chosen by a hash of the name, for validation; of a single file, its end."""
    seed: Seed = 0
    """Seed of the split and of the training windows."""

    def build(self, *, batch_size: int, valid_batch_size: int) -> "TextData":
        return TextData(self, batch_size=batch_size, valid_batch_size=valid_batch_size)

    def tokenizer(self) -> Tokenizer:
        return load_tokenizer(self.tokenizer_path)

    def corpus(self) -> Corpus:
        """Documents of both splits; subclasses may make them in another way."""
        return read_corpus(self.path, valid_fraction=self.valid_fraction, seed=self.seed)


class TextData(WindowedText):
    """`Dataset` of text files; validation is the beginning of the validation text, in whole windows of every length.
    Raises `ValueError` if the path holds no readable text, or a split is too short for one window."""

    def __init__(self, config: TextDataConfig, *, batch_size: int, valid_batch_size: int):
        corpus = config.corpus()
        self.summary: str = f"text: {corpus.summary()}"
        self._manifest = corpus.manifest()
        self._seed = config.seed
        tokenizer = config.tokenizer()
        self._tokens = _flatten(config, tokenizer, "train", corpus.train)
        valid = _flatten(config, tokenizer, "valid", corpus.valid)
        used = min(config.valid_tokens, len(valid) - 1) // config.valid_unit * config.valid_unit
        super().__init__(
            config,
            tokenizer,
            f"{tokenizer.fingerprint}:{corpus.fingerprint()}",
            train=self._tokens,
            valid=(valid[:used], valid[1 : used + 1]),
            batch_size=batch_size,
            valid_batch_size=valid_batch_size,
        )

    def manifest(self) -> dict[str, list[list[Any]]]:
        """The files of the tokens, JSON-able: `{split: [[name, bytes, sha256 of the content], ...]}`."""
        return self._manifest

    def windows(self, index: int, rows: Sequence[int]) -> UInt[np.ndarray, "b length+1"]:
        length = self.config.length
        rng = np.random.default_rng((self._seed, index))
        starts = rng.integers(0, len(self._tokens) - length, size=self._batch_size)[np.asarray(rows)]
        return self._tokens[starts[:, None] + np.arange(length + 1)]


def _flatten(
    config: TextDataConfig, tokenizer: Tokenizer, split: str, documents: Sequence[Document]
) -> UInt[np.ndarray, "t"]:
    """Joins all documents, each followed by end-of-text; they must hold a window and its last target."""
    end = np.array([tokenizer.end_of_text], token_dtype(tokenizer.vocab_size))
    parts = []
    for document in documents:
        is_bytes = isinstance(tokenizer, ByteTokenizer)
        parts += [tokenizer.encode(document.data) if is_bytes else tokenizer.encode(document.data.decode()), end]
    tokens = np.concatenate(parts)
    config.require_window(
        len(tokens),
        valid=split == "valid",
        text=f"the {split} split of path={config.path!r}",
        remedy="take more text, a shorter length or another valid_fraction",
    )
    return tokens
