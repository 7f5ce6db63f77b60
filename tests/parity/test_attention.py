"""Softmax attention against GPT-NeoX (Pythia) and Llama, and latent attention against DeepSeek-V3."""

import numpy as np
import pytest
from flax import nnx

from jaxzoo.layers.rotary_scaling import RotaryScaling
from jaxzoo.mixers import Attention, AttentionConfig, LatentAttentionConfig
from tests.parity.carry import compare, inputs, randomize

pytestmark = pytest.mark.parity


def causal_mask(torch, t):
    return torch.full((1, 1, t, t), -np.inf).triu(1)


def run_attention(rotary, torch):
    """Output of the peer's layer, called with its mask and rotary angles."""

    def run(layer, x):
        positions = torch.arange(x.shape[1])[None]
        mask = causal_mask(torch, x.shape[1])
        return layer(x, attention_mask=mask, position_embeddings=rotary(x, positions))[0]

    return run


def neox(transformers, *, parallel_residual=True):
    """Four heads of 16 channels, the first 4 of which rotate, as in Pythia (25 %)."""
    return transformers.GPTNeoXConfig(
        vocab_size=48,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=80,
        max_position_embeddings=64,
        use_parallel_residual=parallel_residual,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.25},
        attn_implementation="eager",
    )


NEOX = {"n_heads": 4, "positions": "rotary", "rotary_fraction": 0.25, "rotary_base": 100.0}


def carry_neox_attention(get):
    """Copies the parameters; rows of the peer's projection are (head, [q, k, v], channel)."""
    weight, bias = get("query_key_value.weight").reshape(4, 3, 16, 64), get("query_key_value.bias").reshape(4, 3, 16)
    values = {"out_proj.kernel": get("dense.weight").T, "out_proj.bias": get("dense.bias")}
    for i, name in enumerate(("q_proj", "k_proj", "v_proj")):
        values |= {f"{name}.kernel": weight[:, i].reshape(64, 64).T, f"{name}.bias": bias[:, i].reshape(64)}
    return values


def test_gpt_neox_attention(torch, transformers):
    """Kills: rotation of other channels or by neighbours, heads in another order, a scale; values and all gradients."""
    from transformers.models.gpt_neox import modeling_gpt_neox as theirs

    config = neox(transformers)
    layer, rotary = theirs.GPTNeoXAttention(config, layer_idx=0), theirs.GPTNeoXRotaryEmbedding(config)
    randomize(layer, torch)
    ours = Attention(AttentionConfig(d_model=64, qkv_bias=True, out_bias=True, **NEOX), rngs=nnx.Rngs(0))
    run = run_attention(rotary, torch)
    compare(ours, layer, carry_neox_attention, inputs(d=64), run=run, torch=torch)


def llama(transformers):
    """Four query heads on two key/value heads."""
    return transformers.LlamaConfig(
        vocab_size=48,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=80,
        rms_norm_eps=1e-3,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        attn_implementation="eager",
    )


LLAMA = {"n_heads": 4, "n_kv_heads": 2, "positions": "rotary", "rotary_base": 100.0}
LLAMA_PROJECTIONS = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "out_proj": "o_proj"}


def carry_llama_attention(get):
    return {f"{ours}.kernel": get(f"{theirs}.weight").T for ours, theirs in LLAMA_PROJECTIONS.items()}


def test_llama_attention(torch, transformers):
    """Kills: query heads that share another key/value head than theirs; in values and all gradients."""
    from transformers.models.llama import modeling_llama as theirs

    config = llama(transformers)
    layer, rotary = theirs.LlamaAttention(config, layer_idx=0), theirs.LlamaRotaryEmbedding(config)
    randomize(layer, torch)
    ours = Attention(AttentionConfig(d_model=32, **LLAMA), rngs=nnx.Rngs(0))
    compare(ours, layer, carry_llama_attention, inputs(d=32), run=run_attention(rotary, torch), torch=torch)


@pytest.mark.parametrize("rank", [None, 10])
def test_deepseek_latent_attention(torch, transformers, rank):
    """Kills: rotation of other channels, a scale without the rotated ones, a norm of the rotary key, YaRN without its
    factor of the scores; in values and all gradients."""
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as theirs

    yarn = {
        "rope_type": "yarn",
        "rope_theta": 100.0,
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    }
    config = transformers.DeepseekV3Config(
        vocab_size=48,
        hidden_size=24,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=rank,
        kv_lora_rank=9,
        qk_rope_head_dim=4,
        qk_nope_head_dim=6,
        v_head_dim=5,
        max_position_embeddings=64,
        rope_parameters=yarn if rank else {"rope_type": "default", "rope_theta": 100.0},
        attn_implementation="eager",
    )
    layer, rotary = theirs.DeepseekV3Attention(config, layer_idx=0), theirs.DeepseekV3RotaryEmbedding(config)
    randomize(layer, torch)
    q = {"q_down": "q_a_proj", "q_up": "q_b_proj"} if rank else {"q_proj": "q_proj"}
    names = {**q, "kv_down": "kv_a_proj_with_mqa", "kv_up": "kv_b_proj", "out_proj": "o_proj"}
    norms = {"kv_norm": "kv_a_layernorm", **({"q_norm": "q_a_layernorm"} if rank else {})}

    def carry(get):
        values = {f"{ours}.kernel": get(f"{name}.weight").T for ours, name in names.items()}
        return values | {f"{ours}.scale": get(f"{name}.weight") for ours, name in norms.items()}

    scaling = RotaryScaling(kind="yarn", factor=4.0, original_length=16, temperature=1.0) if rank else RotaryScaling()
    ours = LatentAttentionConfig(
        d_model=24,
        n_heads=4,
        head_dim=6,
        value_dim=5,
        rope_dim=4,
        q_rank=rank,
        kv_rank=9,
        rotary_base=100.0,
        rotary_scaling=scaling,
        score_factor=(0.1 * np.log(4) + 1) ** 2 if rank else 1.0,
    ).build(rngs=nnx.Rngs(0))
    compare(ours, layer, carry, inputs(d=24), run=run_attention(rotary, torch), torch=torch)
