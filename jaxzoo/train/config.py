"""Config of a run, as frozen dataclasses; files under `configs/` return one.

Optimizer and training loop are defined here, all other parts in their packages. All configs of data and tasks are
imported, so that config.json can name them.
"""

import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any, Literal

from jaxzoo.config.checked import (
    Checked,
    Fraction,
    FractionBelowOne,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Seed,
)
from jaxzoo.data.base import DataConfig
from jaxzoo.data.completions import CompletionsConfig as CompletionsConfig
from jaxzoo.data.labelled_sequences import LabelledSequencesConfig as LabelledSequencesConfig
from jaxzoo.data.text_data import TextDataConfig as TextDataConfig
from jaxzoo.data.token_data import TokenDataConfig as TokenDataConfig, TokenSourceConfig as TokenSourceConfig
from jaxzoo.models.language_model import LanguageModelConfig as LanguageModelConfig
from jaxzoo.parallel.sharding import MeshConfig as MeshConfig
from jaxzoo.tasks.bit_strings import MajorityConfig as MajorityConfig, ParityConfig as ParityConfig
from jaxzoo.tasks.compositional_mqar import CompositionalMQARConfig as CompositionalMQARConfig
from jaxzoo.tasks.continuous_mqar import ContinuousMQARConfig as ContinuousMQARConfig
from jaxzoo.tasks.forgetting_mqar import ForgettingMQARConfig as ForgettingMQARConfig
from jaxzoo.tasks.mad import (
    CompressionConfig as CompressionConfig,
    FuzzyRecallConfig as FuzzyRecallConfig,
    MemorizationConfig as MemorizationConfig,
    NoisyRecallConfig as NoisyRecallConfig,
)
from jaxzoo.tasks.mqar import MQARConfig as MQARConfig
from jaxzoo.tasks.ngram_recall import NGramRecallConfig as NGramRecallConfig
from jaxzoo.tasks.permutations import PermutationsConfig as PermutationsConfig
from jaxzoo.tasks.recall_data import RecallDataConfig as RecallDataConfig
from jaxzoo.tasks.selective_copy import SelectiveCopyConfig as SelectiveCopyConfig
from jaxzoo.tasks.text_recall import (
    NeedleConfig as NeedleConfig,
    PhoneBookConfig as PhoneBookConfig,
    VariableTrackingConfig as VariableTrackingConfig,
)

