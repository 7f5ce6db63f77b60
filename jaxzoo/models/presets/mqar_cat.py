"""The models of MQAR and MQNAR: CAT (Li et al. 2025), Figures 5 and 6.

CAT and LinCAT have one layer; "all other models utilize two layers": `mqar_attention`, `mqar_based`, `mqar_mamba` and
their sisters, at the same widths. The paper keeps to Zoology's parameters and prints width 3 for the filters. As in
Zoology there is one head, so that 1D and multi-head filters are the same, with biases. The tasks are
`jaxzoo.tasks.mqar` and `jaxzoo.tasks.ngram_recall`, whose vocabularies have the 8192 tokens of these models.
"""

from typing import Literal

from jaxzoo.mixers import ConvolutionAugmentedAttentionConfig, LinCATConfig
from jaxzoo.mixers.linear.feature_map import FeatureMap
from jaxzoo.models.model_config import LanguageModelConfig
from jaxzoo.models.presets.preset_parts import Variant, mqar_model


def mqar_cat(
    *, d_model: int = 64, length: int = 128, positions: Literal["none", "rotary"] = "none", variant: Variant = "paper"
) -> LanguageModelConfig:
    """CAT on MQAR and MQNAR, Figures 5 and 6: one layer, one head, filters of 3 taps on queries, keys and values.

    Args:
      d_model: width; 32, 64 or 128 in the figures.
      length: longest sequence of training; 128 in Figure 6.
      positions: none in the figures ("without positional encoding", sec. 6.2); or rotary.
      variant: of Zoology's frame: an MLP in the layer (`paper`), or the identity in its place (`release`).
    """
    cat = ConvolutionAugmentedAttentionConfig(n_heads=1, n_taps=3, positions=positions, qkv_bias=True, out_bias=True)
    return mqar_model((cat,), d_model, length, variant, n_layers=1)


def mqar_lin_cat(
    *, d_model: int = 64, length: int = 128, feature_map: FeatureMap = "pos_elu", variant: Variant = "paper"
) -> LanguageModelConfig:
    """LinCAT on MQAR and MQNAR, Figures 5 and 6: one layer of linear attention of one head after filters of 3 taps.

    Queries and keys are as wide as the model, as in `mqar_linear_attention`. That LinCAT counts among the "CAT models"
    of one layer is our reading.

    Args:
      d_model: width; 32, 64 or 128 in the figures.
      length: longest sequence of training; 128 in Figure 6.
      feature_map: not printed.
      variant: as in `mqar_cat`.
    """
    lin_cat = LinCATConfig(n_heads=1, n_taps=3, feature_map=feature_map, feature_dim=d_model)
    return mqar_model((lin_cat,), d_model, length, variant, n_layers=1)
