"""Based, Figure 2: recall against the bytes of the state, six classes of models, several sizes of each.

`jaxzoo sweep --experiment experiments/based_figure2.py --scale laptop --out DIR`

State: one sequence of the longest evaluated length, all layers together, measured from the arrays; the paper counts
only the mixer after which a model is named (App. E.2). The claims are in `based_figure2_claims.py`.
"""

from experiments.based_figure2_claims import CLAIMS, CLASSES, made_up
from experiments.based_models import Sizes, scales
from experiments.frontier import draw_by_state
from jaxzoo.sweep import Experiment, Results
from jaxzoo.utils.figure import Figure

PAPER_SIZES: Sizes = {
    "Attention": {"d_model": (64, 128)},
    "Sliding window": {"d_model": (128,), "window": (8, 16, 32, 64, 128, 256, 512, 1024)},
    "Mamba": {"d_model": (64, 128, 256), "d_state": (8, 16, 24)},
    "H3": {"d_model": (64, 128, 256)},
    "Hyena": {"d_model": (64, 128, 256)},
    "Based": {"d_model": (48, 64, 128), "feature_dim": (8, 16, 24)},
}
"""App. E.2; the release has the same."""
LAPTOP_SIZES: Sizes = {
    "Attention": {"d_model": (16, 32)},
    "Sliding window": {"d_model": (32,), "window": (4, 8, 16, 32, 64, 128)},
    "Mamba": {"d_model": (32, 64), "d_state": (4, 16)},
    "H3": {"d_model": (16, 32, 64)},
    "Hyena": {"d_model": (16, 32, 64)},
    "Based": {"d_model": (16, 32), "feature_dim": (4, 8, 16)},
}
SMOKE_SIZES: Sizes = {"Attention": {"d_model": (16,)}, "Based": {"d_model": (16,), "feature_dim": (4,)}}
SIZES = {
    "smoke": SMOKE_SIZES,
    "laptop": LAPTOP_SIZES,
    "overnight": LAPTOP_SIZES,
    "paper": PAPER_SIZES,
    "release": PAPER_SIZES,
}
ABOUT = {
    "paper": "Lengths and pairs of Sec. 3.1, models of App. E.2. Not printed, and after Zoology, App. E.2: MLPs, "
    "10 % of warmup, vocabulary 8192; after the release: four rates, 32 epochs of 180,000 examples, "
    "batches of 256, early stop at 0.99.",
    "release": "The released configurations (HazyResearch/zoology, `arxiv24_based_figure2`): five parts from 64 tokens "
    "with 4 pairs to 256 with 64, asked from 64 tokens with 4 pairs to 1,024 with 256. Without Mamba-2, which the "
    "paper does not show, and without dropout in attention.",
}


def _draw(results: Results) -> Figure:
    return draw_by_state(results, CLASSES, title="Based, Figure 2: recall by the size of the state")


experiment = Experiment(
    title="Based, Figure 2",
    about="How much each class of models recalls with how many bytes of state; within a class, width, window, feature "
    "dimension or numbers of state a channel differ.",
    scales=scales(SIZES, ABOUT),
    claims=CLAIMS,
    made_up=made_up,
    draw=_draw,
    missing=("Mamba-2, which the released configurations have and the paper has not.",),
)
