"""Classification of sequences by a pretrained language model: labelled sequences as training data.

A row is a sequence and an end-of-text token. Class c is predicted as token id c, so no parameters are added. The head
reads the features of the end-of-text, or (`pool="mean"`) the mean of the features of the sequence. Run directory,
checkpoints and `--resume` work as in any training.

Files have the layout of `jaxzoo/data/corpus/labelled.py`, or were made from it by `jaxzoo data-build --source
labelled`. Without a split `valid`, one sequence in ten of `train`, by the hash of its text, is for validation. Classes
are sorted by name, numbers by value. A sequence that is too long is cut equally at both ends.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxzoo.config.checked import PositiveInt, Seed
from jaxzoo.data.base import Batch, DataConfig
from jaxzoo.data.corpus.built import BuiltData
from jaxzoo.data.corpus.labelled import SPLITS, check_splits, read_benchmark
from jaxzoo.data.examples import ExampleData, is_held_out
from jaxzoo.data.tokenizer import ByteTokenizer, DNATokenizer, reverse_complement

TOKENIZERS: dict[str, type[DNATokenizer] | type[ByteTokenizer]] = {"dna": DNATokenizer, "bytes": ByteTokenizer}
VALID_SHARE = 10
"""One sequence in so many is for validation if there is no split `valid`."""


class Labelled(NamedTuple):
    """Sequence with its class."""

    text: str
    label: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelledSequencesConfig(DataConfig):
    """Location and reading of the sequences."""

    path: str
    """Directory with the splits."""
    length: PositiveInt = 512
    """Tokens of a row, including the end-of-text."""
    alphabet: Literal["dna", "bytes"] = "dna"
    """Tokens: bases, or bytes."""
    pool: Literal["last", "mean"] = "last"
    """Features that the head reads: of the end-of-text, or their mean over the sequence before it."""
    scored: Literal["valid", "test"] = "valid"
    """Split for validation."""
    reverse_complements: bool = False
    """DNA only: read half of the training rows from the other strand."""
    seed: Seed = 0
    """Seed of the order of the training sequences."""

    def __post_init__(self) -> None:
        self.require("length", self.length > 1, "must be at least 2", "a base and the end-of-text")
        is_dna = self.alphabet == "dna" or not self.reverse_complements
        self.require("reverse_complements", is_dna, f"must be False for {self.alphabet}", "it is for dna")

    def build(self, *, batch_size: int, valid_batch_size: int) -> "LabelledSequences":
        return LabelledSequences(self, batch_size=batch_size, valid_batch_size=valid_batch_size)


class LabelledSequences(ExampleData):
    """`Dataset` of sequences with a class each: `classes` by id, and the sequences of all `splits`. Raises `ValueError`
    for absent files, a class without sequences, classes that differ between splits, or more classes than ids."""

    classes: list[str]
    splits: dict[str, list[Labelled]]

    def __init__(self, config: LabelledSequencesConfig, *, batch_size: int, valid_batch_size: int):
        self.classes, self.splits = read_splits(Path(config.path).expanduser())
        sizes = {"batch_size": batch_size, "valid_batch_size": valid_batch_size}
        super().__init__(config, TOKENIZERS[config.alphabet](), [self.classes, self.splits], **sizes)
        if len(self.classes) > self.vocab_size:
            raise ValueError(f"{config.path}: {len(self.classes)} classes must be at most {self.vocab_size}, the ids")
        self._train, self._scored = (self._encode(self.splits[split]) for split in ("train", config.scored))
        if batch_size > len(self._train):
            raise ValueError(
                f"batch_size={batch_size} must be at most the {len(self._train)} sequences of {config.path}"
            )
        counts = ", ".join(f"{split} {len(found):,}" for split, found in self.splits.items())
        cut = sum(len(each.text.encode()) >= config.length for each in self.splits["train"])
        self.summary: str = f"classes {', '.join(self.classes)}; sequences: {counts}; {cut:,} of train are cut"

    def manifest(self) -> dict[str, Any]:
        sizes = {split: len(found) for split, found in self.splits.items()}
        return {"classes": self.classes, "sequences": sizes, "fingerprint": self.fingerprint}

    def training_examples(self, number: int, *stream: int) -> list["_Row"]:
        flips = np.random.default_rng((self.config.seed, 1, number)).random(self._batch_size) < 0.5
        flips &= self.config.reverse_complements
        rows = super().training_examples(number, 0)
        return [row.flipped() if flip else row for row, flip in zip(rows, flips, strict=True)]

    def batch(self, examples: Sequence["_Row"]) -> Batch:
        tokens = jnp.asarray(np.stack([row.tokens for row in examples]), jnp.int32)
        targets = jnp.asarray([[row.label] for row in examples], jnp.int32)
        lengths = jnp.asarray([row.length for row in examples], jnp.int32)
        if self.config.pool == "mean":
            return Batch(tokens=tokens, targets=targets, pooled=lengths)
        return Batch(tokens=tokens, targets=targets, positions=lengths[:, None])

    def _encode(self, found: Sequence[Labelled]) -> list["_Row"]:
        """Cuts long sequences equally at both ends, and pads with end-of-text."""
        length = self.config.length
        end = self._tokenizer.end_of_text
        rows = []
        for text, label in found:
            items: Any = text.encode() if self.config.alphabet == "bytes" else text  # one for each token
            start = max(len(items) - length + 1, 0) // 2
            ids = self._tokenizer.encode(items[start : start + length - 1])
            rows.append(_Row(np.append(ids, np.full(length - len(ids), end, ids.dtype)), len(ids), label))
        return rows


class _Row(NamedTuple):
    """Padded sequence, number of its tokens, and class."""

    tokens: np.ndarray
    length: int
    label: int

    def flipped(self) -> "_Row":
        tokens = np.concatenate([reverse_complement(self.tokens[: self.length]), self.tokens[self.length :]])
        return self._replace(tokens=tokens)


def read_splits(path: Path) -> tuple[list[str], dict[str, list[Labelled]]]:
    """Returns class names, and the sequences of train, valid and test; raises as `LabelledSequences`."""
    if any(any(path.glob(f"{above}dataset_info.json")) for above in ("", "*/", "*/*/")):
        data = BuiltData(path)
        found = {split: list(data.read(split, range(sum(lengths)))) for split, lengths in data.splits.items()}
        check_splits(path, found)
    else:
        found = read_benchmark(path)
    names = {row.subset for row in found["train"]}
    classes = sorted(names, key=lambda name: (int(name) if name.isdigit() else 0, name))
    ids = {name: i for i, name in enumerate(classes)}
    splits = {split: [Labelled(row.text, ids[row.subset]) for row in rows] for split, rows in found.items()}
    if "valid" not in splits:
        valid = [each for each in splits["train"] if is_held_out(each.text, VALID_SHARE)]
        splits["train"] = [each for each in splits["train"] if not is_held_out(each.text, VALID_SHARE)]
        splits["valid"] = valid
    if not (splits["train"] and splits["valid"]):
        raise ValueError(f"{path}: too few sequences to train and to validate; add some, or a split valid")
    return classes, {split: splits[split] for split in SPLITS}
