"""One convolution-augmented attention copies signals in their order: CAT (Li et al. 2025), Theorem 3, twice.

Definition 4: after a prompt of signals and noise and a separator, the model generates all signals of the prompt, in
order. Theorem 3: one layer can do this, if no signal occurs twice in the prompt. Its proof, and the second
construction, are in an appendix that we do not have; the constructions here are ours, from the same parts.

Embeddings have |S| + 3 channels: one a signal, one for all noise, one for the separator, and a constant; x = (e, 1) /
sqrt(2), whose distances are 1. Both constructions let the query at T give each signal s a cost, made of the tokens so
far, and choose the signal of least cost, which must be the first that has not been said: its key is -e_s. Noise and
separator have the key of the constant, negative and large enough. Values are the embeddings. Scores are a multiple of
the costs, such that the least one is apart from the next by the bound of `one_layer.sharpness`.

**Decay.** `F_{q,i} = rho^i`, as many taps as the sequence has tokens: s costs the sum of rho^(T - t) over the places t
where it stands. An unsaid signal stands in the prompt alone, and the earlier, the cheaper. One that is said stands
after the separator too, later than all of the prompt, and costs more than any unsaid one. Above a cost of rho^n the
next is higher by rho^(n-1) (1 - rho) at least. The constant costs at least 1 + rho^n.

With L tokens, `rho = 1 - 1/L` keeps rho^L above 1/4 and the largest score of a signal below about 2 e L log(4 L). Two
neighbouring signals are then apart by nine tenths of what they should be at L = 2^19 in float32, and by nothing at
2^22; their number does not matter. A rho that does not follow L ends where rho^L and the factor of the scores, some
1/rho^L, leave float32: rho = 1/2 near 100 tokens.

**Short filter and positions.** W taps, `F_i = 1 - i / W`, for prompts of at least W tokens and up to W signals. The
filter sees the words said so far, at most W - 1, and after them the separator and the end of the prompt. A word that
is said is nearer than any token of the prompt by two taps, and so costs 2 / W more. Positions take two more channels,
as points (cos, sin) on an eighth of a circle; the sine is a second cost, small enough to stay below 2 / W of the first.
So unsaid signals cost the more, the later they stand, within the filter's reach or not, and said ones more than all of
these. With fewer taps than words a first signal would be cheapest again. Flat taps do where the signals are as many as
the taps, for the first unsaid one is then out of reach, but not where they are fewer. At 2^19 tokens float32 leaves
nine tenths of the distance of two places, at 2^23 nothing.
"""

import math

import numpy as np

from experiments.theory.one_layer import one_layer_model, set_projections, set_taps, sharpness
from jaxzoo.mixers import ConvolutionAugmentedAttentionConfig
from jaxzoo.models import LanguageModel
from jaxzoo.tasks.selective_copy import SEPARATOR, SelectiveCopyConfig
from jaxzoo.utils.array_typing import Float

SMALLEST_TAP = 1e-30
"""Below it a filter and the factor of its scores exceed the range of float32."""


def decay_copy_model(task: SelectiveCopyConfig, *, rho: float | None = None) -> LanguageModel:
    """Makes the first construction: a filter on queries with as many taps as the sequence has tokens, no positions. The
    signals of the task are distinct. `rho` is the decay of the filter; None: 1 - 1 / L. Raises `ValueError` if rho^L
    exceeds the range of float32."""
    n, embeddings = task.length + 1, copy_embeddings(task)
    rho = 1 - 1 / n if rho is None else rho
    if not (0 < rho < 1 and rho**n >= SMALLEST_TAP):
        raise ValueError(f"decay_copy_model: rho={rho} must be in (0, 1), and rho^{n} at least {SMALLEST_TAP}")
    unit = np.eye(embeddings.shape[1])
    model, layer = one_layer_model(_config(unit, n_taps=n), embeddings, max_length=n)
    factor = 2 * sharpness(n, 1.0, (1 - rho) * rho ** (n - 2))
    set_projections(layer, queries=unit, keys=_keys(task, unit, signals=factor, others=factor), values=unit)
    set_taps(layer, "queries", rho ** np.arange(n))
    return model


def position_copy_model(task: SelectiveCopyConfig) -> LanguageModel:
    """Makes the second construction: a filter on queries with as many taps as the prompt has signals, and learned
    positions. The signals of the task are distinct; a prompt may have fewer of them."""
    n, w = task.length + 1, task.n_signals
    embeddings = np.pad(copy_embeddings(task), ((0, 0), (0, 2)))
    unit = np.eye(embeddings.shape[1])
    cosine, sine, constant = unit[-2], unit[-1], unit[-3]
    angles = np.pi / 4 * np.arange(n)[:, None] / n
    positions = np.cos(angles) * cosine + np.sin(angles) * sine
    model, layer = one_layer_model(_config(unit, n_taps=w), embeddings, max_length=n, positions=positions)
    taps = 1 - np.arange(w) / w
    in_query = taps.sum() / math.sqrt(2)  # of the constant
    place = sharpness(n, 1.0, np.diff(np.sin(angles[:, 0])).min())
    said = w / 2 * (place + sharpness(n, 1.0, 1.0))
    keys = _keys(task, unit, signals=2 * said, others=math.sqrt(2) * (said + 2 * place) / in_query)
    keys -= np.outer(sine, constant) * place / in_query
    set_projections(layer, queries=unit, keys=keys, values=unit)
    set_taps(layer, "queries", taps)
    return model


def copy_embeddings(task: SelectiveCopyConfig) -> Float[np.ndarray, "vocab d"]:
    """Returns (e, 1) / sqrt(2), d = |S| + 3: signals, noise, separator, constant."""
    n = task.n_signal_tokens
    kinds = np.full(task.vocab_size, n)
    kinds[task.first_signal :], kinds[SEPARATOR] = np.arange(n), n + 1
    return (np.eye(n + 3)[kinds] + np.eye(n + 3)[n + 2]) / math.sqrt(2)


def _config(unit: np.ndarray, *, n_taps: int) -> ConvolutionAugmentedAttentionConfig:
    return ConvolutionAugmentedAttentionConfig(
        head_dim=len(unit), n_taps=n_taps, filter_keys=False, filter_values=False
    )


def _keys(task: SelectiveCopyConfig, unit: np.ndarray, *, signals: float, others: float) -> Float[np.ndarray, "d d"]:
    """Returns W_k: a signal compares with the query itself, noise and separator with the constant; all are costs."""
    n = task.n_signal_tokens
    keys = np.zeros_like(unit)
    keys[:n] = -signals * unit[:n]
    keys[n : n + 2] = -others * unit[n + 2]
    return keys
