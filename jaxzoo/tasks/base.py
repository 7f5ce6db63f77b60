"""Base of recall tasks: a config that determines every example by its number.

A new task is one file: a `TaskConfig` with its fields, `slices`, `example`, and a `legend` for printed examples.
`jaxzoo.tasks.recall_data` trains and validates on any of them.
"""

import abc
import dataclasses
import functools
import hashlib
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import UInt

from jaxzoo.config.checked import Checked, PositiveInt
from jaxzoo.data.base import UNLABELLED, Batch
from jaxzoo.utils.array_typing import Array, Bool, Int, PRNGKeyArray

Split = Literal["train", "test"]
"""Which of two disjoint sets of examples."""
TRIALS = 1000
"""Maximal number of draws until an example is in its split; half of all examples are."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskConfig(Checked, abc.ABC):
    """Config of a task. All examples of one config have one shape."""

    vocab_size: PositiveInt
    """Tokens; ids are in [0, vocab_size)."""
    length: PositiveInt
    """Tokens in an example."""
    folded: ClassVar[tuple[str, ...]] = ()
    """Fields, or properties, that the random key of a split depends on: examples of different sizes share no random
    numbers."""

    @property
    @abc.abstractmethod
    def slices(self) -> Mapping[str, int]:
        """Labels of a validation set, as reported: `{"length": 64, "pairs": 8}`."""

    @property
    def legend(self) -> str:
        """Meaning of the tokens, in one line."""
        return f"tokens 0..{self.vocab_size - 1}"

    @property
    def model_fields(self) -> Mapping[str, Any]:
        """Fields of `LanguageModelConfig` that the task determines besides its sizes, such as `decode_last`."""
        return {}

    @property
    def first_target(self) -> int:
        """Number of first tokens of an example that are never asked for; 0 if not known."""
        return 0

    def copied(self, tokens: Int[np.ndarray, "b t"]) -> Int[np.ndarray, "b t"]:
        """The answer given by copying each token: the token itself, unless answers are not tokens."""
        return tokens

    def as_text(self, tokens: Int[np.ndarray, "t"], targets: Int[np.ndarray, "t"]) -> str | None:
        """An example as readable text; None: the tokens are readable."""
        return None

    def example(self, key: PRNGKeyArray, odd: Bool[Array, ""]) -> Batch:
        """Makes one example without batch axis: `tokens (t,)`, `positions (m,)` and `targets (m,)`. `key` is the
        example's own; `odd` says whether it is in the test split. No example may be in both splits."""
        raise NotImplementedError(f"{type(self).__name__} must define `example` or `generate`")

    def split_key(self, key: PRNGKeyArray, odd: Bool[Array, ""]) -> PRNGKeyArray:
        """Returns the key of a split, into which the number of an example is folded."""
        for field in self.folded:
            key = jax.random.fold_in(key, getattr(self, field))
        return jax.random.fold_in(key, odd.astype(jnp.uint32))

    def generate(self, key: PRNGKeyArray, numbers: UInt[Array, "b"], split: Split) -> Batch:
        """Makes examples; `labelled` has checked its arguments. Example i is a pure function of (config, key, i,
        split), and no example is in both splits. Returns `tokens (b, t)`, `positions (b, m)` and `targets (b, m)`."""
        return _generate(self, key, split == "test", numbers)

    def labelled(
        self,
        seed_or_key: int | PRNGKeyArray,
        numbers: Int[Array | np.ndarray, "b"] | UInt[Array | np.ndarray, "b"],
        split: Split = "train",
    ) -> Batch:
        """Returns the examples with the given numbers, in [0, 2^32), which may be traced, with targets at labelled
        positions. `seed_or_key` is a seed, or a typed key of `jax.random.key`. Raises `ValueError` if `numbers` are no
        integers or of another rank, or `split` is unknown."""
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


class TaskExample(NamedTuple):
    """An example as lists of the config's length, or shorter."""

    tokens: list[int]
    targets: list[int]
    """Answer at each token, or `UNLABELLED`."""


class HostTask(TaskConfig, abc.ABC):
    """A task whose examples are made one by one on the host, such as text; `labelled` takes no traced numbers. Examples
    are drawn again until the lowest bit of a hash of their tokens is 1 in test and 0 in train. So no example is in both
    splits, and no part of an example reveals its split."""

    @abc.abstractmethod
    def draw(self, rng: np.random.Generator, split: Split) -> TaskExample:
        """Draws one example."""

    @property
    def padding(self) -> int:
        """Token after the end of a short example."""
        return 0

    def generate(self, key: PRNGKeyArray, numbers: UInt[Array, "b"], split: Split) -> Batch:
        """Makes examples with targets at every position, most without a label."""
        words = [int(word) for word in np.asarray(jax.random.key_data(key)).ravel()]
        tokens = np.full((len(numbers), self.length), self.padding, np.int32)
        targets = np.full(tokens.shape, UNLABELLED, np.int32)
        for row, number in enumerate(np.asarray(numbers).tolist()):
            rng = np.random.default_rng((*words, number, split == "test"))
            for _ in range(TRIALS):
                drawn = self.draw(rng, split)
                digest = hashlib.blake2b(np.asarray(drawn.tokens, "<i4").tobytes(), digest_size=1).digest()
                if digest[0] % 2 == (split == "test"):
                    break
            else:
                rule = f"has too few examples: none of {TRIALS} is in the split {split}"
                raise ValueError(f"{self} {rule}; take larger sizes")
            tokens[row, : len(drawn.tokens)] = drawn.tokens
            targets[row, : len(drawn.targets)] = drawn.targets
        return Batch(tokens=jnp.asarray(tokens), targets=jnp.asarray(targets))
