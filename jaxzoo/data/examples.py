"""Labelled examples in memory as training data: shuffled in each epoch, a part held out by hash."""

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxzoo.data.base import Batch, Score, ValidSet, make_valid_set, require_batch_sizes
from jaxzoo.data.tokenizer import Tokenizer
from jaxzoo.utils.checksums import text_sha256


class ExampleData(abc.ABC):
    """Base of a `Dataset` of examples.

    Args:
      config: has the `length` of a row and the `seed` of the order.
      tokenizer: of the text.
      content: the examples as text, for the fingerprint.
    """

    packed: bool = False
    bytes_per_token: float | None = None
    summary: str
    _train: Sequence[Any]
    _scored: Sequence[Any]

    def __init__(self, config: Any, tokenizer: Tokenizer, content: Any, *, batch_size: int, valid_batch_size: int):
        require_batch_sizes(config, batch_size=batch_size, valid_batch_size=valid_batch_size)
        self.config = config
        self._tokenizer = tokenizer
        self._batch_size = batch_size
        self._valid_batch_size = valid_batch_size
        self.vocab_size: int = tokenizer.vocab_size
        self.max_length: int = config.length
        digest = text_sha256(repr(content))[:12]
        self.fingerprint: str = f"{tokenizer.fingerprint}:{digest}"

    @abc.abstractmethod
    def batch(self, examples: Sequence[Any]) -> Batch:
        """Makes a batch of examples."""

    def train(self, rows: Sequence[int] | None = None) -> "ExampleStream":
        return ExampleStream(self, rows)

    def valid(self) -> Sequence[ValidSet]:
        rows = self._scored
        return [make_valid_set({}, len(rows), self._valid_batch_size, lambda ids: self.batch([rows[i] for i in ids]))]

    def baselines(self) -> dict[str, Score]:
        return {}

    def training_examples(self, number: int, *stream: int) -> list[Any]:
        """Returns the examples of batch `number`, each once per epoch except for a remainder, in an order that depends
        on (seed, stream, epoch)."""
        epoch, place = divmod(number, len(self._train) // self._batch_size)
        order = np.random.default_rng((self.config.seed, *stream, epoch)).permutation(len(self._train))
        return [self._train[i] for i in order[place * self._batch_size : (place + 1) * self._batch_size]]


class ExampleStream:
    """Endless iterator of training batches; the cursor is the number of the next batch."""

    def __init__(self, data: ExampleData, rows: Sequence[int] | None):
        self._data = data
        self._rows = rows
        self._next = 0

    def __next__(self) -> Batch:
        examples = self._data.training_examples(self._next)
        self._next += 1
        return self._data.batch(examples if self._rows is None else [examples[row] for row in self._rows])

    def get_state(self) -> dict[str, Any]:
        return {"fingerprint": self._data.fingerprint, "next": self._next}

    def set_state(self, state: dict[str, Any]) -> None:
        """Moves to a saved cursor. Raises `ValueError` if it belongs to other examples."""
        if state.get("fingerprint") != self._data.fingerprint:
            raise ValueError(
                f"the cursor belongs to the sequences {state.get('fingerprint')!r}, but these are "
                f"{self._data.fingerprint!r}; restore the files, or start again"
            )
        self._next = int(state["next"])


def is_held_out(text: str, one_in: int) -> bool:
    """Returns whether an example is for validation: one in `one_in`, by the hash of its text."""
    return int(text_sha256(text)[:8], 16) % one_in == 0
