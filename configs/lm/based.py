"""Language models of Based (Arora et al. 2024), on the Pile: one entry per row of its tables.

Choose one by `--config configs/lm/based.py --name NAME`; configs/README.md lists them with the paper's results. They
have not been trained with this library. Data, schedule, and what the paper leaves open: `recipes.based`.
"""

from jaxzoo.models import presets
from jaxzoo.train import recipes

configs = {
    # This row has the decay of App. C, as its numbers in Table 6 tell; those of 30B and 50B tokens have none.
    "based_360m": recipes.based(presets.based_360m_ablation()),
    # Without decay (App. C), the model of the released checkpoints but for their windows.
    "based_360m_30b": recipes.based(presets.based_360m(), steps=60_000),
    # With the decay of App. C, which models of 10B tokens have (App. D.4).
    "based_1_3b": recipes.based(presets.based_1_3b(decay=True)),
    # Without decay (App. C).
    "based_1_3b_50b": recipes.based(presets.based_1_3b(), steps=100_000),
    "transformer_pp_360m": recipes.based(presets.transformer_pp_360m()),
    "transformer_pp_360m_30b": recipes.based(presets.transformer_pp_360m(), steps=60_000),
    "transformer_pp_1_3b": recipes.based(presets.transformer_pp_1_3b()),
    "transformer_pp_1_3b_50b": recipes.based(presets.transformer_pp_1_3b(), steps=100_000),
    "mamba_360m": recipes.based(presets.mamba_360m()),
    "mamba_360m_30b": recipes.based(presets.mamba_360m(), steps=60_000),
    "mamba_1_3b": recipes.based(presets.mamba_1_3b()),
    "mamba_1_3b_50b": recipes.based(presets.mamba_1_3b(), steps=100_000),
    "gla_362m": recipes.based(presets.gla_362m()),
    "rwkv5_362m": recipes.based(presets.rwkv5_362m(), b2=0.99),
    "h3_362m": recipes.based(presets.h3_362m(), b2=0.99),
    # No table of results has it; 10B tokens are those of its size.
    "hyena_355m": recipes.based(presets.hyena_355m()),
    "based_360m_performer_16": recipes.based(presets.based_360m_ablation(feature_map="performer")),
    "based_360m_cosformer_16": recipes.based(presets.based_360m_ablation(feature_map="cosformer")),
    "based_360m_cosformer_64": recipes.based(presets.based_360m_ablation(feature_map="cosformer", feature_dim=64)),
    "based_360m_taylor_32": recipes.based(presets.based_360m_ablation(feature_dim=32)),
    "based_360m_taylor_24": recipes.based(presets.based_360m_ablation(feature_dim=24)),
    "based_360m_taylor_8": recipes.based(presets.based_360m_ablation(feature_dim=8)),
    # The same model as that of 30B tokens.
    "based_360m_no_decay": recipes.based(presets.based_360m_ablation(decay=False)),
    "based_360m_no_window": recipes.based(presets.based_360m_ablation(window=0)),
    "based_360m_no_convolutions": recipes.based(presets.based_360m_ablation(convolutions=False)),
    "based_360m_linear_only": recipes.based(presets.based_360m_ablation(feature_dim=24, window=0, convolutions=False)),
    "based_360m_window_128": recipes.based(presets.based_360m_ablation(window=128)),
    # The model is our reading, the training that of Table 8. LAMBADA's perplexity in the paper is 25.17.
    "pythia_356m": recipes.based(presets.pythia_356m()),
}
