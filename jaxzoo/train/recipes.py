"""Training of the papers' language models: data, batch, schedule and optimizer around one of `models/presets`.

The configurations in `configs/lm/` are these functions applied to a preset: one file per paper, one name per row of its
tables. All models read windows of 2048 tokens, documents concatenated, in batches of 256: 524,288 tokens per step.
Commands that make the data from the published files (`gpt2` holds encoder.json and vocab.bpe):

    jaxzoo data-build --source pile --paths pile/train --valid-paths pile/val.jsonl.zst \\
      --test-paths pile/test.jsonl.zst --out corpora/pile_built
    jaxzoo data-tokenize --data corpora/pile_built --tokenizer gpt2 --out corpora/pile_tokens
    jaxzoo data-build --source slimpajama --paths slimpajama/train --valid-paths slimpajama/validation \\
      --test-paths slimpajama/test --out corpora/slimpajama_built
    jaxzoo data-tokenize --data corpora/slimpajama_built --tokenizer mistral/tokenizer.json \\
      --out corpora/slimpajama_tokens

Common to all:

- They have not been trained with this library yet. The tests check the shapes of a step on eight devices.
- Mesh and memory are ours: from 350M parameters on, parameters and optimizer state are sharded over all devices
  (`--mesh.data`, `--mesh.fsdp`); logits exist for 256 tokens of a row at once (`--train.loss-chunk`). The released code
  of Based had 8 rows at once on each of 8 GPUs; `--train.accumulate 4` does so. `--model.remat` saves activations.
- The learning rate rises from 0. The decay of AdamW is decoupled; the papers say "Adam" with weight decay.
- Validation, each 1,000 steps, is over the first 1,048,576 tokens of the validation split.
- The papers print one learning rate for each model, and no grid of them.
"""

from typing import Literal

from jaxzoo.data.token_data import TokenDataConfig
from jaxzoo.models.model_config import LanguageModelConfig
from jaxzoo.parallel.sharding import MeshConfig
from jaxzoo.train.config import OptimizerConfig, RunConfig, TrainConfig

LENGTH = 2048
BATCH_SIZE = 256
REPLICATED = MeshConfig()
"""Every device holds all parameters and a part of the batch."""
SHARDED = MeshConfig(data=1, fsdp=-1)
"""Every device holds a part of the parameters and a part of the batch."""


def zoology(
    model: LanguageModelConfig,
    *,
    steps: int = 20_000,
    b2: float = 0.95,
    schedule: Literal["cosine", "linear"] = "cosine",
    final_rate: float = 8e-5,
    weight_decay: float = 0.1,
    mesh: MeshConfig = REPLICATED,
) -> RunConfig:
    """Zoology (Arora et al. 2024), App. C, on the Pile in GPT-2's tokens.

    The defaults are from Table 7, attention; Tables 9 to 16 differ only in the arguments. Peak 8e-4 after
    a warmup over 1 % of the steps.

    Not printed, and taken from the GPT-NeoX code in which the paper trained: the gradient norm is clipped at 1, norms
    and biases are not decayed, the embedding is. Adam's eps is 1e-8 where Tables 9, 11, 13 and 16 leave it out.

    Args:
      model: a preset of the paper.
      steps: 20,000, the paper's 10B tokens (10.5B).
      b2: decay of the mean of squared gradients.
      schedule: course of the learning rate after the warmup.
      final_rate: learning rate at the end.
      weight_decay: of matrices and the embedding.
      mesh: ours; `SHARDED` from 350M parameters on.
    """
    optimizer = OptimizerConfig(
        learning_rate=8e-4,
        schedule=schedule,
        warmup_fraction=0.01,
        final_fraction=final_rate / 8e-4,
        b2=b2,
        weight_decay=weight_decay,
    )
    return _pretraining(model, optimizer, path="corpora/pile_tokens", steps=steps, mesh=mesh)


def based(model: LanguageModelConfig, *, steps: int = 20_000, b2: float = 0.95) -> RunConfig:
    """Based (Arora et al. 2024), Tables 7 to 13, on the Pile in GPT-2's tokens.

    Cosine from 8e-4 to 8e-5 after a warmup over 1 % of the steps, AdamW of weight decay 0.1 and eps 1e-8.

    Not printed, and taken from the configs of the released code (`train/configs/experiment`, `train/optim`): windows
    of 2048 tokens, 20,000 steps for 10B tokens (10.5B) and 100,000 for 50B (52.4B); the gradient norm is clipped at 1;
    norms, biases and the embedding are not decayed. (Its list of norms leaves out RMSNorm, whose scales it so decays;
    ours does not.) For 30B tokens there is no config: 60,000 steps (31.5B), in proportion. That code warms up from
    1e-6.

    Args:
      model: a preset of the paper.
      steps: 20,000, 60,000 or 100,000.
      b2: decay of the mean of squared gradients; 0.99 in Tables 11 and 12.
    """
    optimizer = OptimizerConfig(
        learning_rate=8e-4, warmup_fraction=0.01, final_fraction=0.1, b2=b2, decay_embeddings=False
    )
    return _pretraining(model, optimizer, path="corpora/pile_tokens", steps=steps, mesh=SHARDED)


def cat(model: LanguageModelConfig) -> RunConfig:
    """CAT (Li et al. 2025), sec. 6.2, on SlimPajama in Mistral's tokens.

    Printed: 15B tokens, windows of 2048, "the same hyperparameters as (Yang et al. 2023)". These are the 340M models
    of GLA, sec. 5.1: batches of 0.5M tokens, AdamW with a peak of 3e-4, cosine to 3e-5 after a warmup over 0.5B tokens
    (one 30th of all), weight decay 0.01, the gradient norm clipped at 1, the tokenizer of Mistral.

    In neither: which 15B of SlimPajama's 627B tokens (here windows drawn from the whole directory), Adam's
    b2 (0.95, as in the other papers) and eps (1e-8), which parameters have no weight decay (norms and biases). GLA's
    warmup starts at 3e-5.

    Figure 1 (right) scores the same models on longer texts, those of WikiText in the paper: `jaxzoo evaluate
    --run DIR --model.max-length 8192 --data.valid-lengths 2048 4096 8192`, with positions together with YaRN's flags
    (`configs/lm/cat_tiny.py` has them).

    Args:
      model: a preset of the paper.
    """
    optimizer = OptimizerConfig(
        learning_rate=3e-4, warmup_fraction=0.5 / 15, final_fraction=0.1, b2=0.95, weight_decay=0.01
    )
    return _pretraining(model, optimizer, path="corpora/slimpajama_tokens", steps=28_610, mesh=SHARDED)


def _pretraining(
    model: LanguageModelConfig, optimizer: OptimizerConfig, *, path: str, steps: int, mesh: MeshConfig
) -> RunConfig:
    return RunConfig(
        model=model,
        data=TokenDataConfig(path=path, length=LENGTH, valid_tokens=512 * LENGTH),
        optimizer=optimizer,
        train=TrainConfig(
            steps=steps, batch_size=BATCH_SIZE, loss_chunk=256, log_every=10, eval_every=1_000, checkpoint_every=1_000
        ),
        mesh=mesh,
    )
