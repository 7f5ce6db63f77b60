"""Prompts and responses in JSONL as training data: the loss counts only the tokens of responses.

    {"prompt": "Question: ...\\nAnswer:", "response": " ..."}

A row is the prompt, the response and end-of-text, then padding. Targets are the tokens of the response and the
end-of-text after it. A row that is too long loses the beginning of its prompt, and then the end of its response.
Without `valid_path`, one pair in twenty is for validation, by the hash of its text.
"""

import dataclasses
import glob
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxzoo.config.checked import NonNegativeInt, PositiveInt, Seed
from jaxzoo.config.json_files import parse_json
from jaxzoo.data.base import UNLABELLED, Batch, DataConfig
from jaxzoo.data.corpus.lines import read_lines
from jaxzoo.data.examples import ExampleData, is_held_out
from jaxzoo.data.tokenizer import Tokenizer
from jaxzoo.data.tokens.tokenizer_files import load_tokenizer

VALID_SHARE = 20


class Pair(NamedTuple):
    """Tokens of a prompt, and of its response with end-of-text."""

    prompt: np.ndarray
    response: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompletionsConfig(DataConfig):
    """Location of the pairs, and how they are read."""

    path: str
    """JSONL file, or a glob."""
    valid_path: str = ""
    """JSONL file or glob of the validation pairs; empty: one pair in twenty of `path`."""
    tokenizer_path: str = "bytes"
    """Tokenizer of the text: bytes, a tokenizer.json, or a directory that holds one."""
    length: PositiveInt = 512
    """Input tokens of a row."""
    prompt_field: str = "prompt"
    """Key of the prompt."""
    response_field: str = "response"
    """Key of the response."""
    begin: NonNegativeInt | None = None
    """Token before every prompt, such as a model's begin of text; None: none."""
    seed: Seed = 0
    """Seed of the order of the pairs."""

    def build(self, *, batch_size: int, valid_batch_size: int) -> "Completions":
        return Completions(self, batch_size=batch_size, valid_batch_size=valid_batch_size)

    def tokenizer(self) -> Tokenizer:
        return load_tokenizer(self.tokenizer_path)


class Completions(ExampleData):
    """`Dataset` of prompts and responses. Raises `ValueError` for an absent file, a line that is no pair, or fewer
    training pairs than rows per batch."""

    def __init__(self, config: CompletionsConfig, *, batch_size: int, valid_batch_size: int):
        texts = read_pairs(config.path, config)
        if config.valid_path:
            train = texts
            valid = read_pairs(config.valid_path, config)
        else:
            train = [each for each in texts if not is_held_out(repr(each), VALID_SHARE)]
            valid = [each for each in texts if is_held_out(repr(each), VALID_SHARE)]
        if len(train) < batch_size or not valid:
            raise ValueError(
                f"CompletionsConfig.path={config.path!r} has {len(train)} pairs to train and {len(valid)} to validate; "
                f"at least batch_size={batch_size} and 1 are needed; add some, or give valid_path"
            )
        sizes = {"batch_size": batch_size, "valid_batch_size": valid_batch_size}
        super().__init__(config, config.tokenizer(), [train, valid], **sizes)
        self._train = self._encode(train)
        self._scored = self._encode(valid)
        scored = np.concatenate([self._cut(pair).response for pair in self._scored])
        self.bytes_per_token: float | None = self._tokenizer.count_bytes(scored) / len(scored)
        cut = sum(len(pair.prompt) + len(pair.response) - 1 > config.length for pair in self._train)
        self.summary: str = f"pairs: train {len(train):,}, valid {len(valid):,}; {cut:,} of train are cut"

    def manifest(self) -> dict[str, Any]:
        return {"train": len(self._train), "valid": len(self._scored), "fingerprint": self.fingerprint}

    def _encode(self, texts: Sequence[tuple[str, str]]) -> list[Pair]:
        end = np.array([self._tokenizer.end_of_text], np.int32)
        begin = np.array([] if self.config.begin is None else [self.config.begin], np.int32)
        prompts, responses = (self._tokenizer.encode_batch(column) for column in zip(*texts, strict=True))
        return [
            Pair(
                np.concatenate([begin, p.astype(np.int32)]) if len(p) or len(begin) else end,
                np.concatenate([r.astype(np.int32), end]),
            )
            for p, r in zip(prompts, responses, strict=True)
        ]

    def _cut(self, pair: Pair) -> Pair:
        """Cuts a pair to the row's length; the last token of the response is a target only."""
        length = self.config.length
        prompt = pair.prompt[-max(1, length + 1 - len(pair.response)) :]
        return Pair(prompt, pair.response[: length + 1 - len(prompt)])

    def batch(self, examples: Sequence[Pair]) -> Batch:
        length = self.config.length
        tokens = np.full((len(examples), length), self._tokenizer.end_of_text, np.int32)
        targets = np.full((len(examples), length), UNLABELLED, np.int32)
        for row, (prompt, response) in enumerate(map(self._cut, examples)):
            inputs = np.concatenate([prompt, response[:-1]])
            tokens[row, : len(inputs)] = inputs
            targets[row, len(prompt) - 1 : len(inputs)] = response
        return Batch(tokens=jnp.asarray(tokens), targets=jnp.asarray(targets))


def read_pairs(path: str, config: CompletionsConfig) -> list[tuple[str, str]]:
    """Reads prompts and responses. Raises `ValueError` for an absent file, or a line without both fields as strings."""
    place = Path(path).expanduser()
    files = [str(place)] if place.is_file() else sorted(glob.glob(str(place), recursive=True))
    if not files:
        raise ValueError(f"CompletionsConfig.path={path!r} must be a JSONL file or a glob; no file was found")
    pairs = []
    fields = (config.prompt_field, config.response_field)
    for file in files:
        for number, line in enumerate(read_lines(Path(file)), 1):
            if line is not None and not line.strip():
                continue
            try:
                row = parse_json(line or b"", dict, where=file)
            except ValueError:
                row = {}
            prompt, response = (row.get(field) for field in fields)
            if not isinstance(prompt, str) or not isinstance(response, str) or not response:
                raise ValueError(
                    f"{file}:{number}: must be an object with texts {fields[0]} and {fields[1]}, such as "
                    f'{{"{fields[0]}": "2+2=", "{fields[1]}": "4"}}; mend the line, or set --data.prompt-field'
                )
            pairs.append((prompt, response))
    return pairs
