"""Windows of text as the trainer's batches: what all text data share, wherever their tokens lie.

A window may hold parts of several documents, each of which ends with an end-of-text token. Packing says what a token
may see of them:

- "concatenate", as in the papers: everything before it in its window;
- "segments": its own document alone. End-of-text opens the segment of the document after it and so serves as its
  begin token. No label is lost: the target at the last token of a document is end-of-text, and the target at
  end-of-text is the first token of the next document. Tokens and targets are those of "concatenate".
"""

import dataclasses
import math
from typing import Any, Literal, Protocol

import grain
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import UInt

from jaxzoo.checked import PositiveInt
from jaxzoo.data.base import Batch, DataConfig, ValidSet

Packing = Literal["concatenate", "segments"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class WindowsConfig(DataConfig):
    """How text is cut into windows: the base of the configs of text."""

    length: PositiveInt = 256
    """Tokens of a window."""
    valid_lengths: tuple[PositiveInt, ...] = ()
    """Tokens of the windows of validation, each length scored by itself on the same targets; empty: `length` alone."""
    packing: Packing = "concatenate"
    """Context of a token in its window: all before it, or (segments) its own document alone."""
    valid_tokens: PositiveInt = 100_000
    """Upper bound of the validation tokens that are scored, from the beginning of the validation text."""

    def __post_init__(self) -> None:
        unit = self.valid_unit
        what = f"valid_lengths={self.valid_lengths}" if self.valid_lengths else f"length={self.length}"
        self.require("valid_tokens", self.valid_tokens >= unit, f"must be at least one window, {what}", f"take {unit}")

    @property
    def valid_unit(self) -> int:
        """The fewest tokens that are whole windows of every length of validation."""
        return math.lcm(*self.valid_lengths) if self.valid_lengths else self.length

    @property
    def max_length(self) -> int:
        """Tokens of the longest window."""
        return max((self.length, *self.valid_lengths))

    def abstract_batch(self, batch_size: int) -> Batch:
        """Shapes of a training batch; no text is read."""
        array: Any = jax.ShapeDtypeStruct((batch_size, self.length), jnp.int32)
        return Batch(tokens=array, targets=array, segment_ids=array if self.packing == "segments" else None)

    def require_window(self, n_tokens: int, *, valid: bool, text: str, remedy: str) -> None:
        """Raises `ValueError` unless a text holds a window (for validation of every length) and its last target.

        Args:
          n_tokens: of the text.
          valid: whether it is for validation.
          text: what the user knows it by.
          remedy: what to do where it is too short.
        """
        name, needed = ("valid_lengths", self.valid_unit) if valid and self.valid_lengths else ("length", self.length)
        if n_tokens < needed + 1:
            rule = f"must be below the {n_tokens} tokens of {text}"
            raise ValueError(f"{type(self).__name__}.{name}={needed} {rule}; {remedy}")


class Windows(Protocol):
    """A source for grain: element i is training batch i."""

    def __len__(self) -> int:
        """How many batches there are."""
        ...

    def __getitem__(self, index: int) -> UInt[np.ndarray, "b t+1"]:
        """The rows of a batch, each a window and the target of its last token; a pure function of the index."""
        ...


class WindowStream:
    """An endless iterator of training batches (a `Stream`) that knows which data its cursor belongs to.

    A thread makes the batches ahead of time. The number of the next one is the whole cursor.

    Args:
      windows: the batches.
      packing: what a token may see of its window.
      end_of_text: id that ends a document.
      fingerprint: of the data and their tokenizer, as `DataConfig.tokenizer` tells.
    """

    def __init__(self, windows: Windows, *, packing: Packing, end_of_text: int, fingerprint: str):
        ahead = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
        self._windows = iter(grain.MapDataset.source(windows).to_iter_dataset(ahead))
        self._packing: Packing = packing
        self._end_of_text = end_of_text
        self._fingerprint = fingerprint

    def __iter__(self) -> "WindowStream":
        return self

    def __next__(self) -> Batch:
        """The next batch."""
        windows = next(self._windows)
        return as_batch(windows[:, :-1], windows[:, 1:], packing=self._packing, end_of_text=self._end_of_text)

    def get_state(self) -> dict:
        """The cursor, JSON-able; batches that were made ahead but not taken are still to come."""
        return {"fingerprint": self._fingerprint, "windows": self._windows.get_state()}

    def set_state(self, state: dict) -> None:
        """Moves to a saved cursor.

        Raises:
          ValueError: the cursor was saved on other text, another split or another tokenizer.
        """
        if state["fingerprint"] != self._fingerprint:
            raise ValueError(
                f"WindowStream state fingerprint={state['fingerprint']!r} must equal {self._fingerprint!r}, "
                "that of the text as it is now; restore the files (compare the manifests), or start a new run"
            )
        self._windows.set_state(state["windows"])


def valid_sets(
    config: WindowsConfig,
    tokens: UInt[np.ndarray, "t"],
    targets: UInt[np.ndarray, "t"],
    *,
    batch_size: int,
    end_of_text: int,
) -> list[ValidSet]:
    """Consecutive windows, every target scored once: one set, or one for each of `valid_lengths`.

    Each window starts without context, so that its first targets are harder than in a running text.

    Args:
      config: how to cut.
      tokens: whole windows of every length of validation.
      targets: the token after each.
      batch_size: windows of a batch; the last of a set may have fewer.
      end_of_text: id that ends a document.
    """

    def valid_set(length: int, slices: dict[str, int]) -> ValidSet:
        rows = tokens.reshape(-1, length), targets.reshape(-1, length)
        n_batches = -(-len(rows[0]) // batch_size)

        def batch(i: int) -> Batch:
            if not 0 <= i < n_batches:
                raise IndexError(f"validation batch {i} must be in [0, {n_batches})")
            chosen = (x[i * batch_size : (i + 1) * batch_size] for x in rows)
            return as_batch(*chosen, packing=config.packing, end_of_text=end_of_text)

        return ValidSet(slices, n_batches, batch)

    if not config.valid_lengths:
        return [valid_set(config.length, {})]
    return [valid_set(length, {"length": length}) for length in config.valid_lengths]


def as_batch(
    tokens: UInt[np.ndarray, "b t"], targets: UInt[np.ndarray, "b t"], *, packing: Packing, end_of_text: int
) -> Batch:
    """Rows of token ids as a batch; `segment_ids` count the ends of text at or before a token, from 0 in each row."""
    segment_ids = None
    if packing == "segments":
        segment_ids = jnp.asarray(np.cumsum(tokens == end_of_text, axis=1, dtype=np.int32))
    return Batch(
        tokens=jnp.asarray(tokens, jnp.int32), targets=jnp.asarray(targets, jnp.int32), segment_ids=segment_ids
    )


def require_batch_sizes(owner: str, **sizes: int) -> None:
    """Raises `ValueError` unless all sizes, by name, are positive."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{owner}.{name}={size!r} must be positive")
