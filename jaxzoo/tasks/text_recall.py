"""Recall as text: a phone book, and RULER's needle in a haystack and variable tracking (Hsieh et al. 2024).

A task is a prompt and an answer, tokenized separately; the targets are the tokens of the answer. Tokenizers are
`bytes`, a tokenizer.json, or a folder that holds one. The haystack is as long as `length` allows.

RULER (arXiv 2404.06654): names and values of parameters are from its Appendix B, templates from Appendix D.
`NeedleConfig` is its NIAH, `VariableTrackingConfig` its VT. The fields of its eight forms of NIAH, where they differ
from the defaults, `niah_single_1`:

| form | haystack | keys, values |
| --- | --- | --- |
| `niah_single_2`, `niah_single_3` | essay | words; numbers, uuids |
| `niah_multikey_1` | essay | `num_needle_k=4` |
| `niah_multikey_2`, `niah_multikey_3` | needle | words, numbers; uuids both |
| `niah_multivalue` | essay | `num_needle_v=4` |
| `niah_multiquery` | essay | `num_needle_k=4`, `num_needle_q=4` |

Deviations: words are from our own lists; the essay is a file that the user names; needles are at uniformly drawn
positions instead of 40 depths; the question of VT has no worked example before it.

The phone book's names and wording are ours; Jelassi et al. 2024 (2402.01032) test state space models with one.
"""

import abc
import dataclasses
import functools
import itertools
import math
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from jaxzoo.config.checked import PositiveInt
from jaxzoo.data.base import UNLABELLED
from jaxzoo.data.tokenizer import Tokenizer
from jaxzoo.data.tokens.tokenizer_files import load_tokenizer
from jaxzoo.tasks.base import TRIALS, HostTask, Split, TaskExample
from jaxzoo.utils.array_typing import Int

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
FIRST = "Ada Ben Carl Dora Emil Fay Gus Hal Ines Jon Kay Leo Mia Ned Olga Pia Rex Sam Tess Uma Vic Walt Xena Yves Zoe"
LAST = "Adler Baker Cook Dorn Ellis Frank Gray Hale Irwin Jansen King Lang Moss Nolan Odell Price Quinn Reed Stone Tate"
ADJECTIVES = (
    "blue brave calm cold dark deep dry fair fast firm flat kind large loud mild near new old pale rare red tall"
)
NOUNS = "anchor apple barn bell boat bridge castle cloud cup door drum field fork garden hat island key lamp leaf moon"

load: Callable[[str], Tokenizer] = functools.cache(load_tokenizer)

NeedleType = Literal["numbers", "words", "uuids"]


