"""Exact match and F1 of short answers (SQuAD, Rajpurkar et al. 2016, sec. 6.1), which SuperGLUE's ReCoRD uses too.

lm_eval's code for the task `record` imports only these two functions from transformers. The context manager
`in_place_of_transformers` provides them without transformers.
"""

import collections
import contextlib
import re
import string
import sys
import types
from collections.abc import Iterator

_MODULE = "transformers.data.metrics.squad_metrics"


def words(answer: str) -> list[str]:
    """Returns the words of an answer in lower case, without punctuation and articles."""
    bare = answer.lower().translate(str.maketrans("", "", string.punctuation))
    return re.sub(r"\b(a|an|the)\b", " ", bare).split()


def compute_exact(truth: str, answer: str) -> int:
    """Returns 1 if both have the same words in the same order, else 0."""
    return int(words(truth) == words(answer))


def compute_f1(truth: str, answer: str) -> float:
    """Returns the harmonic mean of precision and recall of words, counted with repeats; equality if a side has none."""
    a = words(truth)
    b = words(answer)
    if not a or not b:
        return float(a == b)
    return 2 * (collections.Counter(a) & collections.Counter(b)).total() / (len(a) + len(b))


class _Module(types.ModuleType):
    """Stand-in module: other names are classes without instances, since `datasets` looks up classes there."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


@contextlib.contextmanager
def in_place_of_transformers() -> Iterator[None]:
    """Replaces transformers by a module with these functions; transformers must not be imported."""
    parts = _MODULE.split(".")
    names = [".".join(parts[: i + 1]) for i in range(len(parts))]
    modules = {name: _Module(name) for name in names}
    for name, parent in zip(names[1:], names, strict=False):
        setattr(modules[parent], name.rpartition(".")[2], modules[name])
    vars(modules[_MODULE]).update(compute_exact=compute_exact, compute_f1=compute_f1)
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]
