"""Evaluation of a language model on text, in batches of few shapes.

Computes log-likelihoods of continuations and of whole texts, and greedy continuations. Rows of a batch may differ in
length. For scores they are padded on the right, which does not affect a causal model; prompts of continuations are read
in chunks without padding (`jaxzoo.generation.prompts`).

Texts longer than the model's window lose their beginning (left truncation); `TextModel.requests` counts them. Begin
tokens of the tokenizer's template precede every text. Without any, a text without context follows its begin token or
end-of-text, as in lm_eval.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int32, Integer

from jaxzoo.data.tokenizer import Tokenizer
from jaxzoo.data.tokens.text_output import TextOutput
from jaxzoo.generation import Generation, Sampling
from jaxzoo.generation.generate import cache_capacity
from jaxzoo.models.blueprint import Variables, make_blueprint, split_variables
from jaxzoo.models.language_model import LanguageModel, LanguageModelConfig
from jaxzoo.train.memory import rows_that_fit
from jaxzoo.train.session import CompiledStep
from jaxzoo.utils.array_typing import Array, Bool, Float, Int

HEAD_BLOCK = 32
"""Number of positions of a row whose logits are in memory at once."""

Report = Callable[[str, int, int], None]
"""Receives the current work, the number of finished requests and of all, after every batch."""


class Likelihood(NamedTuple):
    """Likelihood of a text, given the one before it."""

    log_prob: float
    """Sum over its tokens, natural logarithm."""
    is_greedy: bool
    """Whether each token is the likeliest (the lowest id among equals)."""


class Window(NamedTuple):
    """Part of a text that the model reads at once, to score its end."""

    tokens: Int32[np.ndarray, "t"]
    """Tokens, of which all except the last are read; at most one more than the model's window."""
    n_scored: int
    """Number of scored tokens, at the end."""


class Requests(NamedTuple):
    total: int
    """Requests so far, without those of whole texts, which lose nothing."""
    truncated: int
    """Requests that lost their beginning."""


