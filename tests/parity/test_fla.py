"""Mixers of 2024 to 2026 against the layers of flash-linear-attention, with its naive functions in place of kernels."""

import numpy as np
import pytest
from flax import nnx

from jaxzoo.mixers import (
    CombaConfig,
    ForgettingAttentionConfig,
    GatedDeltaNet2Config,
    GatedDeltaProductConfig,
    GatedSlotAttentionConfig,
    HGRNConfig,
    MesaNetConfig,
    NativeSparseAttentionConfig,
    PathAttentionConfig,
)
from tests.parity.carry import compare, inputs, randomize
from tests.parity.fla_on_cpu import fla

__all__ = ["fla"]
pytestmark = pytest.mark.parity
D = 24
NAMES = {
    **{f"{name}_proj": f"{name}_proj" for name in "qkvi"},
    "out_proj": "o_proj",
    "beta_proj": "b_proj",
    "decay_proj": "a_proj",
    "gate_proj": "g_proj",
}
"""Projections: our name -> theirs."""


def carry(*projections, arrays=None, convs="", biased=(), **renamed):
    """The function `carry` of `compare`.

    Args:
      projections: our names; with a bias if also in `biased`.
      arrays: other parameters, our path -> theirs.
      convs: letters of the convolutions that are joined in `conv.taps`.
      renamed: our name of a projection -> theirs, where not as in `NAMES`.
    """
    names = {**NAMES, **renamed}

    def run(get):
        values = {f"{ours}.kernel": get(f"{names[ours]}.weight").T for ours in projections}
        values |= {f"{ours}.bias": get(f"{names[ours]}.bias") for ours in biased}
        values |= {ours: get(theirs) for ours, theirs in (arrays or {}).items()}
        if convs:
            values["conv.taps"] = np.concatenate([get(f"{x}_conv1d.weight")[:, 0, ::-1].T for x in convs], axis=1)
        return values

    return run


def check(torch, config, layer, carried, t=37):
    """Compares outputs and gradients; every parameter is moved first."""
    randomize(layer, torch, std=0.2)
    ours = config.build(rngs=nnx.Rngs(0))
    compare(ours, layer.train(), carried, inputs(t=t, d=D), run=lambda layer, x: layer(x)[0], torch=torch)


QKVO = ("q_proj", "k_proj", "v_proj", "out_proj")
DELTA = (*QKVO, "beta_proj", "decay_proj", "gate_proj")
DECAYED = {"a_log": "A_log", "dt_bias": "dt_bias", "norm.scale": "o_norm.weight"}


@pytest.mark.parametrize("full", [False, True])
def test_forgetting_attention(torch, fla, full):
    """Kills: a scaled gate, the own token's gate, a norm of keys with another eps, a gate before the mean."""
    layer = fla.forgetting_attn.ForgettingAttention(
        hidden_size=D, num_heads=4, num_kv_heads=2 if full else None, qk_norm=full, use_output_gate=full
    )
    config = ForgettingAttentionConfig(
        d_model=D, n_heads=4, n_kv_heads=2 if full else None, qk_norm="rms" if full else "none", output_gate=full
    )
    norms = {"q_norm.scale": "q_norm.weight", "k_norm.scale": "k_norm.weight"} if full else {}
    projections = (*QKVO, "forget_proj", *(("gate_proj",) if full else ()))
    carried = carry(*projections, arrays=norms, biased=("forget_proj",), forget_proj="f_proj")
    check(torch, config, layer, carried)


@pytest.mark.parametrize("full", [False, True])
def test_path_attention(torch, fla, full):
    """Kills: maps in another order, an unscaled forget gate, directions without SiLU or with another length."""
    layer = fla.path_attn.PaTHAttention(
        hidden_size=D, num_heads=4, use_forget_gate=full, use_qk_norm=full, use_low_rank_w=not full
    )
    config = PathAttentionConfig(
        d_model=D, n_heads=4, forget_gate=full, qk_norm="rms" if full else "none", w_rank=None if full else 32
    )
    arrays = {"q_norm.scale": "maybe_q_norm.weight", "k_norm.scale": "maybe_k_norm.weight"} if full else {}
    usual = carry(
        *QKVO,
        "beta_proj",
        *(("forget_proj", "w_proj") if full else ()),
        arrays=arrays,
        biased=("beta_proj", *(("forget_proj",) if full else ())),
        beta_proj="bt_proj",
        forget_proj="g_proj",
        w_proj="w_proj",
    )

    def carried(get):
        values = usual(get) | {"w_conv.taps": get("w_conv1d.weight")[:, 0, ::-1].T}
        if not full:
            values |= {"w_proj.down.kernel": get("w_proj.0.weight").T, "w_proj.up.kernel": get("w_proj.1.weight").T}
        return values

    check(torch, config, layer, carried)


