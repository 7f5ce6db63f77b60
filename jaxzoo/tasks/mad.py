"""Noisy recall, fuzzy recall, memorization and compression of MAD (Poli et al. 2024, arXiv 2403.17844).

Parameters and defaults are those of the released code (athms/mad-lab, `mad/data/instances.py` and the baselines of
`configs/tasks`; its seq_len is `length`), with several queries per example (`multi_query`):

- noisy recall: pairs `k v`, each at random replaced by two noise tokens; at a key that came before, its value.
- fuzzy recall: keys and values are motifs of several tokens; at the end of a key that came before, and at its value's
  tokens, the next token of the value. Training has keys of 1 to `k_motif_size` tokens, test only of the full size.
- memorization: keys, each followed by a token that asks; the value of a key is the same in all examples of all splits.
- compression: uniform tokens; the last one is a compression token, always the same. The model is an autoencoder
  (`LanguageModelConfig.decode_last`): a decoder sees the residual stream at the compression token and the number of a
  position, nothing else, and names the token there. With 4 tokens, of which 3 is the compression token:

      inputs  0 2 2 1 0 3      targets  0 2 2 1 0 3

The released code trains noisy and fuzzy recall on every next token and scores the queries; here the loss counts only
the queries. In compression every position is learned and scored, as there (on 12,800 training examples). That includes
the last one, whose answer never changes, and noise tokens: the released code masks their targets in an array that it
does not return. A guess is right in `1 / n_plain` of the other positions.

Deviation: no example is in both splits; the released code draws from two seeds. In compression the sum of the
tokens before the last is odd in test and even in train; examples are drawn again until it is. Without noise, a part of
an example that lacks k tokens has the same distribution as without the split, up to n_plain^-k, and exactly if
n_plain is even. The other tasks split as `HostTask` does.
"""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxzoo.config.checked import FractionBelowOne, NonNegativeInt, PositiveInt, Seed
from jaxzoo.data.base import UNLABELLED, Batch
from jaxzoo.tasks import random_draws
from jaxzoo.tasks.base import HostTask, Split, TaskConfig, TaskExample
from jaxzoo.utils.array_typing import Array, Bool, Int, PRNGKeyArray


@dataclasses.dataclass(frozen=True, kw_only=True)
class MADConfig(HostTask, abc.ABC):
    """Keys are the lower half of the non-special tokens, values the upper half."""

    @property
    def slices(self) -> Mapping[str, int]:
        return {"length": self.length, "vocabulary": self.vocab_size}

    @property
    @abc.abstractmethod
    def n_plain(self) -> int:
        """Number of tokens that are keys or values."""

    @property
    def n_keys(self) -> int:
        """Number of keys: 0 .. n_keys - 1."""
        return self.n_plain // 2

    @property
    def n_values(self) -> int:
        """Number of values: n_keys .. n_plain - 1."""
        return self.n_plain - self.n_keys

    @property
    def legend(self) -> str:
        return f"keys 0..{self.n_keys - 1}, values {self.n_keys}..{self.n_plain - 1}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoisyRecallConfig(MADConfig):
    """Sizes of an example; the value of the last key occurs in it."""

    vocab_size: PositiveInt = 32
    """Tokens, including noise."""
    length: PositiveInt = 128
    """Tokens in an example, even."""
    noise_vocab_size: PositiveInt = 16
    """Noise tokens, the last of the vocabulary."""
    frac_noise: FractionBelowOne = 0.2
    """Probability that noise replaces a pair."""

    def __post_init__(self) -> None:
        self.require("length", self.length % 2 == 0 and self.length > 2, "must be even and at least 4")
        rule = f"must exceed noise_vocab_size={self.noise_vocab_size} by at least 4"
        self.require("vocab_size", self.n_plain >= 4, rule, "two keys and two values")

    @property
    def n_plain(self) -> int:
        return self.vocab_size - self.noise_vocab_size

    @property
    def legend(self) -> str:
        return f"{super().legend}, noise {self.n_plain}..{self.vocab_size - 1}"

    def draw(self, rng: np.random.Generator, split: Split) -> TaskExample:
        """Draws pairs and noise; the last pair is one of the earlier ones."""
        n = self.length // 2
        values = rng.integers(self.n_keys, self.n_plain, self.n_keys)
        keys = rng.integers(self.n_keys, size=n)
        is_noise = rng.random(n) < self.frac_noise
        is_noise[rng.integers(n - 1)] = is_noise[-1] = False
        keys[-1] = rng.choice(keys[:-1][~is_noise[:-1]])
        pairs = np.stack([keys, values[keys]], 1)
        pairs[is_noise] = rng.integers(self.n_plain, self.vocab_size, (int(is_noise.sum()), 2))
        targets = np.full(pairs.shape, UNLABELLED)
        seen = set()
        for i in np.flatnonzero(~is_noise):
            if keys[i] in seen:
                targets[i, 0] = pairs[i, 1]
            seen.add(keys[i])
        return TaskExample(pairs.ravel().tolist(), targets.ravel().tolist())


