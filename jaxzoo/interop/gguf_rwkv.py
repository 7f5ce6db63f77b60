"""RWKV-6 and RWKV-7 of GGUF files, by the names of flash-linear-attention.

llama.cpp joins the weights of the token shifts and, in RWKV-6, divides output matrices by powers of two, since it
halves the residual every `rescale_every_n_layers` layers: they are multiplied back.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxzoo.interop.gguf_tensors import LazyTensor, renamed

RWKV7 = {
    "attn_norm": "attn_norm", "attn_norm_2": "ffn_norm", "time_mix_ln": "attn.g_norm",
    "time_mix_receptance": "attn.r_proj", "time_mix_key": "attn.k_proj", "time_mix_value": "attn.v_proj",
    "time_mix_output": "attn.o_proj", "channel_mix_key": "ffn.key", "channel_mix_value": "ffn.value",
}  # fmt: skip
RWKV6 = {
    "attn_norm": "attn_norm", "attn_norm_2": "ffn_norm", "time_mix_ln": "attn.g_norm",
    "time_mix_receptance": "attn.r_proj.linear", "time_mix_key": "attn.k_proj.linear",
    "time_mix_value": "attn.v_proj.linear", "time_mix_gate": "attn.g_proj.linear", "time_mix_output": "attn.o_proj",
    "time_mix_decay_w1": "attn.w_proj.linear.lora.0", "time_mix_decay_w2": "attn.w_proj.linear.lora.2",
    "channel_mix_key": "ffn.key.linear", "channel_mix_receptance": "ffn.receptance.linear",
    "channel_mix_value": "ffn.value",
}  # fmt: skip
VECTORS = {
    "time_mix_lerp_x": "attn.x_proj.0.mu", "time_mix_decay": "attn.w_proj.linear.lora.2.bias",
    "channel_mix_lerp_k": "ffn.key.mu", "channel_mix_lerp_r": "ffn.receptance.mu",
}  # fmt: skip
ENDS = {"token_embd": "model.embeddings", "token_embd_norm": "model.layers.0.pre_norm"}
ENDS |= {"output_norm": "model.norm", "output": "lm_head"}
MIXTURES = "wkvrg"
"""Mixtures of a token and the previous one in llama.cpp, in order."""
FLA_ORDER = [MIXTURES.index(letter) for letter in "rwkvg"]
HEAD_EPS = 64e-5
"""llama.cpp's eps in the norm of RWKV-6's heads."""


def read_rwkv6(own: Mapping[str, Any], tensors: dict[str, LazyTensor], file: Path) -> tuple[dict, dict]:
    """Returns fields and tensors by the names of flash-linear-attention."""
    d, every = own["embedding_length"], own.get("rescale_every_n_layers", 0)
    fields = {
        "hidden_size": d,
        "num_hidden_layers": own["block_count"],
        "intermediate_size": own["feed_forward_length"],
        "num_heads": d // own["wkv.head_size"],
        "expand_k": 1.0,
        "norm_eps": own["attention.layer_norm_epsilon"],
        "head_norm_eps": HEAD_EPS,
        "proj_low_rank_dim": own["time_mix_extra_dim"],
        "gate_low_rank_dim": own["time_decay_extra_dim"],
        "max_position_embeddings": own["context_length"],
    }
    found = {}
    for name, tensor in _with_joint_shifts(tensors, d).items():
        layer, _, rest = name.removeprefix("blk.").partition(".")
        block, inside = f"model.layers.{layer}", rest.removesuffix(".weight")
        if inside in ("time_mix_output", "channel_mix_value") and every:
            tensor = tensor.changed(lambda x, factor=2.0 ** (int(layer) // every): x * np.float32(factor))
        if inside in VECTORS:
            found[f"{block}.{VECTORS[inside]}"] = tensor.changed(np.ravel, (d,))
        elif inside == "time_mix_first":
            found[f"{block}.attn.bonus"] = tensor
        elif inside == "time_mix_lerp_fused":
            found[f"{block}.attn.x_bias"] = tensor.changed(lambda x: x.reshape(5, d)[FLA_ORDER], (5, d))
        elif inside == "time_mix_w1":
            down = lambda x: x.reshape(5, -1, d)[FLA_ORDER].reshape(x.shape)  # noqa: E731
            found[f"{block}.attn.x_proj.0.linear.weight"] = tensor.changed(down)
        elif inside == "time_mix_w2":
            up = lambda x: x[FLA_ORDER].swapaxes(0, 1).reshape(d, -1)  # noqa: E731
            found[f"{block}.attn.x_proj.2.weight"] = tensor.changed(up, (d, 5 * tensor.shape[-1]))
        else:
            found[renamed(name, RWKV6, ENDS, "model.layers")] = tensor
    return fields, found


def _with_joint_shifts(tensors: Mapping[str, LazyTensor], d: int) -> dict[str, LazyTensor]:
    """Returns the tensors with the shifts of each layer in one, as newer files have them."""
    found = dict(tensors)
    for name in [name for name in tensors if name.endswith("time_mix_lerp_w.weight")]:
        names = [name.replace("lerp_w", f"lerp_{letter}") for letter in MIXTURES]
        parts = [found.pop(each) for each in names if each in found]
        joint = lambda parts=parts: np.stack([np.ravel(part.make()) for part in parts])  # noqa: E731
        found[name.replace("lerp_w", "lerp_fused")] = LazyTensor((len(parts), d), joint)
    return found


def read_rwkv7(own: Mapping[str, Any], tensors: dict[str, LazyTensor], file: Path) -> tuple[dict, dict]:
    """Returns fields and tensors by the names of flash-linear-attention."""
    ranks = {"decay": "decay", "a": "iclr", "v": "value_residual_mix", "gate": "gate"}
    d, width = own["embedding_length"], own["wkv.head_size"]
    fields = {
        "hidden_size": d,
        "num_hidden_layers": own["block_count"],
        "intermediate_size": own["feed_forward_length"],
        "head_dim": width,
        "norm_eps": own["attention.layer_norm_epsilon"],
        "max_position_embeddings": own["context_length"],
        **{f"{name}_low_rank_dim": own[f"attention.{theirs}_lora_rank"] for name, theirs in ranks.items()},
    }
    low_rank = {"0": "2.bias", "1": "0.weight", "2": "2.weight"}
    found = {}
    for name, tensor in tensors.items():
        layer, _, rest = name.removeprefix("blk.").partition(".")
        attention, inside = f"model.layers.{layer}.attn", rest.removeprefix("time_mix_").removesuffix(".weight")
        if low := re.fullmatch("([wavg])([012])", inside):
            if low[1] != "v" or layer != "0":  # nothing reads those of block 0
                found[f"{attention}.{low[1]}_lora.lora.{low_rank[low[2]]}"] = tensor
        elif inside == "lerp_fused":
            for i, letter in enumerate("rwkvag"):
                found[f"{attention}.x_{letter}"] = tensor.changed(lambda x, i=i: x[i].reshape(1, 1, d), (1, 1, d))
        elif inside in ("k_k", "k_a", "r_k"):
            shape = (d // width, width) if inside == "r_k" else (d,)
            found[f"{attention}.{inside}"] = tensor.changed(lambda x, shape=shape: x.reshape(shape), shape)
        elif inside == "channel_mix_lerp_k":
            found[f"model.layers.{layer}.ffn.x_k"] = tensor.changed(np.ravel, (d,))
        else:
            found[renamed(name, RWKV7, ENDS, "model.layers")] = tensor
    return fields, found
