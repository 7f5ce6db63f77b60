"""Training protocols of the recall figures: of the papers, of their code, and for a laptop.

In each, all models of a figure have the same learning rates, budget and data; a model is scored at its best learning
rate, by the mean of its seeds.
"""

import dataclasses
from collections.abc import Callable
from typing import Literal

from jaxzoo.mixers import MambaConfig, MixerConfig
from jaxzoo.models import LanguageModelConfig
from jaxzoo.tasks.recall_data import RecallDataConfig
from jaxzoo.train.config import OptimizerConfig, RunConfig, TrainConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Protocol:
    """Model-independent part of a protocol."""

    learning_rates: tuple[float, ...]
    epochs: float
    """Maximal number of passes over the training examples."""
    batch_size: Callable[[int, int], int]
    """Function of the longest training length and the width."""
    mlp: Literal["gelu", "identity", "none"]
    mlp_bias: bool = False
    optimizer: OptimizerConfig
    """Optimizer; its learning rate is replaced."""
    embed_dropout: float = 0.0
    mixer_init_std: float | None = None
    """Initial standard deviation of a mixer's projections other than its output; None: the mixer's own, or 0.02."""
    mamba_projections: Literal["uniform", "normal"] = "uniform"
    """`MambaConfig.projection_init`; with "uniform", as published, `mixer_init_std` only changes the output's scale."""
    stop_at_accuracy: float = 0.0
    """Validation accuracy at which a run ends; 0: never."""
    evals: int = 0
    """Number of validations of a whole run; 0: one per epoch."""

    def run(
        self,
        pattern: tuple[MixerConfig, ...],
        data: RecallDataConfig,
        *,
        d_model: int,
        learning_rate: float,
        seed: int = 0,
        n_layers: int = 2,
        positions: bool = False,
    ) -> RunConfig:
        """Returns the run of a model whose layers repeat `pattern` over the depth; `positions` adds learned
        positions."""
        lengths = [part.task.length for part in data.train]
        batch_size = self.batch_size(max(lengths), d_model)
        epoch = sum(part.n_examples // batch_size for part in data.train)
        steps = max(1, round(self.epochs * epoch))
        longest = max(part.task.length for part in (*data.train, *data.valid))
        every = steps / (self.evals or self.epochs)
        return RunConfig(
            model=LanguageModelConfig(
                pattern=tuple(map(self._initialised, pattern)),
                d_model=d_model,
                n_layers=n_layers,
                vocab_size=max(part.task.vocab_size for part in (*data.train, *data.valid)),
                max_length=longest,
                max_positions=longest if positions else None,
                mlp=self.mlp,
                mlp_bias=self.mlp_bias,
                embed_dropout=self.embed_dropout,
            ),
            data=data,
            optimizer=dataclasses.replace(self.optimizer, learning_rate=learning_rate),
            train=TrainConfig(
                steps=steps,
                batch_size=batch_size,
                seed=seed,
                log_every=max(1, steps // 100),
                eval_every=max(1, round(every)),
                checkpoint_every=max(1, steps // 4),
                keep_checkpoints=1,
                stop_at_accuracy=self.stop_at_accuracy,
            ),
        )

    def run_preset(
        self, model: LanguageModelConfig, data: RecallDataConfig, *, learning_rate: float, seed: int = 0
    ) -> RunConfig:
        """Returns the run of a preset's mixers, width, depth, norm and learned positions; all else by the protocol. A
        model without MLP keeps none."""
        run = self.run(
            model.pattern,
            data,
            d_model=model.d_model,
            learning_rate=learning_rate,
            seed=seed,
            n_layers=model.n_layers,
            positions=model.max_positions is not None,
        )
        kept = {"norm": model.norm, **({"mlp": "none"} if model.mlp == "none" else {})}
        return dataclasses.replace(run, model=dataclasses.replace(run.model, **kept))

    def _initialised(self, mixer: MixerConfig) -> MixerConfig:
        if isinstance(mixer, MambaConfig):
            mixer = dataclasses.replace(mixer, projection_init=self.mamba_projections)
        return mixer if self.mixer_init_std is None else dataclasses.replace(mixer, init_std=self.mixer_init_std)


def _paper_batch(length: int, d_model: int) -> int:
    size = max(length, d_model)
    return 8 if size >= 512 else 16 if size >= 256 else 64


def _release_batch(length: int, d_model: int) -> int:
    return 512 if length < 256 else 256 if length == 256 else 128


PAPER = Protocol(
    learning_rates=(1e-4, 10 ** (-10 / 3), 10 ** (-8 / 3), 1e-2),
    epochs=64,
    batch_size=_paper_batch,
    mlp="gelu",
    mlp_bias=True,
    optimizer=OptimizerConfig(weight_decay=0.1, warmup_fraction=0.1, clip_norm=0.0),
    embed_dropout=0.1,
)
"""Zoology, App. E.2: four rates, 64 epochs, 10 % of linear warmup, weight decay 0.1, MLPs. Not printed, and as in the
released code: a cosine after the warmup, no clipping, an MLP of width 4 d with GELU and biases, dropout 0.1 of the
embedding. Deviation: norms and biases do not decay."""

RELEASE = Protocol(
    learning_rates=(1e-4, 10 ** (-10 / 3), 10 ** (-8 / 3), 1e-2),
    epochs=64,
    batch_size=_release_batch,
    mlp="identity",
    optimizer=OptimizerConfig(weight_decay=0.1, warmup_fraction=0.0, clip_norm=0.0, decay_all=True),
    embed_dropout=0.1,
    stop_at_accuracy=0.99,
)
"""The released configurations of Zoology's Figure 2 (HazyResearch/zoology): no warmup, large batches, no MLP, decay of
all parameters, early stop above 0.99. Deviations: our cosine falls by steps instead of epochs, examples are shuffled,
epochs have no smaller last batch."""

LAPTOP = Protocol(
    learning_rates=(3e-3, 1e-2),
    epochs=1,
    batch_size=lambda length, d_model: 64,
    mlp="none",
    optimizer=OptimizerConfig(b2=0.95, decay_embeddings=False),
    mixer_init_std=0.1,
    stop_at_accuracy=0.99,
    evals=10,
)
"""Ours, for two cores: two rates, one epoch of few examples, no MLP, dropout or clipping, early stop. Projections other
than the output's start five times larger, which shortens the plateau before recall is learned."""

OVERNIGHT = dataclasses.replace(LAPTOP, learning_rates=(1e-3, 3e-3, 1e-2), evals=18)
"""Ours, for some hours of one core per figure: `LAPTOP` with three rates, and frequent validations, so that solved runs
end early; each figure sets one number of steps for all its models."""
TUNED = dataclasses.replace(
    LAPTOP, learning_rates=(1e-3, 3e-3, 1e-2, 2e-2), evals=80, mamba_projections="normal"
)  # fmt: skip
"""Ours, for verdicts: `LAPTOP` with four rates, and enough steps for models that learn late. All rates run to the end
with the first seed, the best with all seeds (`Scale.all_seeds=1`): as many steps as half runs with two seeds, and the
rates are compared by what they reach. docs/sweeps.md explains it under "Recipe"."""
SEEDS = (0, 1, 2)
"""Seeds of scale `overnight`: all rates run with the first, the best two with all of them."""
LUCKY_SEEDS = (0, 1, 2, 3, 4)
"""Seeds of models that escape the guessing line by luck."""
