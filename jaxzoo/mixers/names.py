"""Names of mixers: aliases from papers and flash-linear-attention, and titles for tables and figures."""

ALIASES = {
    "cat": "convolution_augmented_attention",
    "fox": "forgetting_attention",
    "gdn": "gated_delta_net",
    "gdn2": "gated_delta_net2",
    "gla": "gated_linear_attention",
    "griffin": "rg_lru",
    "gsa": "gated_slot_attention",
    "kda": "kimi_delta_attention",
    "mha": "attention",
    "mla": "latent_attention",
    "nsa": "native_sparse_attention",
    "path": "path_attention",
    "retnet": "ret_net",
    "rwkv4": "rwkv4_time_mix",
    "rwkv5": "rwkv5_time_mix",
    "rwkv6": "rwkv6_time_mix",
    "rwkv7": "rwkv7_time_mix",
    "softmax": "attention",
    "swa": "sliding_window_attention",
    "taylor": "taylor_linear_attention",
    "xlstm": "mlstm",
}
"""Mapping from aliases to registered names."""

TITLES = {
    "attention": "Attention",
    "base_conv": "BaseConv",
    "big_bird": "BigBird",
    "blocked_window_attention": "Blocked window attention",
    "convolution_augmented_attention": "CAT",
    "delta_net": "DeltaNet",
    "forgetting_attention": "FoX",
    "gated_delta_net": "Gated DeltaNet",
    "gated_delta_net2": "Gated DeltaNet-2",
    "gated_delta_product": "Gated DeltaProduct",
    "gated_linear_attention": "GLA",
    "gated_short_conv": "Gated short convolution",
    "gated_slot_attention": "GSA",
    "input_dependent_conv": "Input-dependent convolution",
    "kimi_delta_attention": "Kimi Delta Attention",
    "landmark_cat": "Landmark CAT",
    "latent_attention": "MLA",
    "lightning_attention": "Lightning attention",
    "linear_attention": "Linear attention",
    "liquid_s4": "Liquid-S4",
    "long_conv": "Long convolution",
    "mamba2": "Mamba-2",
    "mamba3": "Mamba-3",
    "mlstm": "mLSTM",
    "multi_head_hyena": "Multi-head Hyena",
    "native_sparse_attention": "NSA",
    "nystromformer": "Nyströmformer",
    "path_attention": "PaTH",
    "ret_net": "RetNet",
    "rg_lru": "RG-LRU",
    "rwkv4_channel_mix": "RWKV-4 channel mix",
    "rwkv4_time_mix": "RWKV-4",
    "rwkv5_time_mix": "RWKV-5",
    "rwkv6_time_mix": "RWKV-6",
    "rwkv7_channel_mix": "RWKV-7 channel mix",
    "rwkv7_time_mix": "RWKV-7",
    "scatter_brain": "ScatterBrain",
    "selective_attention": "Selective attention",
    "sliding_window_attention": "Sliding window attention",
    "taylor_linear_attention": "Taylor linear attention",
    "windowed_linear_attention": "Windowed linear attention",
}
"""Mapping from registered names to titles that differ from the class name."""


def resolve_alias(name: str) -> str:
    """Returns the registered name of an alias, in any case, with `-` or `_`; other names are unchanged.

    Raises:
      ValueError: "based", which is a hybrid and not one mixer.
    """
    plain = name.lower().replace("-", "_")
    if plain == "based":
        raise ValueError(
            "mixer 'based': Based is a hybrid of Taylor linear attention and sliding windows; take its mixer "
            "'taylor_linear_attention', or the hybrid's config, configs/mqar/based.py"
        )
    return ALIASES.get(plain, name)


def title(name: str) -> str:
    """Returns the title of a mixer: "Gated DeltaNet" for gated_delta_net; fields of a variant are kept."""
    from jaxzoo.mixers import MIXERS

    first, *fields = name.split(" ", 1)
    default = MIXERS[first].__name__.removesuffix("Config") if first in MIXERS else first
    return " ".join([TITLES.get(first, default), *fields])
