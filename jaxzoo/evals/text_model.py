"""A language model and its tokenizer as text in, numbers and text out, in batches of few shapes.

What every evaluation on text needs: log-likelihoods of continuations, log-likelihoods of whole texts, and greedy
continuations. Rows of a batch differ in length. For scores they are padded on the right, which changes nothing in a
causal model; prompts of continuations are read in chunks without padding (`jaxzoo.generation.prompts`).

Texts longer than the model's window lose their beginning (left truncation), and `TextModel.requests` counts them.
No end-of-text token is put before a text, but where there is nothing else to condition on.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int32, Integer

from jaxzoo.array_typing import Array, Bool, Float, Int
from jaxzoo.data.tokenizer import Tokenizer
from jaxzoo.data.tokens.text_output import TextOutput
from jaxzoo.generation import Generation, Sampling
from jaxzoo.generation.generate import cache_capacity
from jaxzoo.models.blueprint import Blueprint, Variables, make_blueprint, split_variables
from jaxzoo.models.language_model import LanguageModel, LanguageModelConfig

HEAD_BLOCK = 32
"""Positions of a row whose logits are in memory at once."""

Report = Callable[[str, int, int], None]
"""Gets what is being done, how many requests are done and how many there are, after every batch."""


class Likelihood(NamedTuple):
    """How likely the model finds a text, given the one before it."""

    log_prob: float
    """Sum over its tokens, natural logarithm."""
    is_greedy: bool
    """Whether each token is the likeliest (the lowest id among equals)."""


class Window(NamedTuple):
    """A part of a text that the model reads at once, to score its end."""

    tokens: Int32[np.ndarray, "t"]
    """All but the last are read; at most one more than the model's window."""
    n_scored: int
    """Tokens at the end that are scored."""


class Requests(NamedTuple):
    """How much of what was asked had to be cut."""

    total: int
    """Requests so far, those of whole texts aside: they are cut into windows, and lose nothing."""
    truncated: int
    """Requests that lost their beginning."""


