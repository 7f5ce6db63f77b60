"""Windows of text as training data: base of all text data.

A window may hold parts of several documents, each of which ends with an end-of-text token. Packing defines the context
of a token:

- "concatenate", as in the papers: everything before it in its window;
- "segments": only its own document. End-of-text belongs to the segment of the next document and serves as its
  begin token. No label is lost: the target at the last token of a document is end-of-text, and the target at
  end-of-text is the first token of the next document. Tokens and targets are as in "concatenate".
"""

import abc
import dataclasses
import math
import sys
from collections.abc import Sequence
from typing import Any, Literal

import grain
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Integer, UInt

from jaxzoo.config.checked import NonNegativeInt, PositiveInt
from jaxzoo.data.base import UNLABELLED, Batch, DataConfig, Score, ValidSet, make_valid_set, require_batch_sizes
from jaxzoo.data.statistics.ngram import Tokens, ngram_baselines
from jaxzoo.data.tokenizer import Tokenizer

Packing = Literal["concatenate", "segments"]
_VALID = ("valid_lengths", "valid_positions")


@dataclasses.dataclass(frozen=True, kw_only=True)
class WindowsConfig(DataConfig):
    """Windows of text: base of the configs of text."""

    length: PositiveInt = 256
    """Tokens of a window."""
    valid_lengths: tuple[PositiveInt, ...] = ()
    """Lengths of validation windows, each scored on the same targets; empty: `length` only."""
    valid_positions: tuple[PositiveInt, ...] = ()
    """Positions for validation: for each P the positions P to 2P - 1 of overlapping windows of 2P tokens are scored, on
    the same targets for every P. Empty: all positions of the validation windows."""
    packing: Packing = "concatenate"
    """Context of a token in its window: all earlier tokens, or (segments) only its own document."""
    begin: NonNegativeInt | None = None
    """Token that replaces the first one of every window, such as a model's begin of text; None: none."""
    valid_tokens: PositiveInt = 100_000
    """Maximal number of validation tokens, from the beginning of the validation text."""

    def __post_init__(self) -> None:
        unit = self.valid_unit
        what = next((f"{name}={given}" for name in _VALID if (given := getattr(self, name))), f"length={self.length}")
        self.require(
            "valid_positions",
            not (self.valid_positions and self.valid_lengths),
            "must be empty with valid_lengths",
            "give one of the two",
        )
        self.require("valid_tokens", self.valid_tokens >= unit, f"must be at least one window, {what}", f"take {unit}")

    @property
    def valid_unit(self) -> int:
        """Smallest number of tokens that is a multiple of all validation windows. For `valid_positions` the first half
        of them is context only."""
        if self.valid_positions:
            return 2 * math.lcm(*self.valid_positions)
        return math.lcm(*self.valid_lengths) if self.valid_lengths else self.length

    def abstract_batch(self, batch_size: int) -> Batch:
        array: Any = jax.ShapeDtypeStruct((batch_size, self.length), jnp.int32)
        return Batch(tokens=array, targets=array, segment_ids=array if self.packing == "segments" else None)

    def require_window(self, n_tokens: int, *, valid: bool, text: str, remedy: str) -> None:
        """Raises `ValueError` unless a text holds a window (for validation of every length) and its last target."""
        name = "length"
        needed = self.length
        if valid:
            name = next((each for each in _VALID if getattr(self, each)), name)
            needed = self.valid_unit
        if n_tokens < needed + 1:
            rule = f"must be below the {n_tokens} tokens of {text}"
            raise ValueError(f"{type(self).__name__}.{name}={needed} {rule}; {remedy}")


