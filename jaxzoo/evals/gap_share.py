"""Share of the gap between a model and a baseline that is due to associative recall (Zoology, App. C.1).

    share = min((l_H^m - l_H^M) p_H / (l^m - l^M), 1)

with m the model, M the baseline (attention in the paper), l the mean log-probability of all tokens, l_H of the AR
hits, and p_H the share of the hits. We use nats, -l, which give the same ratio.

The sentence below the formula ascribes 100 % to recall where m is better overall and M on the hits; there the formula
is negative. Both are given.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from jaxzoo.evals.recall_slices import SliceScore


class GapShare(NamedTuple):
    """Share of a gap, and its parts."""

    gap: float
    """Nats per token by which the model is worse than the baseline; negative if it is better."""
    due_to_hits: float
    """Nats by which it is worse on the hits, times their share of all tokens."""
    formula: float | None
    """Value of the formula, at most 1; None without gap."""
    sentence: float | None
    """The same, but 1 if the sentence below the formula says 100 %."""
    case: str
    """Which model is better on which tokens, in words."""
    interval: tuple[float, float] | None = None
    """Interval of the formula, see `share_interval`."""


def gap_share(
    model: tuple[SliceScore, SliceScore], baseline: tuple[SliceScore, SliceScore], *, hits: str = "AR hits"
) -> GapShare:
    """Returns the share of a model's gap to a baseline that is due to the hits, named `hits`. Both have the scores of
    all tokens and of the hits. Raises `ValueError` if they were scored on different tokens, or on none."""
    (ours, our_hits) = model
    (theirs, their_hits) = baseline
    if (ours.tokens, our_hits.tokens) != (theirs.tokens, their_hits.tokens) or ours.nats is None or theirs.nats is None:
        raise ValueError(
            f"gap_share: {ours.tokens} tokens with {our_hits.tokens} hits and {theirs.tokens} with {their_hits.tokens} "
            "must be the same tokens, at least one"
        )
    gap = ours.nats - theirs.nats
    if our_hits.nats is None or their_hits.nats is None:
        return GapShare(gap, 0.0, None, None, f"there are no {hits}")
    loss_on_hits = our_hits.nats - their_hits.nats
    due = loss_on_hits * our_hits.share
    if gap == 0:
        return GapShare(gap, due, None, None, "there is no gap overall")
    formula = min(due / gap, 1.0)
    sentence = 1.0 if gap < 0 < loss_on_hits else formula
    if gap < 0 < loss_on_hits:
        rule = "the paper's sentence says 100 %, its formula is negative"
        case = f"the model is better overall and worse on {hits}: {rule}"
    elif gap < 0:
        case = f"the model is better overall and not worse on {hits}: this is the share of its lead"
    elif loss_on_hits <= 0:
        case = f"the model is worse overall, but not on {hits}: none of the gap is due to them"
    elif due > gap:
        case = f"the model is worse overall and on {hits}, but better on other tokens: cut at 100 %"
    else:
        case = f"the model is worse overall and on {hits}"
    return GapShare(gap, due, formula, sentence, case)


def share_interval(
    model: Float64[np.ndarray, "n 2"], baseline: Float64[np.ndarray, "n 2"], *, draws: int = 1000
) -> tuple[float, float] | None:
    """Bootstrap interval (95 %, percentiles) of the formula. Windows, which are taken as independent, are drawn with
    replacement; model and baseline have the nats of the same windows: of all tokens, and of the hits. None if the sign
    of the gap is uncertain: it differs in 2.5 % or more of the draws."""
    differences = model - baseline
    n = len(differences)
    counts = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=draws)
    gap, due = (counts @ differences).T
    if min((gap <= 0).mean(), (gap >= 0).mean()) >= 0.025:
        return None
    low, high = np.quantile(np.minimum(due[gap != 0] / gap[gap != 0], 1.0), [0.025, 0.975])
    return float(low), float(high)