class Text(NamedTuple):
    """Prompt with its haystack, and its answer."""

    prompt: str
    answer: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextTask(HostTask, abc.ABC):
    """Question on a text."""

    vocab_size: PositiveInt = 257
    """Number of token ids; at least as many as the tokenizer has."""
    length: PositiveInt = 1024
    """Tokens in an example; a shorter one is padded with end-of-text."""
    tokenizer_path: str = "bytes"
    """Tokenizer of the text: bytes, a tokenizer.json, or a directory that holds one."""

    def __post_init__(self) -> None:
        n = self.tokenizer.vocab_size
        self.require("vocab_size", self.vocab_size >= n, f"must be at least {n}, the ids of the tokenizer")
        shortest = len(self._joined(self.text(np.random.default_rng(0), 0))[0])
        rule = f"must be at least {shortest}, for an example without haystack"
        self.require("length", self.length >= shortest, rule)

    @property
    def tokenizer(self) -> Tokenizer:
        return load(self.tokenizer_path)

    @property
    def padding(self) -> int:
        return self.tokenizer.end_of_text

    @property
    def legend(self) -> str:
        return f"tokens of {self.tokenizer.name}; the answer follows the question"

    def as_text(self, tokens: Int[np.ndarray, "t"], targets: Int[np.ndarray, "t"]) -> str:
        """The text without its end, and the answer."""
        (asked,) = np.nonzero(targets != UNLABELLED)
        text = self.tokenizer.decode(tokens[: asked[0] + 1])
        return f"{text}\nanswer:{self.tokenizer.decode(targets[asked])}"

    @abc.abstractmethod
    def text(self, rng: np.random.Generator, n_noise: int) -> Text:
        """Makes an example with this much noise."""

    def draw(self, rng: np.random.Generator, split: Split) -> TaskExample:
        """Draws an example with as much noise as fits."""

        def joined(n_noise: int) -> tuple[list[int], int]:  # the same example with more noise or less
            rng.bit_generator.state = state
            return self._joined(self.text(rng, n_noise))

        for _ in range(TRIALS):
            state = rng.bit_generator.state
            if len(joined(0)[0]) <= self.length + 1:
                break
        n_noise = 0
        step = self.noise_at_once
        while step:
            if n_noise + step > max(self.most_noise, n_noise + 1):
                step //= 2
            elif len(joined(n_noise + step)[0]) <= self.length + 1:
                n_noise += step
            else:
                step //= 2
        tokens, n_answer = joined(n_noise)
        targets = [UNLABELLED] * (len(tokens) - 1 - n_answer) + tokens[len(tokens) - n_answer :]
        return TaskExample(tokens[:-1], targets)

    @property
    def noise_at_once(self) -> int:
        """Initial estimate of the amount of noise that fits."""
        return max(1, self.length // 64)

    @property
    def most_noise(self) -> float:
        """Largest amount of noise; `text` refuses more."""
        return math.inf

    def _joined(self, text: Text) -> tuple[list[int], int]:
        prompt, answer = (self.tokenizer.encode(part).tolist() for part in text)
        return prompt + answer, len(answer)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhoneBookConfig(TextTask):
    """A list of names with their numbers, as long as fits, and a question for one of them."""

    @property
    def slices(self) -> Mapping[str, int]:
        return {"length": self.length}

    @property
    def most_noise(self) -> float:
        return len(FIRST.split()) * len(LAST.split()) - 1

    def text(self, rng: np.random.Generator, n_noise: int) -> Text:
        """Makes a book of `n_noise` entries in addition to the queried one."""
        names = [f"{first} {last}" for first in FIRST.split() for last in LAST.split()]
        order = rng.permutation(len(names))
        asked = rng.random()
        wanted = _number(rng)
        if n_noise >= len(names):
            raise ValueError(f"PhoneBookConfig.length={self.length} must be shorter: there are {len(names)} names")
        lines = [f"{names[i]}: {_number(rng)}" for i in order[1 : n_noise + 1]]
        lines.insert(int(asked * (n_noise + 1)), f"{names[order[0]]}: {wanted}")
        return Text("\n".join([*lines, f"The number of {names[order[0]]} is"]), f" {wanted}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class NeedleConfig(TextTask):
    """Needle in a haystack: `num_needle_q` of `num_needle_k` keys are queried for all their `num_needle_v` values."""

    type_haystack: Literal["repeat", "essay", "needle"] = "repeat"
    """Text around the needles: one repeated line, the beginning of `essay_path`, or needles of other keys."""
    essay_path: str = ""
    """UTF-8 text for `type_haystack` "essay"; it is repeated if it is too short."""
    type_needle_k: NeedleType = "words"
    """Keys: adjective and noun, seven digits, or version-4 UUIDs."""
    type_needle_v: NeedleType = "numbers"
    """Values, likewise."""
    num_needle_k: PositiveInt = 1
    """Keys."""
    num_needle_v: PositiveInt = 1
    """Values of each."""
    num_needle_q: PositiveInt = 1
    """Queried keys."""

    def __post_init__(self) -> None:
        rule = f"must be at most num_needle_k={self.num_needle_k}"
        self.require("num_needle_q", self.num_needle_q <= self.num_needle_k, rule)
        self.require("num_needle_k", self.num_needle_k <= 100, "must be at most 100, for as many words")
        is_essay = self.type_haystack == "essay"
        rule = "must name a text file for type_haystack='essay'" if is_essay else "needs type_haystack='essay'"
        self.require("essay_path", bool(self.essay_path) == is_essay, rule)
        if is_essay:
            try:
                n_words = len(_words_of(self.essay_path))
            except (OSError, UnicodeDecodeError) as error:
                raise ValueError(f"NeedleConfig.essay_path={self.essay_path!r} must be a UTF-8 text: {error}") from None
            self.require("essay_path", n_words > 0, "must be a text with words")
        super().__post_init__()

    @property
    def slices(self) -> Mapping[str, int]:
        return {"length": self.length, "needles": self.num_needle_k * self.num_needle_v}

    @property
    def noise_at_once(self) -> int:
        """Initial estimate of the amount of noise that fits; for an essay, in words."""
        return self.length if self.type_haystack == "essay" else super().noise_at_once

    def text(self, rng: np.random.Generator, n_noise: int) -> Text:
        """Makes needles in random order among `n_noise` lines, or words of the essay."""
        keys: list[str] = []
        while len(keys) < self.num_needle_k:
            key = _needle_part(rng, self.type_needle_k)
            keys += [] if key in keys else [key]
        pairs = [(key, _needle_part(rng, self.type_needle_v)) for key in keys for _ in range(self.num_needle_v)]
        pairs = [pairs[i] for i in rng.permutation(len(pairs))]
        template = f"One of the special magic {self.type_needle_v} for {{}} is: {{}}."
        needles = [template.format(*pair) for pair in pairs]
        places = rng.random(len(needles))
        match self.type_haystack:
            case "repeat":
                context = "\n".join(_scattered(places, needles, [NOISE] * n_noise))
            case "essay":
                words = " ".join(itertools.islice(itertools.cycle(_words_of(self.essay_path)), n_noise))
                sentences = re.split(r"(?<=[.!?]) ", words) if words else []
                context = " ".join(_scattered(places, needles, sentences))
            case "needle":  # with other keys than the question's
                others: list[str] = []
                while len(others) < n_noise:
                    key = _needle_part(rng, self.type_needle_k)
                    value = _needle_part(rng, self.type_needle_v)
                    others += [] if key in keys else [template.format(key, value)]
                context = "\n".join(_scattered(places, needles, others))
        asked = keys[: self.num_needle_q]
        several = len(asked) * self.num_needle_v > 1
        what = self.type_needle_v if several else self.type_needle_v.removesuffix("s")
        one = asked[0] if len(asked) == 1 else f"{', '.join(asked[:-1])}, and {asked[-1]}"
        about = f"special magic {what} for {one} mentioned in the provided text"
        begin = "Some special magic {} are" if several else "A special magic {} is"
        question = f"What {'are all' if several else 'is'} the {about}? The {about} {'are' if several else 'is'}"
        intro = f"{begin.format(what)} hidden within the following text."
        memorize = f"Make sure to memorize it. I will quiz you about the {what} afterwards."
        answer = ", ".join(value for word in asked for key, value in pairs if key == word)
        return Text("\n".join([f"{intro} {memorize}", context, question]), f" {answer}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class VariableTrackingConfig(TextTask):
    """Chains of assignments: the question asks for the variables of the first chain."""

    num_chains: PositiveInt = 1
    """Chains, each with its own number."""
    num_hops: PositiveInt = 4
    """Variables of a chain after its first one."""

    @property
    def slices(self) -> Mapping[str, int]:
        return {"length": self.length, "chains": self.num_chains, "hops": self.num_hops}

    def text(self, rng: np.random.Generator, n_noise: int) -> Text:
        """Makes chains, each in its order, among repetitions of the noise."""
        n = self.num_hops + 1
        names: list[str] = []
        while len(names) < self.num_chains * n:
            name = "".join(chr(ord("A") + i) for i in rng.integers(26, size=5))
            names += [] if name in names else [name]
        numbers = 10_000 + rng.choice(90_000, self.num_chains, replace=False)
        chains = []
        for c in range(self.num_chains):
            chain = names[c * n : (c + 1) * n]
            links = [f"VAR {new} = VAR {old}" for old, new in itertools.pairwise(chain)]
            chains.append([f"VAR {chain[0]} = {numbers[c]}", *links])
        whose = rng.permutation(np.repeat(np.arange(self.num_chains), n))
        lines = _scattered(rng.random(len(whose)), [chains[c].pop(0) for c in whose], [NOISE] * n_noise)
        intro = "Memorize and track the chain(s) of variable assignment hidden in the following text.\n"
        question = f"Question: Find all variables that are assigned the value {numbers[0]} in the text above."
        found = "Answer: According to the chain(s) of variable assignment in the text above,"
        end = f"{question} {found} {n} variables are assigned the value {numbers[0]}, they are:"
        return Text("\n".join([intro, *lines, end]), f" {' '.join(names[:n])}")


def _scattered(places: np.ndarray, lines: Sequence[str], noise: Sequence[str]) -> list[str]:
    """Inserts the lines, in order, among lines of noise, at positions drawn from [0, 1)."""
    result = list(noise)
    indices = np.sort((places * (len(noise) + 1)).astype(int))
    for index, line in reversed(list(zip(indices.tolist(), lines, strict=True))):
        result.insert(index, line)
    return result


@functools.cache
def _words_of(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").split()


def _needle_part(rng: np.random.Generator, kind: NeedleType) -> str:
    match kind:
        case "numbers":
            return str(rng.integers(10**6, 10**7))
        case "words":
            return f"{rng.choice(ADJECTIVES.split())}-{rng.choice(NOUNS.split())}"
        case "uuids":
            return str(uuid.UUID(bytes=rng.bytes(16), version=4))


def _number(rng: np.random.Generator) -> str:
    """Draws a telephone number, such as `555-123-4567`."""
    return "-".join("".join(map(str, rng.integers(10, size=n))) for n in (3, 3, 4))
