"""Every task at a size that one can read: what `python -m jaxzoo.tasks` shows.

The first line of a class says what its task asks, its fields are what a newcomer may change. Nothing here imports JAX
before `config()`.
"""

import abc
import dataclasses
from typing import TYPE_CHECKING, Literal

from jaxzoo.checked import Checked, PositiveInt

if TYPE_CHECKING:
    from jaxzoo.tasks.base import TaskConfig


class Demo(Checked, abc.ABC):
    """A task with few fields, small by default."""

    @abc.abstractmethod
    def config(self) -> "TaskConfig":
        """What its examples look like. Raises `ValueError` where there are none."""

    @classmethod
    def summary(cls) -> str:
        """What the task asks, in one line."""
        return (cls.__doc__ or "").splitlines()[0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MQARDemo(Demo):
    """Multi-query associative recall: at each key that comes again, the value that followed it.

    Zoology, Section 4.
    """

    length: PositiveInt = 16
    """Tokens in an example; even, at least 4 n_pairs, below vocab_size."""
    n_pairs: PositiveInt = 2
    """Key-value pairs in an example."""
    vocab_size: PositiveInt = 64
    """Tokens; the lower half are keys, the upper half values."""
    fillers: Literal["zero", "random", "any"] = "zero"
    """Tokens of empty positions: 0, anything but the example's keys, or anything."""
    variant: Literal["paper", "literal", "release"] = "paper"
    """Values and exponent as Zoology prints them, with the slots of the released code or (literal) at any position; or
    all as the authors' released code has it."""

    def config(self) -> "TaskConfig":
        """One of MQAR's presets."""
        from jaxzoo.tasks import mqar

        preset = {"paper": mqar.paper, "literal": mqar.literal, "release": mqar.release}[self.variant]
        return preset(self.length, self.n_pairs, vocab_size=self.vocab_size, fillers=self.fillers)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ARDemo(Demo):
    """Associative recall: the last token is a key of the context, and asks for its value.

    CAT, Definition 2. As many pairs as fit.
    """

    length: PositiveInt = 11
    """Tokens in an example; odd."""
    vocab_size: PositiveInt = 32
    """Tokens, a multiple of 4; the lower half are keys, the upper half values."""

    def config(self) -> "TaskConfig":
        """The preset `ar`."""
        from jaxzoo.tasks import ngram_recall

        return ngram_recall.ar(self.length, vocab_size=self.vocab_size)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NARDemo(Demo):
    """Associative recall of N-grams: the last tokens are a gram of the context, and ask for its value.

    CAT, Definition 3. As many grams as fit.
    """

    length: PositiveInt = 14
    """Tokens in an example; n_gram more than a multiple of n_gram + 1."""
    n_gram: PositiveInt = 2
    """Tokens of a gram."""
    vocab_size: PositiveInt = 32
    """Tokens, a multiple of 4; grams are of the lower half, values of the upper half."""

    def config(self) -> "TaskConfig":
        """The preset `nar`."""
        from jaxzoo.tasks import ngram_recall

        return ngram_recall.nar(self.length, self.n_gram, vocab_size=self.vocab_size)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MQNARDemo(Demo):
    """Multi-query recall of N-grams: at each gram that is asked for its value, or "no match".

    CAT, Definition 5. A quarter as many grams without a match as there are pairs.
    """

    length: PositiveInt = 29
    """Tokens in an example."""
    n_pairs: PositiveInt = 4
    """Grams with a value; at least 2."""
    n_gram: PositiveInt = 2
    """Tokens of a gram."""
    vocab_size: PositiveInt = 32
    """Tokens, a multiple of 4; grams are of the lower half, values of the upper half."""

    def config(self) -> "TaskConfig":
        """The preset `mqnar`."""
        from jaxzoo.tasks import ngram_recall

        return ngram_recall.mqnar(self.length, self.n_pairs, n_gram=self.n_gram, vocab_size=self.vocab_size)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelectiveCopyDemo(Demo):
    """Selective copying: behind the separator the signals of the prompt, in order and without the noise.

    CAT, Definition 4. Its unique variants: --repeats.
    """

    length: PositiveInt = 15
    """Tokens in an example: prompt, separator, and the signals without the last."""
    n_signals: PositiveInt = 4
    """Signals in the prompt; at least 2."""
    n_noise: PositiveInt = 8
    """Noise tokens of the vocabulary."""
    vocab_size: PositiveInt = 17
    """Tokens: the separator, the noise, and an even number of signals."""
    repeats: Literal["none", "copied", "once"] = "none"
    """Whether a signal may stand in the prompt more than once, and then is copied as often or once."""

    def config(self) -> "TaskConfig":
        """The config with these fields."""
        from jaxzoo.tasks.selective_copy import SelectiveCopyConfig

        return SelectiveCopyConfig(**dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForgettingMQARDemo(Demo):
    """MQAR with keys that are bound again: at each key that is asked for, the value that it had last.

    Released code of Zoology.
    """

    length: PositiveInt = 20
    """Tokens in an example; even, at least 4 n_pairs + 2 n_updates, below vocab_size."""
    n_pairs: PositiveInt = 4
    """Keys of an example; at least 2."""
    n_updates: PositiveInt = 2
    """Keys that are bound again, behind all pairs."""
    vocab_size: PositiveInt = 64
    """Tokens; the lower half are keys, the upper half values."""
    fillers: Literal["zero", "any"] = "zero"
    """Tokens of empty positions: 0, or anything."""

    def config(self) -> "TaskConfig":
        """The config with these fields."""
        from jaxzoo.tasks.forgetting_mqar import ForgettingMQARConfig

        return ForgettingMQARConfig(**dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompositionalMQARDemo(Demo):
    """MQAR with pairs of tokens as keys: at each pair that comes again, the value that neither token tells.

    Released code of Zoology.
    """

    length: PositiveInt = 24
    """Tokens in an example; at least 6 n_pairs."""
    n_pairs: PositiveInt = 4
    """Pairs of keys with a value; a square, at least 4."""
    vocab_size: PositiveInt = 60
    """Tokens; a third first keys, a third second keys, a third values."""
    fillers: Literal["zero", "any"] = "zero"
    """Tokens of empty positions: 0, or anything."""

    def config(self) -> "TaskConfig":
        """The config with these fields."""
        from jaxzoo.tasks.compositional_mqar import CompositionalMQARConfig

        return CompositionalMQARConfig(**dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParityDemo(Demo):
    """Whether a string of bits has an odd number of ones.

    Released code of Zoology.
    """

    length: PositiveInt = 13
    """Tokens in an example; the last one asks, unless every bit does."""
    cumulative: bool = False
    """Asks at every bit, for the answer up to there."""

    def config(self) -> "TaskConfig":
        """The config with these fields."""
        from jaxzoo.tasks.parity import ParityConfig

        return ParityConfig(**dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True, kw_only=True)
class MajorityDemo(Demo):
    """Whether more than half of the bits of a string are ones.

    Released code of Zoology.
    """

    length: PositiveInt = 14
    """Tokens in an example; the last one asks, unless every bit does."""
    cumulative: bool = False
    """Asks at every bit, for the answer up to there."""

    def config(self) -> "TaskConfig":
        """The config with these fields."""
        from jaxzoo.tasks.majority import MajorityConfig

        return MajorityConfig(**dataclasses.asdict(self))


DEMOS: dict[str, type[Demo]] = {
    "mqar": MQARDemo,
    "ar": ARDemo,
    "nar": NARDemo,
    "mqnar": MQNARDemo,
    "selective_copy": SelectiveCopyDemo,
    "forgetting_mqar": ForgettingMQARDemo,
    "compositional_mqar": CompositionalMQARDemo,
    "parity": ParityDemo,
    "majority": MajorityDemo,
}
"""All tasks by their names on the command line."""
