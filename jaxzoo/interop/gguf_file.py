"""Models of GGUF files (llama.cpp) as folders of the hub: fields, tensors and tokenizer.

The package `gguf` reads and dequantizes; a tensor becomes float32 on use. Changes that llama.cpp makes to stored
tensors are reverted: it permutes the rows of queries and keys of Llamas for its own rotary form, stores
A instead of its logarithm in Mamba, and replaces Llama 3's rotary scaling by a factor per channel.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxzoo.config.json_files import refuse_pointer
from jaxzoo.data.tokenizer import Tokenizer
from jaxzoo.interop.gguf_rwkv import read_rwkv6, read_rwkv7
from jaxzoo.interop.gguf_tensors import LazyTensor, as_conv1d, renamed
from jaxzoo.interop.gguf_tokenizer import tokenizer_of
from jaxzoo.utils.extras import need


class GGUFModel(NamedTuple):
    """Content of a file, by the names of the hub's folders."""

    fields: dict[str, Any]
    """Config fields, named as in a config.json."""
    tensors: dict[str, Any]
    """Tensors by name: arrays of `shape`."""
    tokenizer: Callable[[], Tokenizer]
    """Makes the tokenizer. Raises `ValueError` if its kind is unknown."""


LAYERS = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
MAMBA = {
    "attn_norm": "norm", "ssm_in": "mixer.in_proj", "ssm_conv1d": "mixer.conv1d", "ssm_x": "mixer.x_proj",
    "ssm_dt": "mixer.dt_proj", "ssm_out": "mixer.out_proj", "ssm_a": "mixer.A_log", "ssm_d": "mixer.D",
}  # fmt: skip
LFM2 = {
    "attn_norm": "operator_norm", "ffn_norm": "ffn_norm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.out_proj", "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm", "ffn_gate": "feed_forward.w1", "ffn_up": "feed_forward.w3",
    "ffn_down": "feed_forward.w2", "shortconv.conv": "conv.conv", "shortconv.in_proj": "conv.in_proj",
    "shortconv.out_proj": "conv.out_proj",
}  # fmt: skip
ENDS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
MAMBA_ENDS = {"token_embd": "backbone.embeddings", "output_norm": "backbone.norm_f", "output": "lm_head"}
LFM2_ENDS = {"token_embd": "model.embed_tokens", "token_embd_norm": "model.embedding_norm", "output": "lm_head"}


def read_gguf(file: Path) -> GGUFModel:
    """Opens a file without reading tensors. Raises `ValueError` if the library is missing, the file is damaged, or its
    architecture is not supported."""
    need("gguf", f"{file}", extra="pretrained")
    refuse_pointer(file)
    import gguf

    try:
        reader = gguf.GGUFReader(file)
        values = {name: field.contents() for name, field in reader.fields.items()}
    except (ValueError, IndexError, KeyError) as error:
        raise ValueError(f"{file} is damaged, or no GGUF file: {error}") from None
    arch = values.get("general.architecture")
    if arch not in READERS:
        raise ValueError(f"{file}: general.architecture = {arch!r} must be one of {', '.join(READERS)}")
    own = {name.removeprefix(f"{arch}."): value for name, value in values.items() if name.startswith(f"{arch}.")}
    tensors = {
        tensor.name: LazyTensor(
            tuple(int(n) for n in reversed(tensor.shape)),
            lambda tensor=tensor: gguf.dequantize(tensor.data, tensor.tensor_type).reshape(tensor.shape[::-1]),
        )
        for tensor in reader.tensors
    }
    fields, named = READERS[arch](own, tensors, file)
    fields |= {"model_type": arch, "vocab_size": tensors["token_embd.weight"].shape[0]}
    fields["tie_word_embeddings"] = "output.weight" not in tensors
    return GGUFModel(fields, named, lambda: tokenizer_of(values, file))


