"""Mamba-2, Griffin's recurrent block, Gated DeltaNet and Kimi Delta Attention against the layers of transformers."""

import numpy as np
import pytest
from flax import nnx

from jaxzoo.mixers import (
    RGLRU,
    GatedDeltaNet,
    GatedDeltaNetConfig,
    KimiDeltaAttention,
    KimiDeltaAttentionConfig,
    Mamba2,
    Mamba2Config,
    RGLRUConfig,
)
from tests.parity.carry import compare, inputs, randomize

pytestmark = pytest.mark.parity
D = 24


def taps(weight):
    """A depthwise Conv1d's weight, newest tap first."""
    return weight[:, 0, ::-1].T


@pytest.mark.parametrize("options", [{"n_groups": 2}, {"use_bias": True, "time_step_limit": (0.3, 1.0)}])
def test_mamba2(torch, transformers, options):
    """Kills: x, B, C or the gate in another place of the projection, a norm over all groups, a gate after the norm, an
    unclipped time step; values and all gradients."""
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

    sizes = {"num_heads": 6, "head_dim": 8, "state_size": 5, "expand": 2, "conv_kernel": 4, "chunk_size": 16}
    groups = {"n_groups": 1, **options}
    theirs = Mamba2Mixer(
        transformers.Mamba2Config(hidden_size=D, num_hidden_layers=1, vocab_size=8, **{**sizes, **groups}), layer_idx=0
    ).eval()
    randomize(theirs, torch)
    biased = bool(options.get("use_bias"))

    def carry(get):
        values = {f"{name}.kernel": get(f"{name}.weight").T for name in ("in_proj", "out_proj")}
        values |= {f"{name}.bias": get(f"{name}.bias") for name in ("in_proj", "out_proj") if biased}
        values |= {"conv.taps": taps(get("conv1d.weight")), "conv.bias": get("conv1d.bias")}
        return values | {
            "a_log": get("A_log"),
            "dt_bias": get("dt_bias"),
            "skip": get("D"),
            "norm.scale": get("norm.weight"),
        }

    config = Mamba2Config(
        d_model=D,
        d_state=5,
        head_dim=8,
        n_groups=groups["n_groups"],
        proj_bias=biased,
        dt_limit=options.get("time_step_limit"),
    )
    ours = Mamba2(config, rngs=nnx.Rngs(0))
    compare(ours, theirs, carry, inputs(), run=lambda layer, x: layer(x), torch=torch)


def test_griffin_block(torch, transformers):
    """Kills: gates of the wrong inputs or blocks, another GELU, a first token that is scaled; values and gradients."""
    from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaRecurrentBlock

    config = transformers.RecurrentGemmaConfig(
        hidden_size=D, lru_width=32, num_attention_heads=4, conv1d_width=4, num_hidden_layers=3, vocab_size=8
    )
    theirs = RecurrentGemmaRecurrentBlock(config, layer_idx=0).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.zero_()
    randomize(theirs, torch)

    def carry(get):
        names = {"x_proj": "linear_x", "gate_proj": "linear_y", "out_proj": "linear_out"}
        values = {f"{ours}.kernel": get(f"{name}.weight").T for ours, name in names.items()}
        values |= {f"{ours}.bias": get(f"{name}.bias") for ours, name in names.items()}
        values |= {"conv.taps": taps(get("conv_1d.weight")), "conv.bias": get("conv_1d.bias")}
        for ours, name in (("recurrence_gate", "recurrent_gate"), ("input_gate", "input_gate")):
            values |= {f"{ours}.kernel": get(f"rg_lru.{name}_weight"), f"{ours}.bias": get(f"rg_lru.{name}_bias")}
        return values | {"log_decay_rate": get("rg_lru.recurrent_param")}

    def run(layer, x):
        positions = torch.arange(x.shape[1])[None].expand(x.shape[0], -1)
        return layer(x, position_ids=positions, attention_mask=None, use_cache=False)[0]

    ours = RGLRU(RGLRUConfig(d_model=D, inner_width=32, n_heads=4, form="release"), rngs=nnx.Rngs(0))
    compare(ours, theirs, carry, inputs(), run=run, torch=torch)


