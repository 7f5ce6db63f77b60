"""Every task at a readable size, for `jaxzoo tasks`. Nothing here imports JAX before `build`."""

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from jaxzoo.tasks.base import TaskConfig


class Demo(NamedTuple):
    """Task with small defaults. Its flags are the parameters of its config or preset."""

    summary: str
    target: "str | Callable[..., TaskConfig]"
    """Config class or preset function, or its name and module in `jaxzoo.tasks`, such as `ngram_recall.nar`."""
    sizes: Mapping[str, int | str]
    """Defaults that replace the target's."""

    @property
    def _target(self) -> "Callable[..., TaskConfig]":
        if not isinstance(self.target, str):
            return self.target
        module, name = self.target.split(".")
        return getattr(importlib.import_module(f"jaxzoo.tasks.{module}"), name)

    @property
    def build(self) -> "Callable[..., TaskConfig]":
        return functools.partial(self._target, **self.sizes)

    def full_size(self) -> "TaskConfig":
        """Returns the task with the target's own defaults."""
        return self._target()

    @property
    def flags(self) -> list[str]:
        return [f"--{name.replace('_', '-')}" for name in inspect.signature(self.build).parameters]


DEMOS = {
    "mqar": Demo(
        "Multi-query associative recall: at each repeated key, the value that followed it.",
        "mqar.preset",
        {"length": 16, "n_pairs": 2, "vocab_size": 64},
    ),
    "ar": Demo(
        "Associative recall: the last token is a key of the context; the answer is its value.",
        "ngram_recall.ar",
        {"length": 11, "vocab_size": 32},
    ),
    "nar": Demo(
        "Associative recall of N-grams: the last tokens are a gram of the context; the answer is its value.",
        "ngram_recall.nar",
        {"length": 14, "vocab_size": 32},
    ),
    "mqnar": Demo(
        'Multi-query recall of N-grams: at each queried gram its value, or "no match".',
        "ngram_recall.mqnar",
        {"length": 29, "n_pairs": 4, "vocab_size": 32},
    ),
    "selective_copy": Demo(
        "Selective copying: after the separator the signals of the prompt, in order and without the noise.",
        "selective_copy.SelectiveCopyConfig",
        {"length": 15, "n_signals": 4, "n_noise": 8, "vocab_size": 17},
    ),
    "forgetting_mqar": Demo(
        "MQAR with keys that are bound again: at each queried key, its last value.",
        "forgetting_mqar.ForgettingMQARConfig",
        {"length": 20, "n_pairs": 4, "n_updates": 2, "vocab_size": 64, "fillers": "zero"},
    ),
    "compositional_mqar": Demo(
        "MQAR with pairs of tokens as keys: at each repeated pair, its value, which neither token alone determines.",
        "compositional_mqar.CompositionalMQARConfig",
        {"length": 24, "n_pairs": 4, "vocab_size": 60, "fillers": "zero"},
    ),
    "parity": Demo("Whether a string of bits has an odd number of ones.", "bit_strings.ParityConfig", {"length": 13}),
    "permutations": Demo(
        "The word problem of a symmetric group: after each permutation, the product of all so far.",
        "permutations.preset",
        {"n_objects": 3, "length": 12},
    ),
    "noisy_recall": Demo(
        "MAD's noisy recall: at each repeated key, its value, among noise tokens.",
        "mad.NoisyRecallConfig",
        {"length": 20, "vocab_size": 16, "noise_vocab_size": 8},
    ),
    "fuzzy_recall": Demo(
        "MAD's fuzzy recall: after each repeated key of several tokens, the tokens of its value.",
        "mad.FuzzyRecallConfig",
        {"length": 30, "vocab_size": 10, "k_motif_size": 2, "v_motif_size": 2},
    ),
    "memorization": Demo(
        "MAD's memorization: the value of each key, a fixed fact that no example contains.",
        "mad.MemorizationConfig",
        {"length": 12, "vocab_size": 16},
    ),
    "compression": Demo(
        "MAD's compression: every token, by a decoder that sees one vector and the position.",
        "mad.CompressionConfig",
        {"length": 12, "vocab_size": 8},
    ),
    "continuous_mqar": Demo(
        "MQAR whose pairs take one position, key and value side by side: at each key alone, its value.",
        "continuous_mqar.preset",
        {"n_pairs": 4, "n_passes": 2, "n_keys": 64, "n_values": 64},
    ),
    "phone_book": Demo(
        "A phone book as text, and one name that asks for its number.", "text_recall.PhoneBookConfig", {"length": 160}
    ),
    "needle_in_a_haystack": Demo(
        "RULER's needle in a haystack: the magic number of a word.", "text_recall.NeedleConfig", {"length": 480}
    ),
    "variable_tracking": Demo(
        "RULER's variable tracking: all variables that a chain of assignments gives one value.",
        "text_recall.VariableTrackingConfig",
        {"length": 560, "num_hops": 2},
    ),
    "majority": Demo(
        "Whether more than half of the bits of a string are ones.", "bit_strings.MajorityConfig", {"length": 14}
    ),
}
