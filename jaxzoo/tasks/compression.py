"""MAD's compression (Poli et al. 2024, arXiv 2403.17844): random tokens, all to be named from one vector.

Tokens are uniform; the last one is a compression token, always the same. The model is an autoencoder
(`LanguageModelConfig.decode_last`): a decoder sees the residual stream at the compression token and the number of a
position, nothing else, and names the token there. With 4 tokens, of which 3 is the compression token:

    inputs  0 2 2 1 0 3      targets  0 2 2 1 0 3

Parameters and defaults are those of the released code (athms/mad-lab, `mad/data/instances.py` and the baseline of
`configs/tasks/compression.yml`, which trains on 12,800 examples); its seq_len is `length`. As there, every position is
learned and scored. That includes the last one, whose answer never changes, and tokens of noise: the released code
masks their targets in an array that it then does not return. A guess is right in `1 / n_plain` of the other positions.

Deviation: no example is in both splits. The sum of the tokens before the last is odd in test and even in train;
examples are drawn again until it is. Without noise, a part of an example that lacks k of them has the law that it
would have without the split, up to n_plain^-k, and exactly if n_plain is even. There the splits are drawn from two
seeds.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxzoo.array_typing import Array, Bool, Int, PRNGKeyArray
from jaxzoo.checked import FractionBelowOne, NonNegativeInt, PositiveInt
from jaxzoo.data.base import UNLABELLED, Batch
from jaxzoo.tasks import sampling
from jaxzoo.tasks.base import TaskConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompressionConfig(TaskConfig):
    """Sizes of an example. Raises `ValueError` where no such example exists."""

    vocab_size: PositiveInt = 16
    """Tokens, those of noise included; the last one is the compression token."""
    length: PositiveInt = 32
    """Tokens in an example, the compression token included; at least 3."""
    noise_vocab_size: NonNegativeInt = 0
    """Tokens of noise, those before the compression token."""
    frac_noise: FractionBelowOne = 0.0
    """Probability of noise in the place of a token."""
    folded = ("length", "vocab_size")

    @property
    def slices(self) -> Mapping[str, int]:
        """Length and vocabulary."""
        return {"length": self.length, "vocabulary": self.vocab_size}

    def __post_init__(self) -> None:
        rule = f"must exceed noise_vocab_size={self.noise_vocab_size} by at least 3"
        self.require("vocab_size", self.n_plain >= 2, rule, "two tokens and the compression token")
        self.require("length", self.length >= 3, "must be at least 3: two tokens and the compression token")
        can = self.noise_vocab_size > 0 or self.frac_noise == 0
        self.require("frac_noise", can, "must be 0 without tokens of noise", "raise noise_vocab_size")

    @property
    def n_plain(self) -> int:
        """Tokens that are neither noise nor the compression token: 0 .. n_plain - 1."""
        return self.vocab_size - 1 - self.noise_vocab_size

    @property
    def legend(self) -> str:
        last = self.vocab_size - 1
        noise = f", noise {self.n_plain}..{last - 1}" if self.noise_vocab_size else ""
        return f"plain tokens 0..{self.n_plain - 1}{noise}, compression token {last}"

    @property
    def model_fields(self) -> Mapping[str, Any]:
        """The model is an autoencoder."""
        return {"decode_last": True}

    def copied(self, tokens: Int[np.ndarray, "b t"]) -> Int[np.ndarray, "b t"]:
        """No token can be copied: the decoder sees none of them."""
        return np.full(tokens.shape, UNLABELLED)

    def example(self, key: PRNGKeyArray, odd: Bool[Array, ""]) -> Batch:
        """Makes an example; m = t, in the order of time."""

        def draw(key: PRNGKeyArray) -> Int[Array, "n"]:
            words = jax.random.bits(key, (3, self.length - 1), jnp.uint32)
            tokens = sampling.below(words[0], self.n_plain)
            if not self.frac_noise:
                return tokens
            noise = self.n_plain + sampling.below(words[1], self.noise_vocab_size)
            return jnp.where(words[2] < np.uint32(min(self.frac_noise * 2**32, 2**32 - 1)), noise, tokens)

        drawn = sampling.until(lambda tokens: (tokens.sum() % 2 == 1) == odd, draw, key)
        tokens = jnp.append(drawn, jnp.int32(self.vocab_size - 1))
        return Batch(tokens=tokens, targets=tokens)
