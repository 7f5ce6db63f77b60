"""Mixers of 2024 to 2026 against the layers of flash-linear-attention, with its naive functions in place of kernels."""

import importlib

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
    LatentAttentionConfig,
    LightningAttentionConfig,
    LinearAttentionConfig,
    MesaNetConfig,
    MoBAConfig,
    NativeSparseAttentionConfig,
    PathAttentionConfig,
)
from tests.parity.carry import compare, inputs, randomize
from tests.parity.fla_on_cpu import fla, naive

__all__ = ["fla"]
pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore:The correction_factor")]
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


def check(torch, config, layer, carried, *, t=37, run=lambda layer, x: layer(x)[0], **options):
    """Compares outputs, gradients and final states; every parameter is moved first."""
    randomize(layer, torch, std=0.2)
    ours = config.build(rngs=nnx.Rngs(0))
    compare(ours, layer.train(), carried, inputs(t=t, d=D), run=run, torch=torch, **options)


QKVO = ("q_proj", "k_proj", "v_proj", "out_proj")
DELTA = (*QKVO, "beta_proj", "decay_proj", "gate_proj")
DECAYED = {"a_log": "A_log", "dt_bias": "dt_bias", "norm.scale": "o_norm.weight"}


@pytest.mark.parametrize("full", [False, True])
def test_forgetting_attention(torch, fla, full):
    """Kills: a scaled gate, the own token's gate, a norm of keys with another eps, a gate before the mean."""
    layer = fla.forgetting_attn.ForgettingAttention(
        hidden_size=D, layer_idx=0, num_heads=4, num_kv_heads=2 if full else None, qk_norm=full, use_output_gate=full
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
        hidden_size=D, layer_idx=0, num_heads=4, use_forget_gate=full, use_qk_norm=full, use_low_rank_w=not full
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
    layer = fla.gsa.GatedSlotAttention(
        hidden_size=D, layer_idx=0, num_heads=4, num_kv_heads=2, num_slots=5, mode="chunk"
    )
    config = GatedSlotAttentionConfig(d_model=D, n_heads=4, n_kv_heads=2, n_slots=5)
    carried = carry(*QKVO, "slot_proj", arrays={"norm.scale": "g_norm.weight"}, slot_proj="f_proj")
    state = lambda: {"keys": fla.final[0][0][:, ::2], "values": fla.final[0][1][:, ::2]}  # noqa: E731
    check(torch, config, layer, carried, t=70, final=state)  # up to 64 tokens the layer takes its decoding kernel


def test_abc(torch, fla):
    """Kills: a softmax over slots in place of time, rotations by pairs, an unscaled query, a norm over all heads."""
    layer = fla.abc.ABCAttention(hidden_size=D, layer_idx=0, num_heads=4, expand_k=1.0, num_slots=5)
    config = GatedSlotAttentionConfig.abc(d_model=D, n_heads=4, key_width=D, n_slots=5)
    carried = carry(*QKVO, "slot_proj", "gate_proj", arrays={"norm.scale": "g_norm.weight"}, slot_proj="s_proj")
    state = lambda: dict(zip(("keys", "values"), fla.final[0], strict=True))  # noqa: E731
    check(torch, config, layer, carried, final=state)


def test_comba(torch, fla):
    """Kills: a removal that reads the decayed state, a feedback that is not normalized, uncorrected queries."""
    layer = fla.comba.Comba(hidden_size=D, layer_idx=0, num_heads=4, head_dim=6, expand_v=1)
    arrays = DECAYED | {"inner_decay": "decay", "correction": "D"}
    config = CombaConfig(d_model=D, n_heads=4, key_width=24, value_width=24)
    check(torch, config, layer, carry(*DELTA, arrays=arrays, convs="qkv"), final=lambda: {"s": fla.final[0]})


def test_gated_delta_net2(torch, fla):
    """Kills: erasing and writing gates in each other's place, a decay after the removal, a decay rate per channel."""
    layer = fla.gdn2.GatedDeltaNet2(hidden_size=D, layer_idx=0, num_heads=4, head_dim=6)
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
    check(torch, config, layer, carried, final=lambda: {"s": fla.final[0]})


@pytest.mark.parametrize("n", [1, 3])
def test_gated_delta_product(torch, fla, n):
    """Kills: a decay for each update, updates in another order, betas up to 1, a read before the last update."""
    layer = fla.gated_deltaproduct.GatedDeltaProduct(
        hidden_size=D, layer_idx=0, num_heads=4, head_dim=6, expand_v=1, num_householder=n
    )
    config = GatedDeltaProductConfig(d_model=D, n_heads=4, key_width=24, value_width=24, n_updates=n)
    check(torch, config, layer, carry(*DELTA, arrays=DECAYED, convs="qkv"), final=lambda: {"s": fla.final[0]})


def test_hgrn(torch, fla):
    """Kills: an input without the complement of the gate, SiLU on another factor, a norm per head, a bound that is
    not part of the complement."""
    layer = fla.hgrn.HGRNAttention(hidden_size=D, layer_idx=1)
    arrays = {"norm.scale": "g_norm.weight"}
    carried = carry("i_proj", "f_proj", "gate_proj", "out_proj", arrays=arrays, f_proj="f_proj")
    bound = torch.full((D,), 1 / 3)
    check(
        torch,
        HGRNConfig(d_model=D, layer_index=1, n_layers=3),
        layer,
        carried,
        run=lambda layer, x: layer(x, lower_bound=bound)[0],
        final=lambda: {"h": fla.final[0]},
    )


@pytest.mark.parametrize("exact", [False, True])
def test_mesa_net(torch, fla, monkeypatch, exact):
    """Kills: steps that start elsewhere, a ridge without its bound, convolved values, other small terms; gradients of
    the exact solution, because ours do not go through the steps."""
    layer = fla.mesa_net.MesaNet(hidden_size=D, layer_idx=0, num_heads=4, head_dim=6, use_output_gate=exact)
    if exact:
        kernel = naive("mesa_net", "mesa_net.naive_mesa_net_exact", {}, fla.final)
        monkeypatch.setattr(fla.mesa_net, "chunk_mesa_net", kernel)
    projections = (*QKVO, "decay_proj", "beta_proj", *(("gate_proj",) if exact else ()))
    arrays = {"norm.scale": "o_norm.weight"}
    usual = carry(*projections, arrays=arrays, biased=("decay_proj", "beta_proj"), convs="qk")
    check(
        torch,
        MesaNetConfig(d_model=D, n_heads=4, head_dim=6, gate=exact, eps=1e-12 if exact else 1e-5),
        layer,
        lambda get: usual(get) | {"ridge": get("lambda_params").reshape(4, 6)},
        final=lambda: dict(zip(("kk", "kv"), fla.final, strict=True)),
        gradients=exact,
    )


def test_native_sparse_attention(torch, fla):
    """Kills: blocks that are not yet full, a window without the own token, gates of another branch, blocks chosen per
    head."""
    layer = fla.nsa.NativeSparseAttention(
        hidden_size=D,
        layer_idx=0,
        num_heads=32,
        num_kv_heads=2,
        head_dim=6,
        block_size=4,
        block_counts=5,
        window_size=6,
    )
    config = NativeSparseAttentionConfig(
        d_model=D, n_heads=32, n_kv_heads=2, head_dim=6, block_size=4, n_selected=5, window=6
    )
    check(torch, config, layer, carry(*QKVO, "gate_proj"))


@pytest.mark.parametrize("full", [False, True])
def test_moba(torch, fla, full):
    """Kills: scaled means, a choice before rotation, the own block among the scored ones, a gate before the norm."""
    layer = fla.moba.MoBA(
        hidden_size=D,
        layer_idx=0,
        num_heads=4,
        moba_chunk_size=4,
        moba_topk=3,
        qk_norm=full,
        use_output_gate=full,
    )
    config = MoBAConfig.fla(
        d_model=D, n_heads=4, block_size=4, n_selected=3, output_gate=full, qk_norm="rms" if full else "none"
    )
    norms = {"q_norm.scale": "q_norm.weight", "k_norm.scale": "k_norm.weight"} if full else {}
    usual = carry(*QKVO, arrays={"out_norm.scale": "o_norm.weight", **norms})

    def carried(get):
        low = {f"gate_proj.{part}.kernel": get(f"g_proj.{i}.weight").T for i, part in enumerate(("down", "up")) if full}
        return usual(get) | low

    check(torch, config, layer, carried)


@pytest.mark.parametrize("rank", [None, 10])
def test_latent_attention(torch, fla, rank):
    """Kills: rotation by neighbours, a scale without the rotated channels, a rotary key per head, another eps."""
    layer = fla.mla.MultiheadLatentAttention(
        hidden_size=D,
        num_heads=4,
        q_lora_rank=rank,
        qk_rope_head_dim=4,
        kv_lora_rank=9,
        v_head_dim=5,
        qk_nope_head_dim=6,
        qk_head_dim=10,
        layer_idx=0,
    )
    config = LatentAttentionConfig.fla(
        d_model=D, n_heads=4, head_dim=6, value_dim=5, rope_dim=4, q_rank=rank, kv_rank=9
    )

    def carried(get):
        q = ("q_down", "q_proj.0", "q_up", "q_proj.2") if rank else ("q_proj", "q_proj")
        values = {f"{q[i]}.kernel": get(f"{q[i + 1]}.weight").T for i in range(0, len(q), 2)}
        if rank:
            values["q_norm.scale"] = get("q_proj.1.weight")
        down = np.concatenate([get("kv_proj.0.weight"), get("k_rope.weight")])
        return values | {
            "kv_down.kernel": down.T,
            "kv_norm.scale": get("kv_proj.1.weight"),
            "kv_up.kernel": get("kv_proj.2.weight").T,
            "out_proj.kernel": get("o_proj.weight").T,
        }

    check(torch, config, layer, carried, run=lambda layer, x: layer(x, None)[0])


@pytest.mark.filterwarnings("ignore:torch.utils.checkpoint")
def test_rebased(torch, fla, monkeypatch):
    """Kills: a gamma for each of queries and keys, a norm over all heads, unscaled products, another eps."""
    module, functional = importlib.import_module("fla.modules.feature_map"), torch.nn.functional
    monkeypatch.setattr(
        module, "layer_norm", lambda x, weight, bias: functional.layer_norm(x, weight.shape, weight, bias)
    )
    rebased = importlib.import_module("fla.layers.rebased").ReBasedLinearAttention
    layer = rebased(hidden_size=D, feature_dim=6, num_key_value_heads=4, num_heads=4, eps=0.1)
    assert rebased(hidden_size=D).eps == LinearAttentionConfig.rebased_fla(d_model=D).eps
    config = LinearAttentionConfig.rebased_fla(d_model=D, n_heads=4, feature_dim=6, eps=0.1)
    arrays = {"features.qk_scale": "feature_map.gamma", "features.qk_shift": "feature_map.beta"}
    run = lambda layer, x: layer.forward_reference(x)  # noqa: E731
    check(torch, config, layer, carry(*QKVO, arrays=arrays), run=run)


def test_linear_slopes_of_lightning_attention(torch, fla, monkeypatch):
    """Kills: heads counted from 1, layers counted from 1."""
    op = importlib.import_module("fla.ops.lightning_attn.chunk")
    monkeypatch.setattr(op, "chunk_simple_gla", lambda **given: given["g_gamma"])
    x = torch.zeros(1, 1, 4, 2)
    found = LightningAttentionConfig(d_model=D, n_heads=4, slopes="linear", layer_index=1, n_layers=3).rates
    np.testing.assert_allclose(found, -op.chunk_lightning_attn(x, x, x, layer_idx=1, num_layers=3), rtol=1e-6)
