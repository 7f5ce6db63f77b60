"""Interface of data for the trainer: a stream of batches with a cursor for checkpoints, and validation sets.

To train on your own data, write a `DataConfig` whose `build` returns a `Dataset`, and use it in a config file.
"""

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from jaxzoo.config.checked import Checked
from jaxzoo.data.tokenizer import Tokenizer
from jaxzoo.utils.array_typing import Array, Int

UNLABELLED = -100
"""Target of a position that is neither learned nor scored."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """Rows of tokens and their targets, all int32; a pytree."""

    tokens: Int[Array, "b t"]
    targets: Int[Array, "b m"]
    """Targets, or `UNLABELLED`: one at every position (m = t), or at each of `positions`."""
    positions: Int[Array, "b m"] | None = None
    """Positions of the targets, in any order; the head runs only there. None: every position."""
    pooled: Int[Array, "b"] | None = None
    """The target (m = 1) is predicted from the mean of the features of this many first tokens. None: no pooling."""
    segment_ids: Int[Array, "b t"] | None = None
    """Document id of each token: one contiguous run of equal ids per document. Tokens attend only to their own
    document. None: each row is one document."""


class Stream(Protocol):
    """An endless iterator of training batches; its state is the data cursor of a checkpoint."""

    def __next__(self) -> Batch: ...

    def get_state(self) -> dict[str, Any]:
        """Returns the cursor, JSON-able; after `set_state(cursor)`, `next` returns the same batch as now."""
        ...

    def set_state(self, state: dict[str, Any]) -> None:
        """Moves the stream to a saved cursor. Raises `ValueError` if it belongs to other data."""
        ...


class ValidSet(NamedTuple):
    """One homogeneous validation set."""

    slices: Mapping[str, int]
    """Slice names and values, as reported: `{"length": 64, "pairs": 8}`; empty for a single set."""
    n_batches: int
    """Number of batches; the last may be smaller."""
    batch: Callable[[int], Batch]
    """Batch number i, a pure function of i."""


def make_valid_set(
    slices: Mapping[str, int], n_rows: int, batch_size: int, batch: Callable[[Int[np.ndarray, "b"]], Batch]
) -> ValidSet:
    """Returns a set of rows 0 .. n_rows - 1; `batch` makes the batch of the given row numbers."""
    n_batches = -(-n_rows // batch_size)

    def numbered(i: int) -> Batch:
        if not 0 <= i < n_batches:
            raise IndexError(f"validation batch {i} must be in [0, {n_batches})")
        return batch(np.arange(i * batch_size, min((i + 1) * batch_size, n_rows)))

    return ValidSet(slices, n_batches, numbered)


class Score(NamedTuple):
    """Score of predictions of the validation targets; lower is better."""

    nats_per_token: float
    """Mean of `-log p(target)`."""
    bits_per_byte: float
    """Bits per byte of text that the targets stand for; `ngram.bits_per_byte`."""
    perplexity: float
    """`exp(nats_per_token)`."""


class Dataset(Protocol):
    """Training stream and validation sets of one experiment."""

    vocab_size: int
    """Ids are in `[0, vocab_size)`."""
    max_length: int
    """The longest sequence of any split, in tokens."""
    bytes_per_token: float | None
    """Validation bytes per target token, to report bits per byte; None for data without text."""
    packed: bool
    """Whether rows hold several documents, told apart by `segment_ids`."""
    summary: str
    """Description of the data for the user, in one line; may be empty."""

    def train(self, rows: Sequence[int] | None = None) -> Stream:
        """Returns a new training stream at its beginning, of the given rows of every batch, in this order; None: all.
        Each of several processes passes its own rows; the cursor does not depend on them."""
        ...

    def valid(self) -> Sequence[ValidSet]: ...

    def manifest(self) -> dict[str, Any] | None:
        """Description of the data, JSON-able, for the run directory; None if the config is enough."""
        ...

    def baselines(self) -> Mapping[str, Score]:
        """Scores on the validation targets that a model must exceed, by name; may be empty."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig(Checked, abc.ABC):
    """Base of every data config."""

    @abc.abstractmethod
    def build(self, *, batch_size: int, valid_batch_size: int) -> Dataset:
        """Makes the data with the given batch sizes; the last batch of a validation set may be smaller. Raises
        `ValueError` if the data are absent, or too few for one batch."""

    def abstract_batch(self, batch_size: int) -> Batch:
        """Shapes of a training batch, the largest if they differ; raises as `build`."""
        batch = next(self.build(batch_size=batch_size, valid_batch_size=1).train())
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), batch)

    @property
    def model_fields(self) -> Mapping[str, Any]:
        """Fields of `LanguageModelConfig` that the data determine besides their sizes; default: next-token
        prediction."""
        return {}

    @property
    def first_target(self) -> int:
        """Number of first tokens of a row that are never targets; 0 if not known."""
        return 0

    def guessing_lines(self) -> Mapping[str, float]:
        """Accuracies of guessing by name of the metric; empty if none are known."""
        return {}

    def tokenizer(self) -> Tokenizer | None:
        """Tokenizer of these data; None if they are no text. The cursor of a stream with a tokenizer holds a
        `fingerprint` that begins with the tokenizer's own and a colon."""
        return None


def require_batch_sizes(config: DataConfig, **sizes: int) -> None:
    """Raises `ValueError` unless all sizes, by name, are positive."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{type(config).__name__}.build: {name}={size!r} must be positive")
