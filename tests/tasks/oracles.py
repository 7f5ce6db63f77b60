"""Oracles: the tasks solved by reading. They see the tokens, never the targets, and share no code with the generators;
each is right at every labelled position, and has -100 where it has nothing to say."""

import functools
import itertools
import re

import numpy as np

from jaxzoo.data.base import UNLABELLED
from jaxzoo.tasks.bit_strings import END, BitStringConfig, ParityConfig
from jaxzoo.tasks.continuous_mqar import ContinuousMQARConfig
from jaxzoo.tasks.mad import CompressionConfig, MADConfig, MemorizationConfig
from jaxzoo.tasks.ngram_recall import FIRST_KEY, NO_MATCH, NGramRecallConfig
from jaxzoo.tasks.permutations import PermutationsConfig
from jaxzoo.tasks.selective_copy import SelectiveCopyConfig
from jaxzoo.tasks.slotted_recall import SlottedRecallConfig
from jaxzoo.tasks.text_recall import NeedleConfig, PhoneBookConfig, TextTask, VariableTrackingConfig


def oracle(tokens, config):
    """The answer at each position, int32 `(b, t)`."""
    solve = next(solve for kind, solve in ORACLES.items() if isinstance(config, kind))
    return solve(np.asarray(tokens), config)


def by_rows(read):
    """Makes an oracle of a function that solves one example: `read(tokens, config)` gives the answer at each position
    of a list of tokens."""

    @functools.wraps(read)
    def oracle(tokens, config):
        return np.array([read(row, config) for row in tokens.tolist()], np.int32)

    return oracle


@by_rows
def slotted_recall(example, config):
    """Remembers what followed each gram of the context last, and answers wherever a later token ends such a gram.

    It knows where the context ends; with `fillers="any"` it also answers fillers that make a gram, which have no label.
    """
    n, start = config.gram_size, config.context_length
    memory = {tuple(example[i : i + n]): example[i + n] for i in range(0, start, n + 1)}
    grams = [tuple(example[end - n : end]) for end in range(start + n, len(example) + 1)]
    return [UNLABELLED] * (start + n - 1) + [memory.get(gram, UNLABELLED) for gram in grams]


@by_rows
def ngram_recall(example, config):
    """Solves like `slotted_recall`; grams that are absent from the context have no match."""
    (said,) = slotted_recall(np.array([example]), config).tolist()
    for end in range(config.context_length + config.n_gram, len(example) + 1):
        gram = example[end - config.n_gram : end]
        if said[end - 1] == UNLABELLED and all(FIRST_KEY <= token < config.first_value for token in gram):
            said[end - 1] = NO_MATCH
    return said


@by_rows
def selective_copy(example, config):
    """Takes the signals out of the prompt, and repeats them after the separator."""
    n = config.prompt_length
    signals = [token for token in example[:n] if token >= config.first_signal]
    if config.repeats == "once":
        signals = list(dict.fromkeys(signals))
    return [UNLABELLED] * n + signals + [UNLABELLED] * (len(example) - n - len(signals))


@by_rows
def bit_strings(example, config):
    """Parity by a state of one bit, majority by counting ones against zeros."""
    said, lead, is_odd = [], 0, False
    for token in example:
        lead += {0: -1, 1: 1}.get(token, 0)
        is_odd ^= token == 1
        asked = config.cumulative or token == END
        said.append(int(is_odd if isinstance(config, ParityConfig) else lead > 0) if asked else UNLABELLED)
    return said


@by_rows
def permutations(example, config):
    """Moves objects: the number of the arrangement after each move."""
    arrangements, objects = list(itertools.permutations(range(config.n_objects))), list(range(config.n_objects))
    said = []
    for token in example:
        objects = [arrangements[token][place] for place in objects]
        said.append(arrangements.index(tuple(objects)))
    return said


@by_rows
def continuous_mqar(example, config):
    """Remembers the pairs, and answers every token without a value."""
    memory, said = {}, []
    for token in example:
        key, value = divmod(token, config.n_values + 1)
        if value:
            memory[key] = value - 1
        said.append(UNLABELLED if value else memory[key])
    return said


def compression(tokens, config):
    """Reads what the decoder does not see: the token at each position."""
    return np.asarray(tokens, np.int32)


def mad(tokens, config):
    """Remembers which value followed a run of key tokens. Of memorization it knows all facts."""
    said = np.full(tokens.shape, UNLABELLED, np.int32)
    if isinstance(config, MemorizationConfig):
        said[:, 1::2] = config.facts[tokens[:, ::2]]
        return said
    for row, example in enumerate(tokens.tolist()):
        memory, start = {}, 0
        while start < len(example):
            middle = _run(example, start, lambda token: token < config.n_keys)
            stop = _run(example, middle, lambda token: config.n_keys <= token < config.n_plain)
            key, value = tuple(example[start:middle]), example[middle:stop]
            if key in memory:
                answer = memory[key][: len(example) - middle + 1]
                said[row, middle - 1 : middle - 1 + len(answer)] = answer
            elif key:
                memory[key] = value
            start = max(stop, start + 1)
    return said


def _run(tokens, start, belongs):
    """First position from `start` whose token is outside `belongs`."""
    return next((i for i in range(start, len(tokens)) if not belongs(tokens[i])), len(tokens))


def text_recall(tokens, config):
    """Reads the text with regular expressions."""
    read = {PhoneBookConfig: _read_phone_book, NeedleConfig: _read_needles, VariableTrackingConfig: _read_variables}
    said = np.full(tokens.shape, UNLABELLED, np.int32)
    for row, example in enumerate(tokens):
        ids = example[example != config.padding]
        prompt, answer = read[type(config)](config.tokenizer.decode(ids))
        first, told = len(config.tokenizer.encode(prompt)) - 1, config.tokenizer.encode(answer)
        said[row, first : first + len(told)] = told
    return said


def _read_phone_book(text):
    """Prompt and answer."""
    prompt, name = re.findall(r"^(.*^The number of (\w+ \w+) is)", text, re.DOTALL | re.MULTILINE)[0]
    return (prompt, " " + re.findall(rf"^{name}: ([\d-]+)$", text, re.MULTILINE)[0])


def _read_needles(text):
    """Prompt and answer."""
    told = re.findall(r"special magic \w+ for (\S+) is: (\S+)\.", text)
    pattern = r"\? (The special magic \w+ for ([^?]+) mentioned in the provided text (?:are|is))"
    *_, question = re.finditer(pattern, text)
    asked = re.split(r",? and |, ", question[2])
    values = sorted((pair for pair in told if pair[0] in asked), key=lambda pair: asked.index(pair[0]))
    return (text[: question.end()], " " + ", ".join(value for _, value in values))


def _read_variables(text):
    """Prompt and answer."""
    end = re.search(r"variables are assigned the value (\d+), they are:", text)
    assert end
    known = {}
    for name, value in re.findall(r"VAR ([A-Z]+) = (?:VAR )?(\w+)", text[: end.start()]):
        known[name] = known.get(value, value)
    return (text[: end.end()], " " + " ".join(name for name, value in known.items() if value == end[1]))


ORACLES = {
    NGramRecallConfig: ngram_recall,
    SlottedRecallConfig: slotted_recall,
    SelectiveCopyConfig: selective_copy,
    BitStringConfig: bit_strings,
    PermutationsConfig: permutations,
    ContinuousMQARConfig: continuous_mqar,
    CompressionConfig: compression,
    MADConfig: mad,
    TextTask: text_recall,
}
"""Oracle of each task class; subclasses stand before their base."""
