"""Tiny random folders that transformers writes: `python -m tests.parity.folders DIR` makes one of every family.

Set `TRITON_INTERPRET=1` for those of flash-linear-attention.
"""

import sys
import warnings
from pathlib import Path

COMMON = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 3}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 40, "max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 1000.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
    "rope_theta": 500.0,
}
NEOX = {
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5},
}
GRIFFIN = {
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "intermediate_size": 48,
    "attention_window_size": 6,
    "conv1d_width": 3,
    "logits_soft_cap": 2.0,
    "num_hidden_layers": 4,
    "lru_width": 32,
}
QWEN3_NEXT = HEADS | {
    "num_hidden_layers": 4,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 5,
    "num_experts": 0,
}
OLMO_HYBRID = HEADS | {
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 5,
    "pad_token_id": 0,
    "rope_theta": None,
}
UNFUSED = {"fuse_cross_entropy": False, "fuse_swiglu": False}
FLA = {"intermediate_size": 40, "max_position_embeddings": 64} | UNFUSED
FOLDERS = {
    "llama": ("LlamaForCausalLM", HEADS),
    "llama-biases": ("LlamaForCausalLM", HEADS | {"attention_bias": True, "mlp_bias": True, "head_dim": 10}),
    "llama-yarn-tied": ("LlamaForCausalLM", HEADS | {"rope_parameters": YARN, "tie_word_embeddings": True}),
    "llama-yarn-unrounded": (
        "LlamaForCausalLM",
        HEADS | {"rope_parameters": YARN | {"truncate": False, "attention_factor": 1.3, "beta_fast": 16.0}},
    ),
    "llama-linear": (
        "LlamaForCausalLM",
        HEADS | {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}},
    ),
    "llama-llama3": ("LlamaForCausalLM", HEADS | {"rope_parameters": LLAMA3}),
    "mistral": ("MistralForCausalLM", HEADS | {"sliding_window": 7}),
    "mistral-full": ("MistralForCausalLM", HEADS | {"sliding_window": None}),
    "qwen2": ("Qwen2ForCausalLM", HEADS | {"tie_word_embeddings": True}),
    "qwen2-windows": (
        "Qwen2ForCausalLM",
        HEADS | {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3ForCausalLM", HEADS | {"head_dim": 12}),
    "gpt_neox-parallel": ("GPTNeoXForCausalLM", NEOX),
    "gpt_neox-sequential": ("GPTNeoXForCausalLM", NEOX | {"use_parallel_residual": False, "hidden_act": "gelu_new"}),
    "gpt_neox-plain": ("GPTNeoXForCausalLM", NEOX | {"attention_bias": False, "tie_word_embeddings": True}),
    "mamba": ("MambaForCausalLM", {"state_size": 5, "time_step_rank": 3}),
    "falcon_mamba": ("FalconMambaForCausalLM", {"state_size": 5, "time_step_rank": 3}),
    "mamba2": ("Mamba2ForCausalLM", {"state_size": 5, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 8}),
    "rwkv4": ("RwkvForCausalLM", {"attention_hidden_size": 40, "intermediate_size": 48, "rescale_every": 2}),
    "recurrent_gemma": ("RecurrentGemmaForCausalLM", GRIFFIN),
    "recurrent_gemma-biases": (
        "RecurrentGemmaForCausalLM",
        GRIFFIN | {"attention_bias": True, "num_key_value_heads": 4},
    ),
    "qwen3_next": ("Qwen3NextForCausalLM", QWEN3_NEXT),
    "qwen3_5": ("Qwen3_5ForCausalLM", QWEN3_NEXT),
    "lfm2": ("Lfm2ForCausalLM", HEADS | {"layer_types": ["conv", "full_attention", "conv"]}),
    "lfm2-biases": (
        "Lfm2ForCausalLM",
        HEADS | {"full_attn_idxs": [1], "conv_bias": True, "block_auto_adjust_ff_dim": False, "conv_L_cache": 2},
    ),
    "olmo_hybrid": ("OlmoHybridForCausalLM", OLMO_HYBRID),
    "olmo_hybrid-rotary": (
        "OlmoHybridForCausalLM",
        OLMO_HYBRID | {"rope_theta": 500.0, "linear_allow_neg_eigval": False, "num_hidden_layers": 2},
    ),
    "gla": ("GLAForCausalLM", FLA | {"num_heads": 2, "expand_v": 0.75}),
    "delta_net": ("DeltaNetForCausalLM", FLA | {"num_heads": 2, "expand_k": 0.5}),
    "delta_net-gate": (
        "DeltaNetForCausalLM",
        FLA | {"num_heads": 2, "use_gate": True, "qk_activation": "elu", "qk_norm": "sum", "conv_size": 3},
    ),
    "gated_deltanet": ("GatedDeltaNetForCausalLM", FLA | {"num_heads": 2, "num_v_heads": 4, "head_dim": 8}),
    "hgrn2": ("HGRN2ForCausalLM", FLA | {"expand_ratio": 8}),
    "retnet": ("RetNetForCausalLM", FLA | {"num_heads": 2}),
    "rwkv6_fla": (
        "RWKV6ForCausalLM",
        {"num_heads": 2, "intermediate_size": 40, "proj_low_rank_dim": 4, "gate_low_rank_dim": 6} | UNFUSED,
    ),
}
"""Class of transformers and fields of its config, by name of a folder."""


def fla_models():
    """The models of flash-linear-attention on a CPU; with `TRITON_INTERPRET=1` set before Triton is imported, it
    interprets their kernels, here with the first tiles."""
    from triton.runtime import autotuner

    autotuner.Autotuner._bench = lambda self, *args, config, **options: [0.0, 0.0, 0.0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Triton and FlashAttention are absent
        from fla import models

    return models


def make_model(name, **more):
    """A model with random parameters, none of them 0 or 1, and `more` fields; a seed gives the same one."""
    import torch
    import transformers

    kind, fields = FOLDERS[name]
    torch.manual_seed(0)
    cls = getattr(transformers, kind, None) or getattr(fla_models(), kind)
    model = cls(cls.config_class(**{**COMMON, **fields, **more})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    return model


def main(directory):
    for name in FOLDERS:
        make_model(name).save_pretrained(Path(directory) / name)
        print(Path(directory) / name)


if __name__ == "__main__":
    main(sys.argv[1])
