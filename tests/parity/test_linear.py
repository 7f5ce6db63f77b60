"""Lightning attention and the mLSTM layers against the layers of transformers and of xlstm."""

import numpy as np
import pytest
from flax import nnx

from jaxzoo.mixers import LightningAttentionConfig, MLSTMConfig
from tests.parity.carry import compare, inputs, randomize

pytestmark = pytest.mark.parity
D = 24


def kernels(get, **names):
    """Projections, our name -> theirs."""
    return {f"{ours}.kernel": get(f"{theirs}.weight").T for ours, theirs in names.items()}


def test_lightning_attention(torch, transformers):
    """Kills: slopes of another layer or head, columns of qkv in another order, a norm per head, a gate before it."""
    from transformers.models.minimax.modeling_minimax import MiniMaxLightningAttention

    heads, width = 4, 4
    config = transformers.MiniMaxConfig(
        hidden_size=D, num_attention_heads=heads, head_dim=width, num_hidden_layers=3, block_size=8, vocab_size=8
    )
    theirs, final = MiniMaxLightningAttention(config, layer_idx=1), []
    randomize(theirs, torch)

    def carry(get):
        qkv = get("qkv_proj.weight").reshape(heads, 3, width, D)
        values = {f"{x}_proj.kernel": qkv[:, i].reshape(heads * width, D).T for i, x in enumerate("qkv")}
        return values | kernels(get, gate_proj="output_gate", out_proj="out_proj") | {"norm.scale": get("norm.weight")}

    def run(layer, x):
        y, *final[:] = layer(x, position_embeddings=None, attention_mask=None)
        return y

    ours = LightningAttentionConfig(d_model=D, n_heads=heads, head_dim=width, layer_index=1, n_layers=3)
    layer = ours.build(rngs=nnx.Rngs(0))
    compare(layer, theirs, carry, inputs(), run=run, torch=torch, final=lambda: {"s": final[0]})


def test_mlstm_of_xlstm_7b(torch, transformers):
    """Kills: gates in the other order or without the soft cap, a norm over all heads, a scaled k in the state, an
    output gate before the norm."""
    from transformers.models.xlstm import modeling_xlstm

    config = transformers.xLSTMConfig(
        hidden_size=D, num_heads=4, num_hidden_layers=1, vocab_size=8, chunk_size=16, autocast_kernel_dtype="float32"
    )
    theirs, final = modeling_xlstm.xLSTMBlock(config.to_xlstm_block_config()).mlstm_layer, []
    randomize(theirs, torch)

    def carry(get):
        gates = [get(f"{x}gate_preact.{part}") for part in ("weight", "bias") for x in "if"]
        values = kernels(get, q_proj="q", k_proj="k", v_proj="v", gate_proj="ogate_preact", out_proj="out_proj")
        return values | {
            "gates.kernel": np.concatenate(gates[:2]).T,
            "gates.bias": np.concatenate(gates[2:]),
            "norm_scale": get("multihead_norm.weight"),
        }

    def run(layer, x):
        y, final[:] = layer(x)
        return y

    def state():
        return {"c": final[0], "n": final[1], "m": final[2][..., 0]}

    layer = MLSTMConfig(d_model=D, n_heads=4, form="7b").build(rngs=nnx.Rngs(0))
    compare(layer, theirs, carry, inputs(), run=run, torch=torch, final=state)


def test_mlstm_of_xlstm(torch):
    """Kills: values from the convolved branch, gates in the other order, a skip before the norm, other blocks."""
    xlstm = pytest.importorskip("xlstm.blocks.mlstm.layer", reason="needs xlstm: pip install xlstm")
    config = xlstm.mLSTMLayerConfig(embedding_dim=32, num_heads=4, context_length=37)  # 32: widths are multiples of 64
    theirs = xlstm.mLSTMLayer(config)
    theirs.mlstm_cell.outnorm.residual_weight = False  # the scale, not what is added to 1
    randomize(theirs, torch, std=0.2)

    def carry(get):
        gates = [get(f"mlstm_cell.{x}gate.{part}") for part in ("weight", "bias") for x in "if"]
        values = kernels(get, in_proj="proj_up", out_proj="proj_down")
        return (
            values
            | {f"{x}_proj": get(f"{x}_proj.weight").transpose(0, 2, 1) for x in "qkv"}
            | {
                "conv.taps": get("conv1d.conv.weight")[:, 0, ::-1].T,
                "conv.bias": get("conv1d.conv.bias"),
                "gates.kernel": np.concatenate(gates[:2]).T,
                "gates.bias": np.concatenate(gates[2:]),
                "skip": get("learnable_skip"),
                "norm_scale": get("mlstm_cell.outnorm.weight"),
            }
        )

    layer = MLSTMConfig(d_model=32, n_heads=4).build(rngs=nnx.Rngs(0))
    compare(layer, theirs, carry, inputs(d=32), run=lambda layer, x: layer(x), torch=torch)