class TextModel:
    """Scores and continues texts.

    Attributes:
      requests: how many there were, and how many lost their beginning.
      max_length: most tokens that the model reads at once: `max_length` of its config, and `max_positions` at most.

    Args:
      model: a language model of causal mixers, on one device.
      tokenizer: what made the tokens that it was trained on.
      batch_size: rows of every batch; the last one is filled up.
      report: told of the progress.

    Raises:
      ValueError: a mixer is not causal.
    """

    def __init__(
        self, model: LanguageModel, tokenizer: Tokenizer, *, batch_size: int = 8, report: Report | None = None
    ):
        for index, layer in enumerate(model.config.layers):
            if not layer.capabilities.causal:
                name = type(layer).__name__
                raise ValueError(f"layer {index}: {name} sees the future; only causal models are evaluated on text")
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size} must be positive")
        self.max_length: int = min(model.config.max_length, model.config.max_positions or model.config.max_length)
        self.requests: Requests = Requests(0, 0)
        self._flat, self._tokenizer, self._batch_size = model.unstacked(), tokenizer, batch_size
        self._report = report or (lambda what, done, total: None)

    def log_likelihoods(self, pairs: Sequence[tuple[str, str]]) -> list[Likelihood]:
        """Log-likelihood of each continuation after its context.

        Spaces at the end of the context count to the continuation, and the two are encoded together, as lm_eval does.
        Nothing but the newest `max_length` tokens before a token is read. A context without tokens is end-of-text.

        Args:
          pairs: context and continuation; both may be empty.
        """
        encoded = [self._encode(*pair) for pair in pairs]
        self._count([len(context) + len(continuation) - 1 > self.max_length for context, continuation in encoded])
        return self._score("scored", encoded)

    def text_log_likelihoods(self, texts: Sequence[str]) -> list[float]:
        """Log-likelihood of each text as a document: every token once, given the newest `max_length` before it at most.

        A text is cut into windows that end every `max_length` tokens; the last one reaches back over the one before.
        """
        start = np.array([self._tokenizer.end_of_text], np.int32)
        encoded = [(start, self._tokenizer.encode(text).astype(np.int32)) for text in texts]
        return [score.log_prob for score in self._score("texts scored", encoded)]

    def continuations(self, prompts: Sequence[str], *, max_tokens: int, stops: Sequence[str] = ()) -> list[str]:
        """The likeliest next token again and again, until a stop string, end-of-text, or `max_tokens`.

        The stop string is left out. A prompt keeps its newest `max_length - max_tokens` tokens, and at least one.

        Raises:
          ValueError: a mixer does not stream; `max_tokens` do not fit into learned positions; a stop string is empty.
        """
        encoded = [self._tokenizer.encode(prompt).astype(np.int32) for prompt in prompts]
        encoded = [ids if len(ids) else np.array([self._tokenizer.end_of_text], np.int32) for ids in encoded]
        room = max(self.max_length - max_tokens, 1)
        self._count([len(ids) > room for ids in encoded])
        texts = [""] * len(prompts)
        for rows in self._batches("continued", [len(ids) for ids in encoded]):
            batch = self._continue([encoded[row][-room:] for row in rows], max_tokens, stops)
            for row, text in zip(rows, batch, strict=True):
                texts[row] = text
        return texts

    def _encode(self, context: str, continuation: str) -> tuple[Int32[np.ndarray, "t"], Int32[np.ndarray, "t"]]:
        before = context.rstrip()
        ids = self._tokenizer.encode(before).astype(np.int32)
        whole = self._tokenizer.encode(context + continuation).astype(np.int32)
        return (ids if len(ids) else np.array([self._tokenizer.end_of_text], np.int32)), whole[len(ids) :]

    def _count(self, truncated: Sequence[bool]) -> None:
        self.requests = Requests(self.requests.total + len(truncated), self.requests.truncated + sum(truncated))

    def _score(self, what: str, encoded: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[Likelihood]:
        owners, parts = [], []
        for owner, (context, continuation) in enumerate(encoded):
            for window in windows(context, continuation, self.max_length):
                owners.append(owner)
                parts.append(window)
        log_probs, is_greedy = np.zeros(len(encoded)), np.ones(len(encoded), bool)
        for rows in self._batches(what, [len(window.tokens) for window in parts]):
            sums, greedy = self._score_batch([parts[row] for row in rows])
            for row, log_prob, best in zip(rows, sums, greedy, strict=False):
                log_probs[owners[row]] += log_prob
                is_greedy[owners[row]] &= best
        return [Likelihood(float(log_prob), bool(best)) for log_prob, best in zip(log_probs, is_greedy, strict=True)]

    def _score_batch(self, parts: Sequence[Window]) -> tuple[np.ndarray, np.ndarray]:
        length = min(cache_capacity(max(len(part.tokens) - 1 for part in parts)), self.max_length)
        tokens = np.zeros((2, self._batch_size, length), np.int32)
        is_scored = np.zeros((self._batch_size, length), bool)
        for row, part in enumerate(parts):
            n = len(part.tokens) - 1
            tokens[0, row, :n], tokens[1, row, :n] = part.tokens[:-1], part.tokens[1:]
            is_scored[row, n - part.n_scored : n] = True
        sums, greedy = score_batch(
            self._flat.config,
            split_variables(self._flat),
            jnp.asarray(tokens[0]),
            jnp.asarray(tokens[1]),
            jnp.asarray(is_scored),
            n_ids=self._tokenizer.vocab_size,
        )
        return np.asarray(sums, np.float64), np.asarray(greedy)

    def _continue(self, prompts: Sequence[np.ndarray], max_tokens: int, stops: Sequence[str]) -> list[str]:
        filler = [np.array([self._tokenizer.end_of_text], np.int32)] * (self._batch_size - len(prompts))
        generation = Generation(
            self._flat,
            [*prompts, *filler],
            max_tokens=max_tokens,
            sampling=Sampling(temperature=0.0, n_ids=self._tokenizer.vocab_size),
            stop_tokens=(self._tokenizer.end_of_text,),
        )
        outputs = [TextOutput(self._tokenizer, stops) for _ in prompts]
        for row in range(len(prompts), self._batch_size):
            generation.stop(row)
        texts = [""] * len(prompts)
        for block in generation:
            for row, output in enumerate(outputs):
                texts[row] += output.push(block[row])
                if output.ended_by is not None:
                    generation.stop(row)
        return [text + output.finish() for text, output in zip(texts, outputs, strict=True)]

    def _batches(self, what: str, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Rows of similar lengths, the longest first, so that what does not fit into memory fails at once."""
        order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
        for start in range(0, len(order), self._batch_size):
            yield order[start : start + self._batch_size]
            self._report(what, min(start + self._batch_size, len(order)), len(order))


def windows(
    context: Integer[np.ndarray, "t"], continuation: Integer[np.ndarray, "t"], max_length: int
) -> Iterable[Window]:
    """Windows that score every token of the continuation once, each with as much before it as fits.

    Args:
      context: at least one token.
      continuation: any number.
      max_length: tokens that the model reads at once.
    """
    whole = np.concatenate([context, continuation])
    for done in range(len(context), len(whole), max_length):
        end = min(done + max_length, len(whole))
        yield Window(whole[max(end - max_length - 1, 0) : end], end - done)


@functools.partial(jax.jit, static_argnames=("config", "n_ids"))
def score_batch(
    config: LanguageModelConfig,
    variables: Variables,
    tokens: Int[Array, "b t"],
    targets: Int[Array, "b t"],
    is_scored: Bool[Array, "b t"],
    *,
    n_ids: int,
) -> tuple[Float[Array, "b"], Bool[Array, "b"]]:
    """Sum of the log-probabilities of the scored targets of each row, float32, and whether all of them are greedy.

    Probabilities are over the ids of the tokenizer alone: `n_ids` of the rows of the vocabulary. Compiled for model,
    batch size and length.

    Args:
      config: the model, as its variables are: layer by layer.
      variables: those of `LanguageModel.unstacked`.
      tokens: padded on the right with any id.
      targets: the next token at every position.
      is_scored: where.
      n_ids: ids of the tokenizer.
    """
    model = _blueprint(config).model(variables)
    features = model.features(tokens)
    n_blocks = -(-tokens.shape[1] // HEAD_BLOCK)
    fill = n_blocks * HEAD_BLOCK - tokens.shape[1]

    def blocks(x: Array) -> Array:
        padded = jnp.pad(x, ((0, 0), (0, fill), *((0, 0),) * (x.ndim - 2)))
        return jnp.moveaxis(padded.reshape(x.shape[0], n_blocks, HEAD_BLOCK, *x.shape[2:]), 1, 0)

    def score(block: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        features, targets, is_scored = block
        logits = model.logits(features)[..., :n_ids].astype(jnp.float32)
        log_probs = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1)[..., 0]
        is_best = jnp.argmax(logits, axis=-1) == targets
        return jnp.where(is_scored, log_probs, 0).sum(axis=1), jnp.all(is_best | ~is_scored, axis=1)

    sums, greedy = jax.lax.map(score, (blocks(features), blocks(targets), blocks(is_scored)))
    return sums.sum(axis=0), greedy.all(axis=0)


@functools.cache
def _blueprint(config: LanguageModelConfig) -> Blueprint:
    return make_blueprint(config, scanned=False)