def test_gated_slot_attention(torch, fla):
    """Kills: scaled queries, slots from the raw gate, a norm per head, a norm before the SiLU."""
    layer = fla.gsa.GatedSlotAttention(hidden_size=D, num_heads=4, num_kv_heads=2, num_slots=5, mode="chunk")
    config = GatedSlotAttentionConfig(d_model=D, n_heads=4, n_kv_heads=2, n_slots=5)
    carried = carry(*QKVO, "slot_proj", arrays={"norm.scale": "g_norm.weight"}, slot_proj="f_proj")
    check(torch, config, layer, carried, t=70)  # up to 64 tokens the layer takes its decoding kernel


def test_abc(torch, fla):
    """Kills: a softmax over slots in place of time, rotations by pairs, an unscaled query, a norm over all heads."""
    layer = fla.abc.ABCAttention(hidden_size=D, num_heads=4, expand_k=1.0, num_slots=5)
    config = GatedSlotAttentionConfig.abc(d_model=D, n_heads=4, key_width=D, n_slots=5)
    arrays = {"norm.scale": "g_norm.weight"}
    check(torch, config, layer, carry(*QKVO, "slot_proj", "gate_proj", arrays=arrays, slot_proj="s_proj"))


def test_comba(torch, fla):
    """Kills: a removal that reads the decayed state, a feedback that is not normalized, uncorrected queries."""
    layer = fla.comba.Comba(hidden_size=D, num_heads=4, head_dim=6, expand_v=1)
    arrays = DECAYED | {"inner_decay": "decay", "correction": "D"}
    config = CombaConfig(d_model=D, n_heads=4, key_width=24, value_width=24)
    check(torch, config, layer, carry(*DELTA, arrays=arrays, convs="qkv"))


def test_gated_delta_net2(torch, fla):
    """Kills: erasing and writing gates in each other's place, a decay after the removal, a decay rate per channel."""
    layer = fla.gdn2.GatedDeltaNet2(hidden_size=D, num_heads=4, head_dim=6)
    arrays = DECAYED | {"gate.up.bias": "g_proj.1.bias"}
    usual = carry(*QKVO, "beta_proj", "write_proj", arrays=arrays, convs="qkv", write_proj="w_proj")

    def carried(get):
        pairs = {"decay": "f_proj", "gate": "g_proj"}
        low = {
            f"{ours}.{part}.kernel": get(f"{theirs}.{i}.weight").T
            for ours, theirs in pairs.items()
            for i, part in enumerate(("down", "up"))
        }
        return usual(get) | low

    config = GatedDeltaNet2Config(d_model=D, n_heads=4, key_width=24, value_width=24)
    check(torch, config, layer, carried)


@pytest.mark.parametrize("n", [1, 3])
def test_gated_delta_product(torch, fla, n):
    """Kills: a decay for each update, updates in another order, betas up to 1, a read before the last update."""
    layer = fla.gated_deltaproduct.GatedDeltaProduct(
        hidden_size=D, num_heads=4, head_dim=6, expand_v=1, num_householder=n
    )
    config = GatedDeltaProductConfig(d_model=D, n_heads=4, key_width=24, value_width=24, n_updates=n)
    check(torch, config, layer, carry(*DELTA, arrays=DECAYED, convs="qkv"))


def test_hgrn(torch, fla):
    """Kills: an input without the complement of the gate, SiLU on another factor, a norm per head."""
    layer = fla.hgrn.HGRNAttention(hidden_size=D)
    arrays = {"norm.scale": "g_norm.weight"}
    carried = carry("i_proj", "f_proj", "gate_proj", "out_proj", arrays=arrays, f_proj="f_proj")
    check(torch, HGRNConfig(d_model=D), layer, carried)


@pytest.mark.parametrize("gate", [False, True])
def test_mesa_net(torch, fla, gate):
    """Kills: steps that start elsewhere, a ridge without its bound, convolved values, other small terms."""
    layer = fla.mesa_net.MesaNet(hidden_size=D, num_heads=4, head_dim=6, use_output_gate=gate)
    arrays = {"ridge": "lambda_params", "norm.scale": "o_norm.weight"}
    projections = (*QKVO, "decay_proj", "beta_proj", *(("gate_proj",) if gate else ()))
    carried = carry(*projections, arrays=arrays, biased=("decay_proj", "beta_proj"), convs="qk")
    check(torch, MesaNetConfig(d_model=D, n_heads=4, head_dim=6, gate=gate), layer, carried)


def test_native_sparse_attention(torch, fla):
    """Kills: blocks that are not yet full, a window without the own token, gates of another branch, blocks chosen per
    head."""
    layer = fla.nsa.NativeSparseAttention(
        hidden_size=D, num_heads=4, num_kv_heads=2, head_dim=6, block_size=4, block_counts=3, window_size=6
    )
    config = NativeSparseAttentionConfig(
        d_model=D, n_heads=4, n_kv_heads=2, head_dim=6, block_size=4, n_selected=3, window=6
    )
    check(torch, config, layer, carry(*QKVO, "gate_proj"))