@dataclasses.dataclass(frozen=True, kw_only=True)
class FuzzyRecallConfig(MADConfig):
    """Sizes of an example, which begins with padding."""

    vocab_size: PositiveInt = 16
    """Tokens; the last one is padding."""
    length: PositiveInt = 128
    """Tokens in an example."""
    k_motif_size: PositiveInt = 3
    """Longest key, in tokens."""
    v_motif_size: PositiveInt = 3
    """Longest value, in tokens."""

    def __post_init__(self) -> None:
        longest = max(self.k_motif_size, self.v_motif_size)
        self.require("vocab_size", self.n_keys >= longest, f"must be at least {2 * longest + 1}: motifs do not repeat")
        least = 2 * (self.k_motif_size + self.v_motif_size)
        self.require("length", self.length >= least, f"must be at least {least}, for two keys with their values")

    @property
    def n_plain(self) -> int:
        return self.vocab_size - 1

    def draw(self, rng: np.random.Generator, split: Split) -> TaskExample:
        """Draws keys and values as long as they fit; one key occurs twice, the second time at the end."""

        def motif(first: int, size: int, n: int) -> tuple[int, ...]:
            return tuple((first + rng.permutation(n)[:size]).tolist())

        def key() -> tuple[int, ...]:
            size = self.k_motif_size if split == "test" else rng.integers(1, self.k_motif_size + 1)
            return motif(0, int(size), self.n_keys)

        def value() -> tuple[int, ...]:
            return motif(self.n_keys, int(rng.integers(1, self.v_motif_size + 1)), self.n_values)

        probe = key()
        memory = {probe: value()}
        room = self.length + 1 - 2 * (len(probe) + len(memory[probe]))
        keys: list[tuple[int, ...]] = []
        while True:
            new = key()
            room -= len(new) + len(memory.setdefault(new, value()))
            if room < 0:
                break
            keys.append(new)
        keys.insert(rng.integers(len(keys) + 1), probe)
        tokens = []
        targets = []
        seen = set()
        for each in (*keys, probe):
            tokens += [*each, *memory[each]]
            targets += [UNLABELLED] * len(each)
            targets += memory[each] if each in seen else [UNLABELLED] * len(memory[each])
            seen.add(each)
        pad = self.length + 1 - len(tokens)
        tokens = [self.n_plain] * pad + tokens
        targets = [UNLABELLED] * pad + targets
        return TaskExample(tokens[:-1], targets[1:])


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemorizationConfig(MADConfig):
    """Sizes of an example, and the facts."""

    vocab_size: PositiveInt = 256
    """Tokens; the last one asks."""
    length: PositiveInt = 32
    """Tokens in an example, even."""
    kv_map_seed: Seed = 12345
    """Seed of the facts."""

    def __post_init__(self) -> None:
        self.require("length", self.length % 2 == 0, "must be even: keys and questions")
        self.require("vocab_size", self.vocab_size >= 5, "must be at least 5: two keys, two values and the question")

    @property
    def n_plain(self) -> int:
        return self.vocab_size - 1

    @property
    def facts(self) -> Int[np.ndarray, "keys"]:
        """The value of each key; all are distinct."""
        order = np.random.default_rng(self.kv_map_seed).permutation(self.n_values)
        return self.n_keys + order[: self.n_keys]

    def draw(self, rng: np.random.Generator, split: Split) -> TaskExample:
        """Draws keys, each followed by the question."""
        keys = rng.integers(self.n_keys, size=self.length // 2)
        tokens = np.stack([keys, np.full(keys.shape, self.n_plain)], 1)
        targets = np.stack([np.full(keys.shape, UNLABELLED), self.facts[keys]], 1)
        return TaskExample(tokens.ravel().tolist(), targets.ravel().tolist())


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompressionConfig(TaskConfig):
    """Sizes of an example. Raises `ValueError` if no such example exists."""

    vocab_size: PositiveInt = 16
    """Tokens, including noise; the last one is the compression token."""
    length: PositiveInt = 32
    """Tokens in an example, including the compression token; at least 3."""
    noise_vocab_size: NonNegativeInt = 0
    """Noise tokens, which precede the compression token."""
    frac_noise: FractionBelowOne = 0.0
    """Probability that noise replaces a token."""
    folded = ("length", "vocab_size")

    @property
    def slices(self) -> Mapping[str, int]:
        return {"length": self.length, "vocabulary": self.vocab_size}

    def __post_init__(self) -> None:
        rule = f"must exceed noise_vocab_size={self.noise_vocab_size} by at least 3"
        self.require("vocab_size", self.n_plain >= 2, rule, "two tokens and the compression token")
        self.require("length", self.length >= 3, "must be at least 3: two tokens and the compression token")
        can = self.noise_vocab_size > 0 or self.frac_noise == 0
        self.require("frac_noise", can, "must be 0 without tokens of noise", "raise noise_vocab_size")

    @property
    def n_plain(self) -> int:
        """Number of tokens that are neither noise nor the compression token: 0 .. n_plain - 1."""
        return self.vocab_size - 1 - self.noise_vocab_size

    @property
    def legend(self) -> str:
        last = self.vocab_size - 1
        noise = f", noise {self.n_plain}..{last - 1}" if self.noise_vocab_size else ""
        return f"plain tokens 0..{self.n_plain - 1}{noise}, compression token {last}"

    @property
    def model_fields(self) -> Mapping[str, Any]:
        return {"decode_last": True}

    def copied(self, tokens: Int[np.ndarray, "b t"]) -> Int[np.ndarray, "b t"]:
        """-1: the decoder sees no token to copy."""
        return np.full(tokens.shape, UNLABELLED)

    def example(self, key: PRNGKeyArray, odd: Bool[Array, ""]) -> Batch:
        """Makes an example; m = t, in order."""

        def draw(key: PRNGKeyArray) -> Int[Array, "n"]:
            words = jax.random.bits(key, (3, self.length - 1), jnp.uint32)
            tokens = random_draws.below(words[0], self.n_plain)
            if not self.frac_noise:
                return tokens
            noise = self.n_plain + random_draws.below(words[1], self.noise_vocab_size)
            return jnp.where(words[2] < np.uint32(min(self.frac_noise * 2**32, 2**32 - 1)), noise, tokens)

        drawn = random_draws.until(lambda tokens: (tokens.sum() % 2 == 1) == odd, draw, key)
        tokens = jnp.append(drawn, jnp.int32(self.vocab_size - 1))
        return Batch(tokens=tokens, targets=tokens)