def _read_llama(own: Mapping[str, Any], tensors: dict[str, LazyTensor], file: Path) -> tuple[dict, dict]:
    heads, d = own["attention.head_count"], own["embedding_length"]
    groups, width = own.get("attention.head_count_kv", heads), own.get("attention.key_length", d // heads)
    if own.get("expert_count"):
        raise ValueError(f"{file}: a mixture of {own['expert_count']} experts is not computed by this library")
    fields = {
        "hidden_size": d,
        "num_hidden_layers": own["block_count"],
        "intermediate_size": own["feed_forward_length"],
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "head_dim": width,
        "rms_norm_eps": own["attention.layer_norm_rms_epsilon"],
        "max_position_embeddings": own["context_length"],
        "rope_theta": own.get("rope.freq_base", 10000.0),
        "rope_scaling": _scaling(own, tensors.pop("rope_freqs.weight", None), width, file),
    }
    named = {renamed(name, LAYERS, ENDS, "model.layers"): tensor for name, tensor in tensors.items()}
    for name, n in (("q_proj", heads), ("k_proj", groups)):
        for key in [key for key in named if f".{name}." in key]:
            named[key] = named[key].changed(lambda x, n=n: _unpermuted(x, n))
    return fields, named


def _read_qwen(own: Mapping[str, Any], tensors: dict[str, LazyTensor], file: Path) -> tuple[dict, dict]:
    plain = dict(tensors)
    fields, _ = _read_llama(own, plain, file)
    return fields, {renamed(name, LAYERS, ENDS, "model.layers"): tensor for name, tensor in plain.items()}


def _read_mamba(own: Mapping[str, Any], tensors: dict[str, LazyTensor], file: Path) -> tuple[dict, dict]:
    d, inner = own["embedding_length"], own["ssm.inner_size"]
    fields = {
        "hidden_size": d,
        "num_hidden_layers": own["block_count"],
        "state_size": own["ssm.state_size"],
        "conv_kernel": own["ssm.conv_kernel"],
        "expand": inner // d,
        "time_step_rank": own["ssm.time_step_rank"],
        "layer_norm_epsilon": own["attention.layer_norm_rms_epsilon"],
        "dt_b_c_rms": own.get("ssm.dt_b_c_rms", False),
    }
    found = {}
    for name, tensor in tensors.items():
        if name.endswith("ssm_conv1d.weight"):
            tensor = as_conv1d(tensor)
        if name.endswith("ssm_a"):
            tensor = tensor.changed(lambda x: np.log(-x))
        found[renamed(name, MAMBA, MAMBA_ENDS, "backbone.layers")] = tensor
    return fields, found


def _read_lfm2(own: Mapping[str, Any], tensors: dict[str, LazyTensor], file: Path) -> tuple[dict, dict]:
    """Returns fields and tensors of LFM2; a layer without key/value heads is a convolution."""
    heads, groups = own["attention.head_count"], own["attention.head_count_kv"]
    if own.get("attention.sliding_window"):
        raise ValueError(f"{file}: attention.sliding_window must be absent; LFM2's layers see the whole text here")
    fields = {
        "hidden_size": own["embedding_length"],
        "num_hidden_layers": own["block_count"],
        "block_ff_dim": own["feed_forward_length"],
        "block_auto_adjust_ff_dim": False,
        "num_attention_heads": heads,
        "num_key_value_heads": max(groups),
        "head_dim": own.get("attention.key_length", own["embedding_length"] // heads),
        "norm_eps": own["attention.layer_norm_rms_epsilon"],
        "conv_L_cache": own["shortconv.l_cache"],
        "layer_types": ["full_attention" if n else "conv" for n in groups],
        "max_position_embeddings": own["context_length"],
        "rope_theta": own.get("rope.freq_base", 10000.0),
    }
    found = {renamed(name, LFM2, LFM2_ENDS, "model.layers"): tensor for name, tensor in tensors.items()}
    return fields, {name: as_conv1d(x) if name.endswith(".conv.conv.weight") else x for name, x in found.items()}


READERS = {
    "llama": _read_llama,
    "qwen2": _read_qwen,
    "qwen3": _read_qwen,
    "mamba": _read_mamba,
    "lfm2": _read_lfm2,
    "rwkv6": read_rwkv6,
    "rwkv7": read_rwkv7,
}
"""Readers of the architectures' own values and tensors."""


def _unpermuted(x: np.ndarray, heads: int) -> np.ndarray:
    """Reorders rows of queries or keys as on the hub: channels that rotate together are half a head apart."""
    return x.reshape(heads, -1, 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def _scaling(own: Mapping[str, Any], factors: LazyTensor | None, width: int, file: Path) -> dict[str, Any] | None:
    """Returns the `rope_scaling` of a model: from its fields, or Llama 3's from the factors of its channels."""
    kind, length = own.get("rope.scaling.type", "none"), own["context_length"]
    if factors is not None:
        return _llama3_scaling(np.asarray(factors), own.get("rope.freq_base", 10000.0), file)
    if kind == "none":
        return None
    original = own.get("rope.scaling.original_context_length", length)
    return {"rope_type": kind, "factor": own["rope.scaling.factor"], "original_max_position_embeddings": original}


def _llama3_scaling(factors: np.ndarray, base: float, file: Path) -> dict[str, Any]:
    """Returns Llama 3's published scaling, if it gives these factors."""
    factor = float(factors.max())
    wavelength = 2 * math.pi * base ** (np.arange(len(factors)) / len(factors))
    smooth = np.clip((8192 / wavelength - 1.0) / (4.0 - 1.0), 0, 1)
    if not np.allclose(1 / ((1 - smooth) / factor + smooth), factors, rtol=1e-3):
        raise ValueError(f"{file}: rope_freqs.weight are not the factors of Llama 3's scaling of 8,192 positions")
    sizes = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    return {"rope_type": "llama3", "factor": factor, **sizes}
