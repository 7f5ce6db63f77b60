"""GGUF files in llama.cpp's layout, against logits of transformers. Kills: rows in llama.cpp's order."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.data.tokenizer import END_OF_TEXT
from jaxzoo.data.tokens.tokenizer_definition import byte_alphabet
from jaxzoo.interop import load
from jaxzoo.interop.gguf_file import ENDS, LAYERS, MAMBA, MAMBA_ENDS
from tests.interop import published

REMEDY = "needs the package gguf: pip install -e '.[pretrained]'"
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(importlib.util.find_spec("gguf") is None, reason=REMEDY),
]
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6


def as_llama_cpp(name, array, config):
    """Name and numbers of a tensor as llama.cpp's converter writes them."""
    is_mamba = config["model_type"] == "mamba"
    rest = name.split(".")
    layers, ends = (MAMBA, MAMBA_ENDS) if is_mamba else (LAYERS, ENDS)
    for theirs, ours in ends.items():
        if name == f"{ours}.weight":
            return f"{theirs}.weight", array
    number, inner = rest[2], ".".join(rest[3:])
    theirs = next(a for a, b in layers.items() if inner in (b, f"{b}.weight", f"{b}.bias"))
    end = inner.removeprefix(layers[theirs])
    if is_mamba and theirs == "ssm_conv1d" and end == ".weight":
        array = array[:, 0]
    if theirs == "ssm_a":
        array = -np.exp(array)
    if config["model_type"] == "llama" and theirs in ("attn_q", "attn_k"):
        heads = config["num_attention_heads" if theirs == "attn_q" else "num_key_value_heads"]
        halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
        array = halves.swapaxes(1, 2).reshape(array.shape)  # channels that rotate together are neighbours
    return f"blk.{number}.{theirs}{end}", array


def write(file, name, tokens=(), quantized=False):
    """A GGUF file of a stored folder; returns the logits that transformers computed."""
    import gguf

    config, shapes, logits = published.read(name)
    arch = config["model_type"]
    writer = gguf.GGUFWriter(file, arch)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_embedding_length(config["hidden_size"])
    if arch == "mamba":
        writer.add_ssm_inner_size(2 * config["hidden_size"])
        writer.add_ssm_state_size(config["state_size"])
        writer.add_ssm_conv_kernel(config["conv_kernel"])
        writer.add_ssm_time_step_rank(config["time_step_rank"])
        writer.add_layer_norm_rms_eps(config["layer_norm_epsilon"])
    else:
        writer.add_context_length(config["max_position_embeddings"])
        writer.add_feed_forward_length(config["intermediate_size"])
        writer.add_head_count(config["num_attention_heads"])
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_key_length(config.get("head_dim", 8))
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    for add, value in tokens:
        getattr(writer, add)(value)
    for key, shape in shapes.items():
        theirs, array = as_llama_cpp(key, published.numbers(key, shape), config)
        array = np.ascontiguousarray(array, np.float32)
        if quantized and array.ndim == 2 and array.shape[-1] % 32 == 0:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(theirs, gguf.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(theirs, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return logits


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "mamba"])
def test_architectures(name, tmp_path):
    """Kills: rows in llama.cpp's order, a decay without its logarithm, a field or tensor of another architecture."""
    expected = write(tmp_path / "model.gguf", name)
    loaded = load(tmp_path / "model.gguf")
    logits = jax.jit(loaded.model.__call__)(jnp.asarray(published.TOKENS))
    np.testing.assert_allclose(logits[:, -2:, :5], expected, rtol=0, atol=1e-4)
    assert loaded.tokenizer is None


def test_tokenizers(tmp_path):
    """Kills: merges of SentencePiece in the order of ids instead of scores, a space or begin token that is lost."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abc", "ab", "bc", "▁a", "▁ab"]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * 8]
    scores = [0.0] * 263 + [-3.0, -1.0, -2.0, -4.0]
    values = [
        ("add_tokenizer_model", "llama"),
        ("add_token_list", pieces),
        ("add_token_scores", scores),
        ("add_token_types", types),
        ("add_bos_token_id", 1),
        ("add_eos_token_id", 2),
    ]
    write(tmp_path / "spm.gguf", "llama", values)
    tokenizer = load(tmp_path / "spm.gguf").tokenizer
    assert [pieces[i] for i in tokenizer.prompt("abc ab é")] == ["<s>", "▁a", "bc", "▁ab", "▁", "<0xC3>", "<0xA9>"]
    assert (tokenizer.end_of_text, tokenizer.begin) == (2, (1,))
    tokens = [*byte_alphabet(), "Ġa", END_OF_TEXT]
    values = [
        ("add_tokenizer_model", "gpt2"),
        ("add_tokenizer_pre", "smollm"),
        ("add_token_list", tokens),
        ("add_token_types", [*[NORMAL] * 257, CONTROL]),
        ("add_token_merges", ["Ġ a"]),
        ("add_eos_token_id", 257),
        ("add_chat_template", "{{ messages }}"),
    ]
    write(tmp_path / "bpe.gguf", "llama", values)
    tokenizer = load(tmp_path / "bpe.gguf").tokenizer
    assert tokenizer.encode(" a").tolist() == [256]
    assert tokenizer.to_bytes(tokenizer.encode(f"a é 12{END_OF_TEXT}")).decode() == f"a é 12{END_OF_TEXT}"
    assert tokenizer.begin == ()
    assert tokenizer.files["tokenizer_config.json"]["chat_template"] == "{{ messages }}"


def test_refused(tmp_path):
    """Kills: a traceback for a file that is damaged, none at all, or of another architecture."""
    import gguf

    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    with pytest.raises(ValueError, match=r"x\.gguf is damaged, or no GGUF file"):
        load(tmp_path / "x.gguf")
    writer = gguf.GGUFWriter(tmp_path / "y.gguf", "bert")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ValueError, match="architecture = 'bert' must be one of llama, qwen2, qwen3, mamba"):
        load(tmp_path / "y.gguf")