class WindowedText(abc.ABC):
    """Base of a `Dataset` of text: the targets are the next tokens, at every position. `valid` holds the validation
    text in whole windows of every length, and the token after each of its tokens. `fingerprint` changes with the
    tokenizer, the text or its split; a resumed run compares all other fields with its config. `bytes_per_token` is
    bytes of text over tokens of the validation targets; see `ngram.bits_per_byte`."""

    summary = ""

    def __init__(
        self,
        config: WindowsConfig,
        tokenizer: Tokenizer,
        fingerprint: str,
        *,
        train: Tokens,
        valid: tuple[UInt[np.ndarray, "t"], UInt[np.ndarray, "t"]],
        batch_size: int,
        valid_batch_size: int,
    ):
        require_batch_sizes(config, batch_size=batch_size, valid_batch_size=valid_batch_size)
        self.config: WindowsConfig = config
        self.tokenizer: Tokenizer = tokenizer
        self.fingerprint: str = fingerprint
        self.vocab_size: int = tokenizer.vocab_size
        self.packed: bool = config.packing == "segments"
        self.max_length: int = max(config.length, *config.valid_lengths, *(2 * p for p in config.valid_positions), 0)
        self._train = train
        (self._valid_tokens, self._valid_targets) = valid
        self._batch_size = batch_size
        self._valid_batch_size = valid_batch_size
        first = config.valid_unit // 2 if config.valid_positions else 0
        self._scored: tuple[Any, Any] = self._valid_tokens[first:], self._valid_targets[first:]
        self._valid_bytes = tokenizer.count_bytes(self._scored[1])
        if not self._valid_bytes:
            what = f"the first {self._valid_targets.size} tokens of the validation text"
            raise ValueError(f"{type(config).__name__}: {what} stand for no byte of text; take more valid_tokens")
        self.bytes_per_token: float | None = self._valid_bytes / self._scored[1].size

    @abc.abstractmethod
    def windows(self, index: int, rows: Sequence[int]) -> UInt[np.ndarray, "b length+1"]:
        """Returns the given rows of training batch `index`, with the target of each row's last token."""

    def train(self, rows: Sequence[int] | None = None) -> "WindowStream":
        return WindowStream(self, range(self._batch_size) if rows is None else rows)

    def valid(self) -> Sequence[ValidSet]:
        """Consecutive windows, every target scored once: one set, or one for each of `valid_lengths`. Each window
        starts without context, so that its first targets are harder than in a running text. With `valid_positions`, one
        set for each: windows overlap by half and are scored in their second half."""
        config = self.config
        size = self._valid_batch_size
        if positions := config.valid_positions:
            return [self._valid_set(2 * p, p, {"position": p}, size * max(positions) // p) for p in positions]
        sets = [self._valid_set(length, 0, {"length": length}, size) for length in config.valid_lengths]
        return sets or [self._valid_set(config.length, 0, {}, size)]

    def _valid_set(self, length: int, unscored: int, slices: dict[str, int], size: int) -> ValidSet:
        """Returns windows of `length` tokens that score all targets of `_scored`, in batches of `size` rows."""
        first = len(self._valid_tokens) - len(self._scored[0])
        starts = np.arange(first - unscored, len(self._valid_tokens) - length + 1, length - unscored)

        def batch(rows: Integer[np.ndarray, "b"]) -> Batch:
            window = starts[rows, None] + np.arange(length)
            targets = self._valid_targets[window].astype(np.int32)
            targets[:, :unscored] = UNLABELLED
            return self.batch(self._valid_tokens[window], targets)

        return make_valid_set(slices, len(starts), size, batch)

    def baselines(self) -> dict[str, Score]:
        """Unigram and bigram scores on the targets of `valid`."""
        return ngram_baselines(self._train, *self._scored, vocab_size=self.vocab_size, n_bytes=self._valid_bytes)

    def batch(self, tokens: UInt[np.ndarray, "b t"], targets: Integer[np.ndarray, "b t"]) -> Batch:
        """Makes a batch; `segment_ids` count the ends of text at or before a token, from 0 in each row."""
        segment_ids = None
        if self.packed:
            segment_ids = jnp.asarray(np.cumsum(tokens == self.tokenizer.end_of_text, axis=1, dtype=np.int32))
        if self.config.begin is not None:
            tokens = tokens.copy()
            tokens[:, 0] = self.config.begin
        return Batch(
            tokens=jnp.asarray(tokens, jnp.int32), targets=jnp.asarray(targets, jnp.int32), segment_ids=segment_ids
        )


class WindowStream:
    """Endless iterator of training batches, made ahead of time by a thread; the cursor is the number of the next
    one."""

    def __init__(self, text: WindowedText, rows: Sequence[int]):
        ahead = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
        batches = grain.MapDataset.range(sys.maxsize).map(lambda index: text.windows(index, rows))
        self._windows = iter(batches.to_iter_dataset(ahead))
        self._text = text

    def __next__(self) -> Batch:
        windows = next(self._windows)
        return self._text.batch(windows[:, :-1], windows[:, 1:])

    def get_state(self) -> dict[str, Any]:
        """Returns the cursor, JSON-able; batches that were made ahead but not taken are not counted."""
        return {"fingerprint": self._text.fingerprint, "windows": self._windows.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Moves to a saved cursor. Raises `ValueError` if it belongs to other text, split or tokenizer."""
        if state["fingerprint"] != self._text.fingerprint:
            raise ValueError(
                f"WindowStream state fingerprint={state['fingerprint']!r} must equal {self._text.fingerprint!r}, "
                "the text's; restore the files (compare the manifests), or start a new run"
            )
        self._windows.set_state(state["windows"])
