"""The models of MQAR and MQNAR: CAT (Li et al. 2025), Figures 5 and 6.

CAT and LinCAT have one layer; "all other models utilize two layers" (`mqar_attention`, `mqar_based`, `mqar_mamba` and
others). The paper uses Zoology's parameters and filters of width 3. As in Zoology there is one head with biases, so
that 1D and multi-head filters are the same. `d_model` is 32, 64 or 128 in the figures, `length` 128 in Figure 6.
`variant`: an MLP in the layer (`paper`), or the identity in its place (`release`).
"""

from typing import Literal

from jaxzoo.mixers import ConvolutionAugmentedAttentionConfig, LinCATConfig
from jaxzoo.mixers.linear.feature_map import FeatureMap
from jaxzoo.models.model_config import LanguageModelConfig
from jaxzoo.models.presets.preset_parts import BIASES, Variant, mqar_model


def mqar_cat(
    *, d_model: int = 64, length: int = 128, positions: Literal["none", "rotary"] = "none", variant: Variant = "paper"
) -> LanguageModelConfig:
    """CAT on MQAR and MQNAR, Figures 5 and 6: filters of 3 taps on queries, keys and values.

    Args:
      positions: none in the figures ("without positional encoding", sec. 6.2); or rotary.
    """
    cat = ConvolutionAugmentedAttentionConfig(n_heads=1, n_taps=3, positions=positions, **BIASES)
    return mqar_model((cat,), d_model, length, variant, n_layers=1)


def mqar_lin_cat(
    *, d_model: int = 64, length: int = 128, feature_map: FeatureMap = "pos_elu", variant: Variant = "paper"
) -> LanguageModelConfig:
    """LinCAT on MQAR and MQNAR, Figures 5 and 6: linear attention after filters of 3 taps.

    Our reading: LinCAT is one of the "CAT models" of one layer; the feature map is not printed; queries and keys are as
    wide as the model, as in `mqar_linear_attention`.
    """
    lin_cat = LinCATConfig(n_heads=1, n_taps=3, feature_map=feature_map, feature_dim=d_model)
    return mqar_model((lin_cat,), d_model, length, variant, n_layers=1)
