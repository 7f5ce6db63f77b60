"""What the trainer asks of data: batches by number, a cursor that can be saved, and validation sets with names."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from jaxzoo.array_typing import Array

Batch = Mapping[str, Array]
"""`tokens (b, t)` and `targets`, both int32. For text, `targets (b, t)` holds the next tokens. For recall tasks,
`positions (b, m)` names the labelled positions and `targets (b, m)` their answers: the head runs on those alone."""


class Stream(Protocol):
    """An endless iterator of training batches; its state is the data cursor of a checkpoint."""

    def __next__(self) -> Batch:
        """The next training batch."""
        ...

    def get_state(self) -> dict:
        """The cursor, JSON-able: after `set_state` of it, `next` gives the batch that it would give now."""
        ...

    def set_state(self, state: dict) -> None:
        """Moves the stream to a saved cursor."""
        ...


class ValidSet(NamedTuple):
    """One homogeneous validation set."""

    slices: Mapping[str, int]
    """What sets it apart, as reported: `{"length": 64, "pairs": 8}`; empty where there is one set only."""
    n_batches: int
    """How many batches it has; the last may be smaller."""
    batch: Callable[[int], Batch]
    """Batch number i, a pure function of i."""


class Dataset(Protocol):
    """Training stream and validation sets of one experiment."""

    vocab_size: int
    """Ids are in `[0, vocab_size)`."""
    max_length: int
    """The longest sequence of any split, in tokens."""
    bytes_per_token: float | None
    """Validation bytes a target token, to report bits per byte; None where there is no text."""

    def train(self) -> Stream:
        """A new training stream at its beginning."""
        ...

    def valid(self) -> Sequence[ValidSet]:
        """The validation sets."""
        ...
