"""The models of Zoology, Based and CAT, and recurrent models and hybrids of 2024 and 2025, by name and size.

A preset is a function that returns a `LanguageModelConfig`. Where a paper and the code that its authors released
disagree, `variant="paper"` follows the paper and `variant="release"` the code. Where a paper's table of settings and
its parameter count disagree, the preset meets the count, and `as_printed=True` follows the table. Parameter counts in
the docstrings are ours, padding rows of the vocabulary included.

Deviations shared by all: no dropout on attention weights (0.1 in the released MQAR attention runs).
"""

import inspect
import re
from collections.abc import Callable

from jaxzoo.models.config import LanguageModelConfig
from jaxzoo.models.presets.based import (
    TABLE_6 as TABLE_6,
    based_1_3b as based_1_3b,
    based_360m as based_360m,
    based_360m_ablation as based_360m_ablation,
    gla_362m as gla_362m,
    h3_362m as h3_362m,
    hyena_355m as hyena_355m,
    mamba_1_3b as mamba_1_3b,
    mamba_360m as mamba_360m,
    pythia_356m as pythia_356m,
    rwkv5_362m as rwkv5_362m,
    transformer_pp_1_3b as transformer_pp_1_3b,
    transformer_pp_360m as transformer_pp_360m,
)
from jaxzoo.models.presets.cat import (
    cat_370m as cat_370m,
    mh_cat_370m as mh_cat_370m,
    pythia_370m as pythia_370m,
    pythia_410m as pythia_410m,
)
from jaxzoo.models.presets.common import Variant as Variant
from jaxzoo.models.presets.mqar_based import (
    mqar_based as mqar_based,
    mqar_big_bird as mqar_big_bird,
    mqar_hybrid_attention as mqar_hybrid_attention,
    mqar_linear_attention as mqar_linear_attention,
    mqar_mamba as mqar_mamba,
    mqar_nystromformer as mqar_nystromformer,
    mqar_scatter_brain as mqar_scatter_brain,
    mqar_sliding_window as mqar_sliding_window,
)
from jaxzoo.models.presets.mqar_cat import mqar_cat as mqar_cat, mqar_lin_cat as mqar_lin_cat
from jaxzoo.models.presets.mqar_zoology import (
    mqar_attention as mqar_attention,
    mqar_base_conv as mqar_base_conv,
    mqar_blocked_window as mqar_blocked_window,
    mqar_h3 as mqar_h3,
    mqar_hyena as mqar_hyena,
    mqar_input_dependent_conv as mqar_input_dependent_conv,
    mqar_multi_head_hyena as mqar_multi_head_hyena,
    mqar_pure_sliding_window as mqar_pure_sliding_window,
    mqar_ret_net as mqar_ret_net,
    mqar_rwkv as mqar_rwkv,
)
from jaxzoo.models.presets.recurrent import (
    delta_net_1_3b as delta_net_1_3b,
    delta_net_340m as delta_net_340m,
    gated_delta_net_1_3b as gated_delta_net_1_3b,
    gated_delta_net_340m as gated_delta_net_340m,
    griffin_1_3b as griffin_1_3b,
    griffin_400m as griffin_400m,
    hgrn2_1_3b as hgrn2_1_3b,
    kimi_delta_attention_1_3b as kimi_delta_attention_1_3b,
    mamba2_1_3b as mamba2_1_3b,
    mamba2_370m as mamba2_370m,
    qwen3_next_like_400m as qwen3_next_like_400m,
    rwkv6_1_6b as rwkv6_1_6b,
    rwkv7_0_2b as rwkv7_0_2b,
    rwkv7_0_4b as rwkv7_0_4b,
    rwkv7_1_5b as rwkv7_1_5b,
    samba_like_420m as samba_like_420m,
)
from jaxzoo.models.presets.zoology import (
    zoology_attention_73m as zoology_attention_73m,
    zoology_attention_125m as zoology_attention_125m,
    zoology_attention_360m as zoology_attention_360m,
    zoology_h3_72m as zoology_h3_72m,
    zoology_h3_168m as zoology_h3_168m,
    zoology_h3_357m as zoology_h3_357m,
    zoology_liquid_s4_145m as zoology_liquid_s4_145m,
    zoology_long_conv_76m as zoology_long_conv_76m,
    zoology_long_conv_128m as zoology_long_conv_128m,
    zoology_long_conv_360m as zoology_long_conv_360m,
    zoology_ret_net_152m as zoology_ret_net_152m,
    zoology_rwkv_72m as zoology_rwkv_72m,
    zoology_rwkv_169m as zoology_rwkv_169m,
    zoology_rwkv_351m as zoology_rwkv_351m,
)
from jaxzoo.models.presets.zoology_base_conv import (
    zoology_base_conv_168m as zoology_base_conv_168m,
    zoology_base_conv_354m as zoology_base_conv_354m,
    zoology_base_conv_attention_166m as zoology_base_conv_attention_166m,
    zoology_base_conv_attention_351m as zoology_base_conv_attention_351m,
    zoology_base_conv_selective_162m as zoology_base_conv_selective_162m,
    zoology_base_conv_selective_365m as zoology_base_conv_selective_365m,
)
from jaxzoo.models.presets.zoology_hyena import (
    zoology_hyena_72m as zoology_hyena_72m,
    zoology_hyena_158m as zoology_hyena_158m,
    zoology_hyena_358m as zoology_hyena_358m,
    zoology_hyena_sliding_window_159m as zoology_hyena_sliding_window_159m,
    zoology_multi_head_hyena_150m as zoology_multi_head_hyena_150m,
    zoology_multi_head_hyena_358m as zoology_multi_head_hyena_358m,
)


def _name(preset: Callable[..., LanguageModelConfig]) -> str:
    """The name for users: `transformer_pp_1_3b` is transformer++-1.3b."""
    return re.sub(r"_(\d)_(\d)b", r"-\1.\2b", preset.__name__).replace("_pp", "++").replace("_", "-")


PRESETS: dict[str, Callable[..., LanguageModelConfig]] = {
    _name(value): value
    for value in list(globals().values())
    if inspect.isfunction(value) and value.__module__ != __name__
}
"""Every preset by its name; all can be called without arguments."""
