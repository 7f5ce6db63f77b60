"""FLOPs of a training step, by the counts of `jaxzoo.models.accounting`."""

from typing import NamedTuple, get_args, get_type_hints

from jaxzoo.config import ExperimentConfig
from jaxzoo.data.base import Batch
from jaxzoo.models.accounting import flops_per_token, head_flops
from jaxzoo.models.config import LanguageModelConfig

FORWARD_AGAIN = {"nothing": 0, "mixer_inputs": 1, "period": 1, "everything": 2}
"""How often the backward pass runs the layers forward again, by remat policy."""


class Work(NamedTuple):
    """FLOPs of a step, on all devices together."""

    model: float
    """Forward, and twice that backward."""
    recomputed: float
    """Forward again in the backward pass: remat, and the head of a chunked loss."""


def remat_policies() -> tuple:
    """All values of `LanguageModelConfig.remat`."""
    return get_args(get_type_hints(LanguageModelConfig)["remat"])


def step_work(config: ExperimentConfig, batch: Batch) -> Work:
    """FLOPs of a step on a batch of this shape. Norms, activations, look-ups and the optimizer are left out."""
    model, (rows, length), targets = config.model, batch.tokens.shape, batch.targets.size
    head = head_flops(model) * targets
    layers = (flops_per_token(model, length) - head_flops(model)) * rows * length
    is_chunked = 0 < config.train.loss_chunk < batch.targets.shape[1]
    again = FORWARD_AGAIN[model.remat] * layers
    if model.remat == "mixer_inputs":  # the sums after mixers and MLPs are kept: their last projections are not needed
        again -= 2 * model.d_model * (model.d_model + model.hidden_width) * model.n_layers * rows * length
    return Work(3 * (layers + head), again + is_chunked * head)
