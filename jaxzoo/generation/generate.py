"""Generation from prompts of token ids, block by block or all at once."""

import math
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int32

from jaxzoo.generation.decode import NO_TOKEN, NOT_FINITE, Rules, decode_block, first_rows, read_chunk, row_keys
from jaxzoo.generation.prompts import CHUNKS, Prompts, TokenIds, check_prompts
from jaxzoo.generation.sampling import Sampling, knobs
from jaxzoo.generation.weights import cast_weights
from jaxzoo.models.blueprint import Variables, split_variables
from jaxzoo.models.language_model import LanguageModel, LanguageModelConfig
from jaxzoo.utils.devices import memory_of_each
from pallas_kernels.dispatch import may_run_on

BLOCK_SIZE = 16
"""Decode steps between two checks by the host."""

TOKENS_AT_ONCE, MAX_CHUNK = 16384, 8192
"""Most tokens of the chunks of a batch on an accelerator, if these are longer than 512 tokens, and of one of them."""

MIN_CAPACITY = 64
"""Smallest capacity of key-value caches."""

NewTokens = list[Int32[np.ndarray, "t"]]
"""New tokens of each row."""


class Generation:
    """Iterator over blocks of new tokens that continue a batch of prompts.

    A row's tokens are a function of model, prompt, sampling, seed and the row's number, up to rounding: they do not
    depend on the other rows or on the block size. Generation can be continued: passing the text so far as the prompt
    gives the same continuation. Only the key-value caches of full attention, which are allocated for both at the start,
    grow with prompts and new tokens. Stacked layers are copied out of their stacks. Runs on the devices of the
    parameters; on a mesh, inside `jax.set_mesh`. Rows whose states exceed the memory wait for the rows before them.

    Attributes:
      lengths: tokens of each prompt.
      done: which rows are complete.

    Args:
      model: a language model of causal mixers.
      prompts: non-empty token ids of each row.
      max_tokens: most new tokens of a row.
      sampling: sampling settings.
      seed: seed of all draws, in `[0, 2^32)`.
      stop_tokens: a row is complete after any of these.
      row_numbers: in `[0, 2^32)`; with the seed they determine the draws of each row, so that a batch may be split;
        None: 0, 1, 2, ...
      block_size: decode steps of a block. The first may give a row up to 7 tokens fewer.

    Raises `ValueError` if an argument is out of range, a prompt is empty or outside the vocabulary, the model cannot
    stream or answers no tokens, or prompt and new tokens exceed its learned positions.
    """

    def __init__(
        self,
        model: LanguageModel,
        prompts: Sequence[TokenIds],
        *,
        max_tokens: int,
        sampling: Sampling = Sampling(),  # noqa: B008 a frozen value
        seed: int = 0,
        stop_tokens: Sequence[int] = (),
        row_numbers: Sequence[int] | None = None,
        block_size: int = BLOCK_SIZE,
    ):
        for field, answers in (("decode_last", "the tokens that it has read"), ("pair_values", "values, not tokens")):
            if value := getattr(model.config, field):  # an autoencoder, or a model that reads pairs
                raise ValueError(
                    f"LanguageModelConfig.{field}={value}: the model answers {answers}; it cannot generate"
                )
        if prefix := model.config.prefix_length:
            raise ValueError(
                f"LanguageModelConfig.prefix_length={prefix}: generation reads prompts in chunks, and a prefix must be "
                "read at once; call prefill and step"
            )
        self._prompts = check_prompts(prompts, n_ids=model.config.vocab_size)
        numbers = range(len(prompts)) if row_numbers is None else row_numbers
        _check("max_tokens", max_tokens, 1 <= max_tokens < 2**30, "must be in [1, 2^30)")
        _check("seed", seed, 0 <= seed < 2**32, "must be in [0, 2^32)")
        _check("block_size", block_size, block_size >= 1, "must be positive")
        _check("row_numbers", numbers, len(numbers) == len(prompts), f"must be one per prompt, {len(prompts)}")
        _check("row_numbers", numbers, all(0 <= number < 2**32 for number in numbers), "must be in [0, 2^32)")
        are_ids = all(token == int(token) and abs(token) < 2**31 for token in stop_tokens)
        _check("stop_tokens", stop_tokens, are_ids, "must be token ids")
        self.lengths: np.ndarray = self._prompts.lengths
        n_tokens = int(self.lengths.max()) + max_tokens
        learned = model.config.max_positions
        if learned is not None and n_tokens > learned:
            raise ValueError(
                f"prompt and max_tokens are {n_tokens} tokens together and must be at most the {learned} learned "
                "positions of the model; shorten the prompt, or ask for fewer tokens"
            )
        self._config, self._variables = cast_weights(model.config, split_variables(model.unstacked()))
        self._capacity = cache_capacity(n_tokens) if self._config.state_grows else None
        self._at_once = rows_of_memory(self._config, self._variables, self._capacity)
        _check("max_tokens", max_tokens, self._at_once > 0, f"makes a state of {n_tokens} tokens, beyond the memory")
        self._keys = row_keys(seed, jnp.asarray(numbers, jnp.uint32))
        self._constants = {
            "knobs": knobs(sampling),
            "max_tokens": jnp.int32(max_tokens),
            "stop_tokens": jnp.asarray(stop_tokens, jnp.int32),
        }
        self._block_size = block_size
        self.done: np.ndarray = np.zeros(len(prompts), bool)
        self._begin(0)

    def _begin(self, start: int) -> None:
        """Makes the states of the rows from `start` on that fit into memory at once."""
        self._here = slice(start, min(start + self._at_once, len(self.done)))
        prompts = Prompts(self._prompts.rows[self._here])
        self._rows = first_rows(self._config, self._variables, len(prompts), self._capacity)
        self._chunks = prompts.chunks(largest_chunk(self._config, len(prompts)))
        keys = self._keys if len(prompts) == len(self.done) else self._keys[self._here]
        tail, tail_length = map(jnp.asarray, prompts.tail())
        self._rules = Rules(tail=tail, tail_length=tail_length, keys=keys, **self._constants)

    def read(self, report: Callable[[int], None] | None = None) -> int:
        """Reads the prompts except their last tokens, unless the first block has done so. `report` receives the number
        of tokens read so far, over all rows, after every chunk. Returns the tokens of the prompts in memory."""
        n_read, state = 0, self._rows.state
        for tokens, takes_part in self._chunks:
            state = read_chunk(self._config, self._variables, state, jnp.asarray(tokens), jnp.asarray(takes_part))
            n_read += tokens.shape[1] * int(takes_part.sum())
            if report:
                jax.block_until_ready(state.position)
                report(n_read)
        self._rows = self._rows._replace(state=state)
        return int(self.lengths[self._here].sum())

    def stop(self, row: int) -> None:
        """Completes a row."""
        self.done[row] = True

    def __iter__(self) -> Iterator[NewTokens]:
        return self

    def __next__(self) -> NewTokens:
        """Returns the new tokens of each row; ends when all rows are complete. Raises `ValueError` if the model's
        logits are not finite."""
        while self.done[self._here].all():
            if self._here.stop == len(self.done):
                raise StopIteration
            self._begin(self._here.stop)
        self.read()
        stopped = jnp.asarray(self.done[self._here])
        self._rows, block = decode_block(
            self._config, self._variables, self._rows, stopped, self._rules, block_size=self._block_size
        )
        tokens, self.done[self._here] = np.asarray(block), np.asarray(self._rows.done)
        broken = self._here.start + np.flatnonzero((tokens == NOT_FINITE).any(axis=1))
        if broken.size:
            raise ValueError(f"prompts[{broken[0]}]: the model's logits are not finite; its training may have diverged")
        found: NewTokens = [np.zeros(0, np.int32)] * len(self.done)
        found[self._here] = [row[row != NO_TOKEN] for row in tokens]
        return found


