"""Models of GGUF files (llama.cpp) as folders of the hub: fields, tensors and tokenizer.

The package `gguf` reads and dequantizes; a tensor becomes float32 on use. Changes that llama.cpp makes to stored
tensors are reverted: it permutes the rows of queries and keys of Llamas for its own rotary form, stores
A instead of its logarithm in Mamba, and replaces Llama 3's rotary scaling by a factor per channel.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxzoo.config.json_files import refuse_pointer
from jaxzoo.data.tokenizer import Tokenizer
from jaxzoo.interop.gguf_tokenizer import tokenizer_of
from jaxzoo.utils.extras import need


@dataclasses.dataclass(frozen=True)
class LazyTensor:
    """Tensor that is dequantized on demand (`np.asarray`)."""

    shape: tuple[int, ...]
    make: Callable[[], np.ndarray]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.make(), dtype)


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
RWKV7 = {
    "attn_norm": "attn_norm", "attn_norm_2": "ffn_norm", "time_mix_ln": "attn.g_norm",
    "time_mix_receptance": "attn.r_proj", "time_mix_key": "attn.k_proj", "time_mix_value": "attn.v_proj",
    "time_mix_output": "attn.o_proj", "channel_mix_key": "ffn.key", "channel_mix_value": "ffn.value",
}  # fmt: skip
ENDS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
MAMBA_ENDS = {"token_embd": "backbone.embeddings", "output_norm": "backbone.norm_f", "output": "lm_head"}
RWKV7_ENDS = {"token_embd": "model.embeddings", "token_embd_norm": "model.layers.0.pre_norm"}
RWKV7_ENDS |= {"output_norm": "model.norm", "output": "lm_head"}


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
    renamed = {_renamed(name, LAYERS, ENDS, "model.layers"): tensor for name, tensor in tensors.items()}
    for name, n in (("q_proj", heads), ("k_proj", groups)):
        for key in [key for key in renamed if f".{name}." in key]:
            renamed[key] = dataclasses.replace(
                renamed[key], make=lambda make=renamed[key].make, n=n: _unpermuted(make(), n)
            )
    return fields, renamed


def _read_qwen(own: Mapping[str, Any], tensors: dict[str, LazyTensor], file: Path) -> tuple[dict, dict]:
    plain = dict(tensors)
    fields, _ = _read_llama(own, plain, file)
    return fields, {_renamed(name, LAYERS, ENDS, "model.layers"): tensor for name, tensor in plain.items()}


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
        make, shape = tensor.make, tensor.shape
        if name.endswith("ssm_conv1d.weight"):
            tensor = LazyTensor((shape[0], 1, shape[-1]), lambda make=make: make()[:, None])
        if name.endswith("ssm_a"):
            tensor = dataclasses.replace(tensor, make=lambda make=make: np.log(-make()))
        found[_renamed(name, MAMBA, MAMBA_ENDS, "backbone.layers")] = tensor
    return fields, found


def _read_rwkv7(own: Mapping[str, Any], tensors: dict[str, LazyTensor], file: Path) -> tuple[dict, dict]:
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
                found[f"{attention}.x_{letter}"] = LazyTensor(
                    (1, 1, d), lambda make=tensor.make, i=i: make()[i].reshape(1, 1, d)
                )
        elif inside in ("k_k", "k_a", "r_k"):
            shape = (d // width, width) if inside == "r_k" else (d,)
            found[f"{attention}.{inside}"] = LazyTensor(
                shape, lambda make=tensor.make, shape=shape: make().reshape(shape)
            )
        elif inside == "channel_mix_lerp_k":
            found[f"model.layers.{layer}.ffn.x_k"] = LazyTensor((d,), lambda make=tensor.make: make().reshape(d))
        else:
            found[_renamed(name, RWKV7, RWKV7_ENDS, "model.layers")] = tensor
    return fields, found


READERS = {
    "llama": _read_llama,
    "qwen2": _read_qwen,
    "qwen3": _read_qwen,
    "mamba": _read_mamba,
    "rwkv7": _read_rwkv7,
}
"""Readers of the architectures' own values and tensors."""


def _renamed(name: str, layers: Mapping[str, str], ends: Mapping[str, str], prefix: str) -> str:
    """Returns the hub's name of a tensor, or its own, which the account of tensors then refuses."""
    inside = re.fullmatch(r"blk\.(\d+)\.(\w+?)(\.weight|\.bias|)", name)
    if inside and inside[2] in layers:
        return f"{prefix}.{inside[1]}.{layers[inside[2]]}{inside[3]}"
    first, dot, end = name.partition(".")
    return f"{ends[first]}{dot}{end}" if first in ends else name


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
