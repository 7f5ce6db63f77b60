"""Adapter of our models to EleutherAI's lm-evaluation-harness (`lm_eval`).

Deviations from its adapter of Transformers models: no end-of-text token before a prompt; generation is greedy, and a
task that asks for sampling is refused. The rest is lm_eval's: the border of context and continuation, windows of
`loglikelihood_rolling`, truncation on the left, generation cut before the first stop string.
"""

from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM

from jaxzoo.evals.text_model import TextModel

MAX_TOKENS = 256
"""Default number of new tokens, lm_eval's own."""


class LMEvalModel(LM):
    """Adapter of a `TextModel` to lm_eval."""

    def __init__(self, text_model: TextModel):
        super().__init__()
        self._model = text_model

    @property
    def tokenizer_name(self) -> str:
        """Empty: there is no chat template."""
        return ""

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Returns the log-likelihood of each `(context, continuation)`, and whether greedy decoding gives the
        continuation."""
        pairs: list[Any] = [request.args for request in requests]
        return [(score.log_prob, score.is_greedy) for score in self._model.log_likelihoods(pairs)]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Returns the log-likelihood of each `(text,)` as a document."""
        return self._model.text_log_likelihoods([request.args[0] for request in requests])

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Continues each `(context, options)` greedily, up to `until` or `max_gen_toks`. Raises `ValueError` if a task
        asks for sampling."""
        groups: dict[tuple[tuple[str, ...], int], list[int]] = {}
        arguments: list[Any] = [request.args for request in requests]
        for index, (_, options) in enumerate(arguments):
            if options.get("do_sample"):
                rule = "must not ask for draws (do_sample); ours is greedy"
                raise ValueError(f"generation options {dict(options)} {rule}")
            until = options.get("until") or ()
            stops = (until,) if isinstance(until, str) else tuple(stop for stop in until if stop)
            groups.setdefault((stops, int(options.get("max_gen_toks", MAX_TOKENS))), []).append(index)
        texts = [""] * len(requests)
        for (stops, max_tokens), indices in groups.items():
            prompts = [arguments[index][0] for index in indices]
            found = self._model.continuations(prompts, max_tokens=max_tokens, stops=stops)
            for index, text in zip(indices, found, strict=True):
                texts[index] = text
        return texts
