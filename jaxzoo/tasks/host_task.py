"""Tasks whose examples are made one by one on the host: of variable parts, or of text."""

import abc
import hashlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import UInt

from jaxzoo.array_typing import Array, PRNGKeyArray
from jaxzoo.data.base import UNLABELLED, Batch
from jaxzoo.tasks.base import Split, TaskConfig

TRIALS = 1000
"""Draws of an example until it is of its split; half of all are."""


class Drawn(NamedTuple):
    """An example as lists of the config's length, or shorter."""

    tokens: list[int]
    targets: list[int]
    """The answer at each token, or `UNLABELLED`."""


class HostTask(TaskConfig, abc.ABC):
    """A task that draws with NumPy; `labelled` takes no traced numbers.

    No example is in both splits: it is drawn again until the lowest bit of a hash of its tokens is 1 in test and 0 in
    train, so that no part of an example tells its split.
    """

    @abc.abstractmethod
    def draw(self, rng: np.random.Generator, split: Split) -> Drawn:
        """Draws one example."""

    @property
    def padding(self) -> int:
        """Token after the end of a short example."""
        return 0

    def generate(self, key: PRNGKeyArray, numbers: UInt[Array, "b"], split: Split) -> Batch:
        """Makes examples; the answers stand at every position, most without a label."""
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
                rule = f"has too few examples: none of {TRIALS} is of the split {split}"
                raise ValueError(f"{self} {rule}; take larger sizes")
            tokens[row, : len(drawn.tokens)] = drawn.tokens
            targets[row, : len(drawn.targets)] = drawn.targets
        return Batch(tokens=jnp.asarray(tokens), targets=jnp.asarray(targets))
