"""Rows and training settings of the papers' tables of language models, typed by hand."""

from typing import NamedTuple

from jaxzoo.models import presets
from jaxzoo.models.language_model import LanguageModelConfig


class Settings(NamedTuple):
    """A table of training settings."""

    paper: str
    table: str
    schedule: str = "cosine"
    least: float = 8e-5
    base: float = 8e-4
    b2: float = 0.95
    weight_decay: float = 0.1


class Row(NamedTuple):
    """A row of a table of results."""

    model: LanguageModelConfig
    settings: Settings
    billions: int = 10
    """Tokens of training, 10^9."""

    @property
    def is_large(self) -> bool:
        """Whether the row has at least 350M parameters: widths of 1024 and more, and one of 984."""
        return self.model.d_model > 900

    @property
    def text(self) -> str:
        return "SlimPajama" if self.settings is CAT else "the Pile"

    @property
    def decays_embedding(self) -> bool:
        """GPT-NeoX (Zoology) decays all but norms and biases; Based's code no `nn.Embedding` either."""
        return self.settings.paper != "Based"


Z7, Z9, Z13 = (Settings("Zoology", f"Table {n}") for n in (7, 9, 13))
Z11 = Settings("Zoology", "Table 11", least=1e-5, b2=0.98)
Z14 = Settings("Zoology", "Table 14", least=1e-5, b2=0.999)
Z15 = Settings("Zoology", "Table 15", schedule="linear", least=1e-5, b2=0.98, weight_decay=0.05)
Z16 = Settings("Zoology", "Table 16", schedule="linear")
B7, B8, B9, B10, B13 = (Settings("Based", f"Table {n}") for n in (7, 8, 9, 10, 13))
B11, B12 = (Settings("Based", f"Table {n}", b2=0.99) for n in (11, 12))
CAT = Settings("CAT", "none", least=3e-5, base=3e-4, weight_decay=0.01)
"""No paper states b2."""

ROWS: dict[str, Row] = {
    "zoology_attention_73m": Row(presets.zoology_attention_73m(), Z7),
    "zoology_attention_125m": Row(presets.zoology_attention_125m(), Z7),
    "zoology_attention_360m": Row(presets.zoology_attention_360m(), Z7),
    "zoology_attention_125m_5b": Row(presets.zoology_attention_125m(), Z7, 5),
    "zoology_liquid_s4_145m": Row(presets.zoology_liquid_s4_145m(), Z13, 5),
    "zoology_long_conv_76m": Row(presets.zoology_long_conv_76m(), Z16),
    "zoology_long_conv_128m": Row(presets.zoology_long_conv_128m(), Z16),
    "zoology_long_conv_360m": Row(presets.zoology_long_conv_360m(), Z16),
    "zoology_h3_72m": Row(presets.zoology_h3_72m(), Z13),
    "zoology_h3_168m": Row(presets.zoology_h3_168m(), Z13),
    "zoology_h3_357m": Row(presets.zoology_h3_357m(), Z13),
    "zoology_hyena_72m": Row(presets.zoology_hyena_72m(), Z11),
    "zoology_hyena_158m": Row(presets.zoology_hyena_158m(), Z11),
    "zoology_hyena_358m": Row(presets.zoology_hyena_358m(), Z11),
    "zoology_hyena_sine2_158m": Row(presets.zoology_hyena_158m(sine_frequency=2.0), Z11),
    "zoology_hyena_sine2_358m": Row(presets.zoology_hyena_358m(sine_frequency=2.0), Z11),
    "zoology_multi_head_hyena_150m": Row(presets.zoology_multi_head_hyena_150m(), Z11),
    "zoology_multi_head_hyena_358m": Row(presets.zoology_multi_head_hyena_358m(), Z11),
    "zoology_hyena_window_64_159m": Row(presets.zoology_hyena_sliding_window_159m(window=64), Z11),
    "zoology_hyena_window_256_159m": Row(presets.zoology_hyena_sliding_window_159m(window=256), Z11),
    "zoology_rwkv_72m": Row(presets.zoology_rwkv_72m(), Z14),
    "zoology_rwkv_169m": Row(presets.zoology_rwkv_169m(), Z14),
    "zoology_rwkv_351m": Row(presets.zoology_rwkv_351m(), Z14),
    "zoology_ret_net_152m": Row(presets.zoology_ret_net_152m(), Z15),
    "zoology_base_conv_168m": Row(presets.zoology_base_conv_168m(), Z9),
    "zoology_base_conv_random_162m": Row(presets.zoology_base_conv_selective_162m(selection="random"), Z9),
    "zoology_base_conv_programmatic_162m": Row(presets.zoology_base_conv_selective_162m(), Z9),
    "zoology_base_conv_learned_166m": Row(presets.zoology_base_conv_selective_162m(selection="learned"), Z9),
    "zoology_base_conv_attention_166m": Row(presets.zoology_base_conv_attention_166m(), Z9),
    "zoology_base_conv_354m": Row(presets.zoology_base_conv_354m(), Z9),
    "zoology_base_conv_random_365m": Row(presets.zoology_base_conv_selective_365m(selection="random"), Z9),
    "zoology_base_conv_programmatic_365m": Row(presets.zoology_base_conv_selective_365m(), Z9),
    "zoology_base_conv_learned_351m": Row(presets.zoology_base_conv_selective_365m(selection="learned"), Z9),
    "zoology_base_conv_attention_351m": Row(presets.zoology_base_conv_attention_351m(), Z9),
    "based_360m": Row(presets.based_360m_ablation(), B7),
    "based_360m_30b": Row(presets.based_360m(), B7, 30),
    "based_1_3b": Row(presets.based_1_3b(decay=True), B7),
    "based_1_3b_50b": Row(presets.based_1_3b(), B7, 50),
    "transformer_pp_360m": Row(presets.transformer_pp_360m(), B8),
    "transformer_pp_360m_30b": Row(presets.transformer_pp_360m(), B8, 30),
    "transformer_pp_1_3b": Row(presets.transformer_pp_1_3b(), B8),
    "transformer_pp_1_3b_50b": Row(presets.transformer_pp_1_3b(), B8, 50),
    "pythia_356m": Row(presets.pythia_356m(), B8),
    "mamba_360m": Row(presets.mamba_360m(), B9),
    "mamba_360m_30b": Row(presets.mamba_360m(), B9, 30),
    "mamba_1_3b": Row(presets.mamba_1_3b(), B9),
    "mamba_1_3b_50b": Row(presets.mamba_1_3b(), B9, 50),
    "hyena_355m": Row(presets.hyena_355m(), B10),
    "h3_362m": Row(presets.h3_362m(), B11),
    "rwkv5_362m": Row(presets.rwkv5_362m(), B12),
    "gla_362m": Row(presets.gla_362m(), B13),
    **{
        f"based_360m_{row.replace('-', '_')}": Row(presets.based_360m_ablation(**arguments), B7)
        for row, arguments in presets.TABLE_6.items()
        if row != "taylor-16"  # based_360m
    },
    "pythia_370m": Row(presets.pythia_370m(), CAT, 15),
    "pythia_370m_no_pe": Row(presets.pythia_370m(positions="none"), CAT, 15),
    "cat_370m": Row(presets.cat_370m(), CAT, 15),
    "cat_370m_no_pe": Row(presets.cat_370m(positions="none"), CAT, 15),
    "mh_cat_370m": Row(presets.mh_cat_370m(), CAT, 15),
    "mh_cat_370m_no_pe": Row(presets.mh_cat_370m(positions="none"), CAT, 15),
}
"""Rows of the papers' tables by the name in `configs/lm/<paper>.py`."""