class TextModel:
    """Scores and continues texts.

    Attributes:
      requests: number of requests, and of those that lost their beginning.
      max_length: most tokens that the model reads at once: `max_length` of its config, at most `max_positions`.
      start: ids that a text without context follows.

    Args:
      model: a language model of causal mixers, on one device.
      tokenizer: tokenizer that it was trained with.
      batch_size: rows of every batch; the last one is padded.
      report: receives progress.

    Raises `ValueError` if a mixer is not causal.
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
        self._flat = model.unstacked()
        self._tokenizer = tokenizer
        self._batch_size = batch_size
        self._begin = np.array(tokenizer.begin, np.int32)
        self.start: np.ndarray = self._begin if tokenizer.begin else np.array([tokenizer.begin_of_text], np.int32)
        self._variables = split_variables(self._flat)
        self._score_step = CompiledStep(jax.jit(functools.partial(score_batch, self._flat.config)))
        self._report = report or (lambda what, done, total: None)

    def log_likelihoods(self, pairs: Sequence[tuple[str, str]]) -> list[Likelihood]:
        """Returns the log-likelihood of each continuation after its context; both may be empty. Trailing spaces of the
        context belong to the continuation, and the two are encoded together, as in lm_eval. At most the last
        `max_length` tokens before a token are read."""
        encoded = []
        for context, continuation in pairs:
            before = self._encode(context.rstrip())
            whole = self._encode(context + continuation)
            read = np.concatenate([self._begin, before]) if len(before) else self.start
            encoded.append((read, whole[len(before) :]))
        self._count([len(context) + len(continuation) - 1 > self.max_length for context, continuation in encoded])
        return self._score("scored", encoded)

    def text_log_likelihoods(self, texts: Sequence[str]) -> list[float]:
        """Returns the log-likelihood of each text as a document: every token once, given at most `max_length` before
        it. A text is cut into windows that end every `max_length` tokens; the last one overlaps the one before."""
        encoded = [(self.start, self._encode(text)) for text in texts]
        return [score.log_prob for score in self._score("texts scored", encoded)]

    def continuations(self, prompts: Sequence[str], *, max_tokens: int, stops: Sequence[str] = ()) -> list[str]:
        """Continues prompts greedily until a stop string (which is omitted), end-of-text, or `max_tokens`. A prompt
        keeps its last `max_length - max_tokens` tokens, at least one. Raises `ValueError` if a mixer does not stream,
        `max_tokens` do not fit into learned positions, or a stop string is empty."""
        prompted = [self._tokenizer.prompt(prompt).astype(np.int32) for prompt in prompts]
        encoded = [ids if len(ids) else self.start for ids in prompted]
        room = max(self.max_length - max_tokens, 1)
        self._count([len(ids) > room for ids in encoded])
        texts = [""] * len(prompts)
        for rows in self._batches("continued", [len(ids) for ids in encoded], self._batch_size):
            fillers = [self.start] * (self._batch_size - len(rows))
            generation = Generation(
                self._flat,
                [*(encoded[row][-room:] for row in rows), *fillers],
                max_tokens=max_tokens,
                sampling=Sampling(temperature=0.0, n_ids=self._tokenizer.vocab_size),
                stop_tokens=self._tokenizer.ends,
            )
            for i in range(len(rows), self._batch_size):
                generation.stop(i)
            outputs = [TextOutput(self._tokenizer, stops) for _ in rows]
            for block in generation:
                for i, (row, output) in enumerate(zip(rows, outputs, strict=True)):
                    texts[row] += output.push(block[i])
                    if output.ended_by is not None:
                        generation.stop(i)
            for row, output in zip(rows, outputs, strict=True):
                texts[row] += output.finish()
        return texts

    def _encode(self, text: str) -> Int32[np.ndarray, "t"]:
        return self._tokenizer.encode(text).astype(np.int32)

    def _count(self, truncated: Sequence[bool]) -> None:
        self.requests = Requests(self.requests.total + len(truncated), self.requests.truncated + sum(truncated))

    def _score(self, what: str, encoded: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[Likelihood]:
        owners = []
        parts = []
        for owner, (context, continuation) in enumerate(encoded):
            for window in windows(context, continuation, self.max_length):
                owners.append(owner)
                parts.append(window)
        log_probs = np.zeros(len(encoded))
        is_greedy = np.ones(len(encoded), bool)
        lengths = [len(window.tokens) - 1 for window in parts]
        padded = [min(cache_capacity(length), self.max_length) for length in lengths]
        longest = functools.partial(self._program, max(padded, default=1))
        size = rows_that_fit(longest, self._batch_size, jax.devices()[:1])
        for rows in self._batches(what, lengths, size):
            shape = size, padded[rows[0]]
            tokens, targets, is_scored = np.zeros(shape, np.int32), np.zeros(shape, np.int32), np.zeros(shape, bool)
            for i, row in enumerate(rows):
                part = parts[row]
                n = len(parts[row].tokens) - 1
                tokens[i, :n] = part.tokens[:-1]
                targets[i, :n] = part.tokens[1:]
                is_scored[i, n - part.n_scored : n] = True
            batch = jax.tree.map(jnp.asarray, (tokens, targets, is_scored))
            sums, greedy = self._score_step(self._variables, batch)
            for row, log_prob, best in zip(rows, np.asarray(sums, np.float64), np.asarray(greedy), strict=False):
                log_probs[owners[row]] += log_prob
                is_greedy[owners[row]] &= best
        return [Likelihood(float(log_prob), bool(best)) for log_prob, best in zip(log_probs, is_greedy, strict=True)]

    def _program(self, length: int, rows: int) -> Any:
        """Compiled `score_batch` of a number of rows."""
        batch: Any = tuple(jax.ShapeDtypeStruct((rows, length), dtype) for dtype in (np.int32, np.int32, np.bool))
        return self._score_step.compile(self._variables, batch)

    def _batches(self, what: str, lengths: Sequence[int], size: int) -> Iterator[list[int]]:
        """Yields rows of similar lengths, longest first, so that insufficient memory shows at once."""
        order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
        for start in range(0, len(order), size):
            yield order[start : start + size]
            self._report(what, min(start + size, len(order)), len(order))


def windows(
    context: Integer[np.ndarray, "t"], continuation: Integer[np.ndarray, "t"], max_length: int
) -> Iterable[Window]:
    """Yields windows that score every token of the continuation once, each with as much context as fits. The context
    has at least one token; the model reads `max_length` at once."""
    whole = np.concatenate([context, continuation])
    for done in range(len(context), len(whole), max_length):
        end = min(done + max_length, len(whole))
        yield Window(whole[max(end - max_length - 1, 0) : end], end - done)


def score_batch(
    config: LanguageModelConfig,
    variables: Variables,
    batch: tuple[Int[Array, "b t"], Int[Array, "b t"], Bool[Array, "b t"]],
) -> tuple[Float[Array, "b"], Bool[Array, "b"]]:
    """Returns the sum of the log-probabilities of the scored targets of each row, float32, and whether all of them are
    greedy. Probabilities are over the ids that the model was trained with. `config` and `variables` are those of
    `LanguageModel.unstacked`; `batch`: tokens, targets and which of them are scored, padded on the right with any id.
    """
    tokens, targets, is_scored = batch
    model = make_blueprint(config, scanned=False).model(variables)
    features = model.features(tokens)
    n_blocks = -(-tokens.shape[1] // HEAD_BLOCK)
    fill = n_blocks * HEAD_BLOCK - tokens.shape[1]

    def blocks(x: Array) -> Array:
        padded = jnp.pad(x, ((0, 0), (0, fill), *((0, 0),) * (x.ndim - 2)))
        return jnp.moveaxis(padded.reshape(x.shape[0], n_blocks, HEAD_BLOCK, *x.shape[2:]), 1, 0)

    def score(block: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        features, targets, is_scored = block
        logits = model.logits(features)[..., : config.vocab_size].astype(jnp.float32)
        log_probs = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1)[..., 0]
        is_best = jnp.argmax(logits, axis=-1) == targets
        return jnp.where(is_scored, log_probs, 0).sum(axis=1), jnp.all(is_best | ~is_scored, axis=1)

    sums, greedy = jax.lax.map(score, (blocks(features), blocks(targets), blocks(is_scored)))
    return sums.sum(axis=0), greedy.all(axis=0)