OWN_CONSTANTS: Mapping[str, Mapping[str, float]] = {
    "adamw": {"b1": 0.9, "b2": 0.999, "eps": 1e-8},
    "lion": {"b1": 0.9, "b2": 0.99},
    "muon": {"b1": 0.9, "b2": 0.999, "eps": 1e-8},
    "adafactor": {},
}
"""Optimizer -> the fields of `OptimizerConfig` that not all optimizers read, and their defaults."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Checked):
    """An optimizer with a learning-rate schedule, decoupled weight decay and clipping of the global gradient norm."""

    name: Literal["adamw", "lion", "muon", "adafactor"] = "adamw"
    """AdamW; Lion (a third of AdamW's learning rate, or less); Muon for the matrices of hidden layers, with AdamW for
    all else; or Adafactor, whose learning rate is relative to the size of a parameter (1e-2)."""
    learning_rate: PositiveFloat = 1e-3
    """Peak learning rate."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """Learning-rate schedule after the warmup, down to `final_fraction` of the peak at the last step."""
    warmup_fraction: Fraction = 0.1
    """Share of all steps over which the learning rate rises linearly from 0."""
    final_fraction: Fraction = 0.0
    """Learning rate of the last step as a share of the peak."""
    b1: FractionBelowOne | None = None
    """Decay of the mean of gradients (Lion: in the update); with Muon, in its AdamW. None: 0.9. Adafactor
    has none."""
    b2: FractionBelowOne | None = None
    """Decay of the mean of squared gradients (Lion: of its mean of gradients); with Muon likewise. None: 0.999 (Lion
    0.99). Adafactor has its own schedule."""
    eps: PositiveFloat | None = None
    """Added to the root of the second moment; with Muon likewise. None: 1e-8. Lion and Adafactor have none."""
    weight_decay: NonNegativeFloat = 0.1
    """Decoupled weight decay, scaled by the learning rate; not on parameters that exclude it (norms, biases)."""
    decay_embeddings: bool = True
    """Apply weight decay to embeddings too, and so to a tied head."""
    decay_all: bool = False
    """Apply weight decay to all parameters, as the released Zoology code does."""
    clip_norm: NonNegativeFloat = 1.0
    """Largest global gradient norm; 0: no clipping."""

    def __post_init__(self) -> None:
        for field in ("b1", "b2", "eps"):
            reads = getattr(self, field) is None or field in OWN_CONSTANTS[self.name]
            self.require(field, reads, f"is not read by name={self.name!r}", "leave it out")

    @property
    def constants(self) -> dict[str, float]:
        """Values of b1, b2 and eps for an optimizer that reads them, defaults filled in."""
        own = OWN_CONSTANTS[self.name]
        return {name: own[name] if getattr(self, name) is None else getattr(self, name) for name in own}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig(Checked):
    """The training loop: length, intervals, stopping."""

    steps: PositiveInt = 1000
    """Total number of optimizer steps."""
    batch_size: PositiveInt = 64
    """Examples per step, over all devices."""
    valid_batch_size: PositiveInt = 256
    """Examples per validation step."""
    accumulate: PositiveInt = 1
    """Parts of a batch that are processed one after the other; their gradients are summed."""
    loss_chunk: NonNegativeInt = 0
    """Tokens per row whose logits are in memory at once, for large vocabularies; 0: all."""
    z_loss: NonNegativeFloat = 0.0
    """Weight of the mean squared log-normaliser of the predictions in the loss (PaLM: 1e-4)."""
    seed: Seed = 0
    """Seed of parameters and dropout; the data have their own."""
    log_every: PositiveInt = 10
    """Steps between two metric rows."""
    eval_every: NonNegativeInt = 100
    """Steps between two validations; one more at the end. 0: only at the end."""
    checkpoint_every: NonNegativeInt = 100
    """Steps between two checkpoints; one more at the end. 0: only at the end."""
    keep_checkpoints: PositiveInt = 2
    """Number of newest checkpoints that are kept on disk."""
    keep_best: NonNegativeInt = 0
    """Number of checkpoints with the best validations that are also kept; such a validation is saved at once."""
    best_metric: str = "valid/loss"
    """Metric of the best checkpoints: higher is better for valid/accuracy, lower for all others."""
    stop_at_accuracy: Fraction = 0.0
    """Validation accuracy at which training stops; 0: never."""
    lora_rank: NonNegativeInt = 0
    """Rank of the adapters (LoRA) that learn instead of the parameters of `--init-from`; 0: none."""
    lora_targets: tuple[str, ...] = ()
    """Projections with adapters, such as q_proj v_proj; the error for a wrong name lists those of the model."""
    lora_alpha: PositiveFloat = 16.0
    """Scale of adapters: their outputs are multiplied by lora_alpha / lora_rank."""
    pallas_kernels: str | None = None
    """Where Pallas kernels are the automatic choice: `all`, `none`, or a report of `python -m pallas_kernels.verify`,
    for the device that it verified; None: the environment variable PALLAS_KERNELS decides."""

    def __post_init__(self) -> None:
        together = bool(self.lora_rank) == bool(self.lora_targets)
        rule = f"must be given together with lora_targets={self.lora_targets}"
        self.require("lora_rank", together, rule, "such as --train.lora-rank 8 --train.lora-targets q_proj v_proj")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig(Checked):
    """Config of a run: model, data, optimizer, training loop and mesh."""

    model: LanguageModelConfig
    data: DataConfig
    optimizer: OptimizerConfig = OptimizerConfig()
    train: TrainConfig = TrainConfig()
    mesh: MeshConfig = MeshConfig()

    def __post_init__(self) -> None:
        for field in ("decode_last", "pair_values"):  # an autoencoder, or a model that reads pairs
            needed = self.data.model_fields.get(field, getattr(LanguageModelConfig, field))
            name = field.replace("_", "-")
            words = f"{name} {needed}" if not isinstance(needed, bool) else name if needed else f"no-{name}"
            fits = getattr(self.model, field) == needed
            remedy = f"set --model.{words}"
            self.model.require(field, fits, f"must be {needed} for these data", remedy)


def __getattr__(name: str) -> Any:
    if name != "ExperimentConfig":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"{__name__}.{name} is now RunConfig; the old name goes in 0.2.0", FutureWarning, stacklevel=2)
    return RunConfig
