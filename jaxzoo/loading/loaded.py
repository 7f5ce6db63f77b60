"""`jaxzoo.load`: a run or an exported model, ready to use in a program or a notebook."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxzoo.data.base import Batch, Dataset
from jaxzoo.data.tokenizer import Tokenizer
from jaxzoo.generation import Sampling, generate
from jaxzoo.loading.adapter_files import apply_adapters
from jaxzoo.loading.trained import Which, check_tokens, load_variables, read_run, stored_tokenizer, text_tokenizer
from jaxzoo.models.language_model import LanguageModel
from jaxzoo.train.config import RunConfig
from jaxzoo.train.metrics import Row, read_rows
from jaxzoo.utils.array_typing import Array, Float, Int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loaded:
    """A trained model with its config, tokenizer and metrics."""

    model: LanguageModel
    """The model, on the first device; `model(tokens)`, `model.prefill`, `model.step`."""
    config: RunConfig
    """Config of its training."""
    tokenizer: Tokenizer | None
    """Tokenizer of its text; None: it was trained on token ids, such as a recall task."""
    step: int
    """Number of updates in its training."""
    metrics: Sequence[Row]
    """Rows of the run's metrics.jsonl, oldest first; empty for an exported model."""

    def __call__(self, tokens: Int[Array, "b t"]) -> Float[Array, "b t vocab"]:
        """Logits of the next token at every position, float32, over the padded vocabulary."""
        return _logits(*nnx.split(self.model), jnp.asarray(tokens))

    def generate(
        self, prompts: str | Sequence[str] | Sequence[Sequence[int]], *, max_tokens: int = 100, **options: Any
    ) -> list[Any]:
        """Continues prompts.

        Args:
          prompts: texts, or for a model without tokenizer lists of token ids.
          max_tokens: most new tokens of a prompt.
          **options: fields of `Sampling` (temperature, top_k, top_p), and `seed`.

        Returns:
          The continuation of each prompt: a text, or an array of ids.

        Raises:
          ValueError: a prompt is a text, and the model has no tokenizer; or an unknown option.
        """
        fields = {field.name for field in dataclasses.fields(Sampling)}
        if unknown := sorted(options.keys() - fields - {"seed"}):
            raise ValueError(f"option {unknown[0]!r} must be one of {', '.join(sorted(fields))}, seed")
        fields &= options.keys()
        sampling = Sampling(**{name: options.pop(name) for name in fields})
        given: list[Any] = [prompts] if isinstance(prompts, str) else list(prompts)
        tokenizer = self.tokenizer
        if tokenizer is None:
            if any(isinstance(prompt, str) for prompt in given):
                raise ValueError("prompts: this model was trained on token ids, not on text; give lists of ids")
            return generate(self.model, given, max_tokens=max_tokens, sampling=sampling, **options)
        ends = tokenizer.ends
        ids = [tokenizer.prompt(text) if isinstance(text, str) else text for text in given]
        sampling = dataclasses.replace(sampling, n_ids=tokenizer.vocab_size)
        rows = generate(self.model, ids, max_tokens=max_tokens, sampling=sampling, stop_tokens=ends, **options)
        return [tokenizer.decode(row[~np.isin(row, ends)]) for row in rows]

    def data(self, batch_size: int = 8) -> Dataset:
        """The run's data: `.train()` is a stream of batches, `.valid()` has the validation sets."""
        return self.config.data.build(batch_size=batch_size, valid_batch_size=batch_size)

    def prompted(self, text: str) -> Batch:
        """Makes a batch of one row from a text; targets are the next tokens.

        Raises `ValueError` if the model has no tokenizer, or the text is shorter than two tokens.
        """
        if self.tokenizer is None:
            raise ValueError("prompt: this model was trained on token ids, not on text; take an example instead")
        ids = self.tokenizer.prompt(text).astype(np.int32)
        if len(ids) < 2:
            raise ValueError(f"prompt={text!r} must have at least two tokens")
        return Batch(tokens=jnp.asarray(ids[None, :-1]), targets=jnp.asarray(ids[None, 1:]))

    def example(self, number: int = 0) -> Batch:
        """Returns a row of the first validation set. Raises `ValueError` if there is no such row."""
        first = self.config.data.build(batch_size=1, valid_batch_size=1).valid()[0]
        if not 0 <= number < first.n_batches:
            raise ValueError(f"example={number} must be in [0, {first.n_batches}), the first validation set's rows")
        return first.batch(number)


@functools.partial(jax.jit, static_argnums=0)
def _logits(graph: nnx.GraphDef, variables: nnx.State, tokens: Int[Array, "b t"]) -> Float[Array, "b t vocab"]:
    return nnx.merge(graph, variables)(tokens)


def load(
    path: str | Path,
    checkpoint: Which = None,
    *,
    tokenizer: Tokenizer | None = None,
    adapters: str | Path | None = None,
    text: bool = False,
) -> Loaded:
    """Reads a trained model; nothing is written.

    Args:
      path: directory of a run, or a folder or .safetensors file of `jaxzoo export`.
      checkpoint: step of a checkpoint, "best", or None: the newest.
      tokenizer: tokenizer of its text; None: the one of its config.
      adapters: file of `jaxzoo export --adapters` to merge.
      text: refuses a model without a tokenizer, or trained on tokens of another one.

    Raises:
      ValueError: no such model, adapters of another model, or a config class that is not imported.
      OSError: a file cannot be read, or its checksum differs.
    """
    run, config = read_run(Path(path).expanduser())
    own = text_tokenizer(run, config, tokenizer) if text else tokenizer or stored_tokenizer(run, config)
    blueprint, variables, seal = load_variables(run, config, checkpoint)
    if text and own:
        check_tokens(run, seal, own, is_given=tokenizer is not None)
    if adapters is not None:
        variables = apply_adapters(Path(adapters).expanduser(), config.model, variables)
    model = blueprint.model(variables)
    rows = read_rows(run.metrics)
    return Loaded(model=model, config=config, tokenizer=own, step=seal.step, metrics=rows)
