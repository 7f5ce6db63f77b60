"""Base of recall tasks: a config that determines every example by its number.

A new task is one file: a `TaskConfig` with its fields, `slices`, `example`, and a `legend` for who reads examples.
`jaxzoo.tasks.recall_data` trains and validates on any of them.
"""

import abc
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import UInt

from jaxzoo.array_typing import Array, Bool, Int, PRNGKeyArray
from jaxzoo.checked import Checked, PositiveInt
from jaxzoo.data.base import Batch

Split = Literal["train", "test"]
"""Which of two disjoint sets of examples."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskConfig(Checked, abc.ABC):
    """Config of a task. All examples of one config have one shape."""

    vocab_size: PositiveInt
    """Tokens; ids are in [0, vocab_size)."""
    length: PositiveInt
    """Tokens in an example."""
    folded: ClassVar[tuple[str, ...]] = ()
    """Fields, or properties, that the key of a split depends on: examples of other sizes share no random numbers."""

    @property
    @abc.abstractmethod
    def slices(self) -> Mapping[str, int]:
        """Labels of the examples in a validation, as reported: `{"length": 64, "pairs": 8}`."""

    @property
    def legend(self) -> str:
        """Meaning of the tokens, in one line for the reader of examples."""
        return f"tokens 0..{self.vocab_size - 1}"

    @property
    def model_fields(self) -> Mapping[str, Any]:
        """Fields of `LanguageModelConfig` that the task determines besides its sizes, such as `decode_last`."""
        return {}

    def copied(self, tokens: Int[np.ndarray, "b t"]) -> Int[np.ndarray, "b t"]:
        """The answer that copying each token gives: the token, but where tokens and answers are of two kinds."""
        return tokens

    def as_text(self, tokens: Int[np.ndarray, "t"], targets: Int[np.ndarray, "t"]) -> str | None:
        """An example as its reader sees it; None: the tokens say it all."""
        return None

    def example(self, key: PRNGKeyArray, odd: Bool[Array, ""]) -> Batch:
        """Makes one example, without the axis of the batch: `tokens (t,)`, `positions (m,)` and `targets (m,)`.

        Args:
          key: the example's own.
          odd: whether it is of the test split; no example is in both splits.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `example` or `generate`")

    def split_key(self, key: PRNGKeyArray, odd: Bool[Array, ""]) -> PRNGKeyArray:
        """Returns the key of a split, of which the number of an example makes the example's own."""
        for field in self.folded:
            key = jax.random.fold_in(key, getattr(self, field))
        return jax.random.fold_in(key, odd.astype(jnp.uint32))

    def generate(self, key: PRNGKeyArray, numbers: UInt[Array, "b"], split: Split) -> Batch:
        """Makes examples; `labelled` has checked its arguments.

        Example i is a pure function of (config, key, i, split), not of the others in its batch, and no example is in
        both splits. Returns `tokens (b, t)`, `positions (b, m)` and `targets (b, m)`.
        """
        return _generate(self, key, split == "test", numbers)

    def labelled(
        self,
        seed_or_key: int | PRNGKeyArray,
        numbers: Int[Array | np.ndarray, "b"] | UInt[Array | np.ndarray, "b"],
        split: Split = "train",
    ) -> Batch:
        """The examples with these numbers, with answers at their labelled positions only.

        Args:
          seed_or_key: a seed, or a typed key of `jax.random.key`.
          numbers: example numbers in [0, 2^32); may be traced.
          split: which of the two disjoint sets of examples.

        Raises:
          ValueError: `numbers` are no integers or of another rank, or `split` has another name.
        """
        where = f"{type(self).__name__}.labelled"
        if split not in get_args(Split):
            raise ValueError(f"{where}: split={split!r} must be 'train' or 'test'")
        numbers = jnp.asarray(numbers)
        if numbers.ndim != 1 or not jnp.issubdtype(numbers.dtype, jnp.integer):
            rule = "must be example numbers, integers of shape (b,)"
            raise ValueError(f"{where}: numbers of shape {numbers.shape} and dtype {numbers.dtype} {rule}")
        key = seed_or_key
        if isinstance(key, int | np.integer):
            key = jax.random.key(int(key), impl="threefry2x32")
        return self.generate(key, numbers.astype(jnp.uint32), split)


@functools.partial(jax.jit, static_argnums=0)
def _generate(config: TaskConfig, key: PRNGKeyArray, odd: jax.Array | bool, numbers: UInt[Array, "b"]) -> Batch:
    odd = jnp.asarray(odd)
    key = config.split_key(key, odd)
    return jax.vmap(lambda number: config.example(jax.random.fold_in(key, number), odd))(numbers)