def test_gated_delta_net_of_qwen3_next(torch, transformers):
    """Kills: value heads under another head of keys, beta and decay swapped, a decay after the read, another eps of the
    lengths; values and all gradients."""
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

    key_heads, value_heads, k, v = 2, 4, 6, 5
    config = transformers.Qwen3NextConfig(
        hidden_size=D,
        linear_num_key_heads=key_heads,
        linear_num_value_heads=value_heads,
        linear_key_head_dim=k,
        linear_value_head_dim=v,
        linear_conv_kernel_dim=4,
        num_hidden_layers=4,
        vocab_size=8,
    )
    theirs = Qwen3NextGatedDeltaNet(config, layer_idx=0).eval()
    randomize(theirs, torch)
    group = value_heads // key_heads

    def carry(get):
        qkvz = get("in_proj_qkvz.weight").reshape(key_heads, 2 * k + 2 * group * v, D)
        ba = get("in_proj_ba.weight").reshape(key_heads, 2 * group, D)
        parts = np.split(qkvz, [k, 2 * k, 2 * k + group * v], axis=1)
        names = ("q_proj", "k_proj", "v_proj", "gate_proj")
        values = {f"{name}.kernel": part.reshape(-1, D).T for name, part in zip(names, parts, strict=True)}
        values |= {
            "beta_proj.kernel": ba[:, :group].reshape(-1, D).T,
            "decay_proj.kernel": ba[:, group:].reshape(-1, D).T,
        }
        values |= {"a_log": get("A_log"), "dt_bias": get("dt_bias"), "conv.taps": taps(get("conv1d.weight"))}
        return values | {"norm.scale": get("norm.weight"), "out_proj.kernel": get("out_proj.weight").T}

    ours = GatedDeltaNet(
        GatedDeltaNetConfig(
            d_model=D,
            n_heads=key_heads,
            n_value_heads=value_heads,
            key_width=key_heads * k,
            value_width=value_heads * v,
            norm_eps=config.rms_norm_eps,
        ),
        rngs=nnx.Rngs(0),
    )
    compare(ours, theirs, carry, inputs(), run=lambda layer, x: layer(x), torch=torch)


def test_kimi_delta_attention(torch, transformers):
    """Kills: a decay per head, a gate of another activation, a bias in another place; values and all gradients."""
    from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearDeltaAttention

    heads, k = 3, 6
    config = transformers.KimiLinearConfig(
        hidden_size=D, linear_num_heads=heads, linear_head_dim=k, num_hidden_layers=2, vocab_size=8
    )
    theirs = KimiLinearDeltaAttention(config, layer_idx=0).eval()
    with torch.no_grad():
        for parameter in theirs.forget_gate.parameters():
            parameter.zero_()  # transformers leaves some uninitialised
    randomize(theirs, torch)
    lora = {"down": "f_a_proj", "up": "f_b_proj"}

    def carry(get):
        values = {f"{name}_proj.kernel": get(f"{name}_proj.weight").T for name in "qkv"}
        values |= {"beta_proj.kernel": get("b_proj.weight").T, "conv.taps": taps(get("conv1d.weight"))}
        values |= {f"decay.{ours}.kernel": get(f"forget_gate.{name}.weight").T for ours, name in lora.items()}
        values |= {"a_log": get("forget_gate.A_log").reshape(-1), "dt_bias": get("forget_gate.dt_bias")}
        values |= {"gate.down.kernel": get("g_a_proj.weight").T, "gate.up.kernel": get("g_b_proj.weight").T}
        return values | {"norm.scale": get("o_norm.weight"), "out_proj.kernel": get("o_proj.weight").T}

    sizes = {"n_heads": heads, "key_width": heads * k, "value_width": heads * k}
    ours = KimiDeltaAttention(
        KimiDeltaAttentionConfig(d_model=D, gate_bias=False, norm_eps=config.rms_norm_eps, **sizes), rngs=nnx.Rngs(0)
    )
    compare(ours, theirs, carry, inputs(), run=lambda layer, x: layer(x), torch=torch)