def generate(
    model: LanguageModel,
    prompts: Sequence[TokenIds],
    *,
    max_tokens: int,
    sampling: Sampling = Sampling(),  # noqa: B008 a frozen value
    seed: int = 0,
    stop_tokens: Sequence[int] = (),
    row_numbers: Sequence[int] | None = None,
    block_size: int = BLOCK_SIZE,
) -> NewTokens:
    """Returns the new tokens of each prompt, without the prompt: all blocks of a `Generation`, with its arguments."""
    blocks = Generation(
        model,
        prompts,
        max_tokens=max_tokens,
        sampling=sampling,
        seed=seed,
        stop_tokens=stop_tokens,
        row_numbers=row_numbers,
        block_size=block_size,
    )
    return [np.concatenate(row) for row in zip(*blocks, strict=True)]


def rows_of_memory(config: LanguageModelConfig, variables: Variables, capacity: int | None) -> int:
    """Rows whose states fit into half of a device's memory twice: a step makes new ones of them."""
    state = jax.eval_shape(lambda: first_rows(config, variables, 1, capacity))
    row = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
    return int(min(memory_of_each(jax.devices()[:1]), 2.0**60) // (4 * row))


def largest_chunk(config: LanguageModelConfig, batch_size: int) -> int:
    """Tokens of the largest chunk of prompts: 512 on CPUs and for growing states, whose scores would grow with it. On
    accelerators a small batch reads more at once, up to 8,192 tokens: memory and time depend on the product."""
    size = CHUNKS[0]
    if may_run_on("cpu") or config.state_grows:
        return size
    while size < MAX_CHUNK and 2 * size * batch_size <= TOKENS_AT_ONCE:
        size *= 2
    return size


def cache_capacity(n_tokens: int) -> int:
    """Returns the capacity for `n_tokens`: 64, 96, 128, 192, 256, ..., so that few programs are compiled."""
    power = 2 ** max(math.ceil(math.log2(n_tokens)), MIN_CAPACITY.bit_length() - 1)
    return 3 * power // 4 if MIN_CAPACITY <= n_tokens <= 3 * power // 4 else power


def _check(name: str, value: object, holds: bool, rule: str) -> None:
    if not holds:
        raise ValueError(f"{name}={value!r} {rule}")
