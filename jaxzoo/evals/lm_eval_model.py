"""Our models as those of EleutherAI's lm-evaluation-harness (`lm_eval`).

Deviations from its own adapter of Transformers models: no end-of-text token before a prompt; generation is greedy, and
a task that asks for draws is refused. All else is lm_eval's: where context and continuation part, windows of
`loglikelihood_rolling`, truncation on the left, generation cut before the first stop string.
"""

from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM

from jaxzoo.evals.text_model import TextModel

MAX_TOKENS = 256
"""New tokens where a task does not say how many; lm_eval's own default."""


class LMEvalModel(LM):
    """Model as lm_eval sees it, which a `TextModel` answers for."""

    def __init__(self, text_model: TextModel):
        super().__init__()
        self._model = text_model

    @property
    def tokenizer_name(self) -> str:
        """Empty: there is no chat template."""
        return ""

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Log-likelihood of each `(context, continuation)`, and whether greedy decoding gives the continuation."""
        pairs: list[Any] = [request.args for request in requests]
        return [(score.log_prob, score.is_greedy) for score in self._model.log_likelihoods(pairs)]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood of each `(text,)` as a document of its own."""
        return self._model.text_log_likelihoods([request.args[0] for request in requests])

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """The continuation of each `(context, options)`: greedy, up to `until` or `max_gen_toks`.

        Raises `ValueError`: a task asks for draws.
        """
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
