"""Language models of Zoology (Arora et al. 2024), on the Pile: one entry per row of its tables.

Choose one by `--config configs/lm/zoology.py --name NAME`; configs/README.md lists them with the paper's results. They
have not been trained with this library. Data, schedule, and what the paper leaves open: `recipes.zoology`.
"""

from jaxzoo.models import presets
from jaxzoo.train import recipes

configs = {
    "zoology_attention_73m": recipes.zoology(presets.zoology_attention_73m()),
    "zoology_attention_125m": recipes.zoology(presets.zoology_attention_125m()),
    "zoology_attention_360m": recipes.zoology(presets.zoology_attention_360m(), mesh=recipes.SHARDED),
    # The steps are not printed; these are half of Table 7's.
    "zoology_attention_125m_5b": recipes.zoology(presets.zoology_attention_125m(), steps=10_000),
    "zoology_long_conv_76m": recipes.zoology(presets.zoology_long_conv_76m(), schedule="linear"),
    "zoology_long_conv_128m": recipes.zoology(presets.zoology_long_conv_128m(), schedule="linear"),
    "zoology_long_conv_360m": recipes.zoology(
        presets.zoology_long_conv_360m(), schedule="linear", mesh=recipes.SHARDED
    ),
    "zoology_h3_72m": recipes.zoology(presets.zoology_h3_72m()),
    "zoology_h3_168m": recipes.zoology(presets.zoology_h3_168m()),
    "zoology_h3_357m": recipes.zoology(presets.zoology_h3_357m(), mesh=recipes.SHARDED),
    "zoology_hyena_72m": recipes.zoology(presets.zoology_hyena_72m(), b2=0.98, final_rate=1e-5),
    "zoology_hyena_158m": recipes.zoology(presets.zoology_hyena_158m(), b2=0.98, final_rate=1e-5),
    "zoology_hyena_358m": recipes.zoology(presets.zoology_hyena_358m(), b2=0.98, final_rate=1e-5, mesh=recipes.SHARDED),
    "zoology_hyena_sine2_158m": recipes.zoology(
        presets.zoology_hyena_158m(sine_frequency=2.0), b2=0.98, final_rate=1e-5
    ),
    "zoology_hyena_sine2_358m": recipes.zoology(
        presets.zoology_hyena_358m(sine_frequency=2.0), b2=0.98, final_rate=1e-5, mesh=recipes.SHARDED
    ),
    "zoology_multi_head_hyena_150m": recipes.zoology(presets.zoology_multi_head_hyena_150m(), b2=0.98, final_rate=1e-5),
    "zoology_multi_head_hyena_358m": recipes.zoology(
        presets.zoology_multi_head_hyena_358m(), b2=0.98, final_rate=1e-5, mesh=recipes.SHARDED
    ),
    "zoology_hyena_window_64_159m": recipes.zoology(
        presets.zoology_hyena_sliding_window_159m(window=64), b2=0.98, final_rate=1e-5
    ),
    "zoology_hyena_window_256_159m": recipes.zoology(
        presets.zoology_hyena_sliding_window_159m(window=256), b2=0.98, final_rate=1e-5
    ),
    "zoology_rwkv_72m": recipes.zoology(presets.zoology_rwkv_72m(), b2=0.999, final_rate=1e-5),
    "zoology_rwkv_169m": recipes.zoology(presets.zoology_rwkv_169m(), b2=0.999, final_rate=1e-5),
    "zoology_rwkv_351m": recipes.zoology(presets.zoology_rwkv_351m(), b2=0.999, final_rate=1e-5, mesh=recipes.SHARDED),
    "zoology_ret_net_152m": recipes.zoology(
        presets.zoology_ret_net_152m(), b2=0.98, schedule="linear", final_rate=1e-5, weight_decay=0.05
    ),
    "zoology_base_conv_168m": recipes.zoology(presets.zoology_base_conv_168m()),
    "zoology_base_conv_random_162m": recipes.zoology(presets.zoology_base_conv_selective_162m(selection="random")),
    "zoology_base_conv_programmatic_162m": recipes.zoology(
        presets.zoology_base_conv_selective_162m(selection="programmatic")
    ),
    "zoology_base_conv_learned_166m": recipes.zoology(presets.zoology_base_conv_selective_162m(selection="learned")),
    "zoology_base_conv_attention_166m": recipes.zoology(presets.zoology_base_conv_attention_166m()),
    "zoology_base_conv_354m": recipes.zoology(presets.zoology_base_conv_354m(), mesh=recipes.SHARDED),
    "zoology_base_conv_random_365m": recipes.zoology(
        presets.zoology_base_conv_selective_365m(selection="random"), mesh=recipes.SHARDED
    ),
    "zoology_base_conv_programmatic_365m": recipes.zoology(
        presets.zoology_base_conv_selective_365m(selection="programmatic"), mesh=recipes.SHARDED
    ),
    "zoology_base_conv_learned_351m": recipes.zoology(
        presets.zoology_base_conv_selective_365m(selection="learned"), mesh=recipes.SHARDED
    ),
    "zoology_base_conv_attention_351m": recipes.zoology(
        presets.zoology_base_conv_attention_351m(), mesh=recipes.SHARDED
    ),
    # Neither the model nor its training is printed: the preset says how we read it, the rest is Table 13's, H3.
    "zoology_liquid_s4_145m": recipes.zoology(presets.zoology_liquid_s4_145m(), steps=10_000),
}
