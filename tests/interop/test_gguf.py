"""GGUF files in llama.cpp's layout, against logits of transformers. Kills: rows in llama.cpp's order."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.data.tokenizer import END_OF_TEXT
from jaxzoo.data.tokens.tokenizer_definition import byte_alphabet
from jaxzoo.interop import load
from jaxzoo.interop.gguf_file import ENDS, LAYERS, LFM2, LFM2_ENDS, MAMBA, MAMBA_ENDS
from tests.interop import published, test_rwkv7 as rwkv7
from tests.interop.test_refusals import POINTER

REMEDY = "needs the package gguf: pip install -e '.[pretrained]'"
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(importlib.util.find_spec("gguf") is None, reason=REMEDY),
]
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6


def as_llama_cpp(name, array, config):
    """Name and numbers of a tensor as llama.cpp's converter writes them."""
    rest, tables = name.split("."), {"mamba": (MAMBA, MAMBA_ENDS), "lfm2": (LFM2, LFM2_ENDS)}
    layers, ends = tables.get(config["model_type"], (LAYERS, ENDS))
    for theirs, ours in ends.items():
        if name == f"{ours}.weight":
            return f"{theirs}.weight", array
    number, inner = rest[2], ".".join(rest[3:])
    theirs = next(a for a, b in layers.items() if inner in (b, f"{b}.weight", f"{b}.bias"))
    end = inner.removeprefix(layers[theirs])
    if theirs in ("ssm_conv1d", "shortconv.conv") and end == ".weight":
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
        width, groups = config["intermediate_size"], config["num_key_value_heads"]
        if arch == "lfm2":  # the width of the tensors, and no key/value heads in convolutions
            width = shapes["model.layers.0.feed_forward.w1.weight"][0]
            groups = [groups if kind == "full_attention" else 0 for kind in config["layer_types"]]
            writer.add_shortconv_l_cache(config["conv_L_cache"])
        writer.add_feed_forward_length(width)
        writer.add_head_count(config["num_attention_heads"])
        writer.add_head_count_kv(groups)
        writer.add_key_length(config.get("head_dim", 8))
        writer.add_layer_norm_rms_eps(config["norm_eps" if arch == "lfm2" else "rms_norm_eps"])
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


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "mamba", "lfm2"])
def test_architectures(name, tmp_path):
    """Kills: rows in llama.cpp's order, a decay without its logarithm, a field or tensor of another architecture."""
    expected = write(tmp_path / "model.gguf", name)
    loaded = load(tmp_path / "model.gguf")
    logits = jax.jit(loaded.model.__call__)(jnp.asarray(published.TOKENS))
    np.testing.assert_allclose(logits[:, -2:, :5], expected, rtol=0, atol=1e-4)
    assert loaded.tokenizer is None


def rwkv7_as_llama_cpp(tensors):
    """Names and numbers of the release's tensors as llama.cpp's converter writes them."""
    ends = {"emb": "token_embd", "head": "output", "ln_out": "output_norm", "blocks.0.ln0": "token_embd_norm"}
    others = {"ln1": "attn_norm", "ln2": "attn_norm_2", "att.ln_x": "time_mix_ln", "ffn.x_k": "channel_mix_lerp_k"}
    for name, array in tensors.items():
        whole, _, end = name.rpartition(".")
        if whole in ends:
            yield f"{ends[whole]}.{end}", array
            continue
        _, i, inside = name.split(".", 2)
        if inside == "att.x_r":
            yield f"blk.{i}.time_mix_lerp_fused.weight", np.stack([tensors[f"{whole}.x_{n}"] for n in "rwkvag"])
        if inside.startswith("att.x_"):
            continue
        inside, end = inside.rsplit(".", 1) if inside.endswith((".weight", ".bias")) else (inside, "weight")
        array = array.T if inside[-1] in "12" and array.ndim == 2 else np.squeeze(array)
        array = array.reshape(-1) if inside == "att.r_k" else array
        theirs = others.get(inside, inside.replace("att.", "time_mix_").replace("ffn.", "channel_mix_"))
        yield f"blk.{i}.{theirs}.{end}", array


def test_rwkv7(tmp_path):
    """Kills: a low-rank map transposed or of another letter, shares of the shifts in another order, heads flattened
    otherwise, the copies in block 0 taken for parameters; tokens of bytes that are written as escapes."""
    import gguf

    tensors, width = rwkv7.released(), rwkv7.D // rwkv7.HEADS
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "rwkv7")
    writer.add_context_length(1048576)
    writer.add_embedding_length(rwkv7.D)
    writer.add_block_count(rwkv7.LAYERS)
    writer.add_feed_forward_length(rwkv7.HIDDEN)
    writer.add_layer_norm_eps(1e-5)
    writer.add_wkv_head_size(width)
    for name, n in (("decay", "w"), ("iclr", "a"), ("value_residual_mix", "v"), ("gate", "g")):
        getattr(writer, f"add_{name}_lora_rank")(rwkv7.RANKS[n])
    words = [*(bytes([byte]) for byte in range(256)), b"ab", b"'\"", "é".encode()]
    writer.add_tokenizer_model("rwkv")
    writer.add_token_list(["<s>", *(repr(word)[2:-1] for word in words), "[PAD260]"])
    writer.add_token_types([CONTROL, *[NORMAL] * len(words), 5])
    for name, array in rwkv7_as_llama_cpp(tensors):
        writer.add_tensor(name, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    loaded = load(tmp_path / "model.gguf")
    expected = np.stack([rwkv7.truth(tensors, row, head_eps=width * 1e-5) for row in rwkv7.TOKENS])
    logits = jax.jit(loaded.model.__call__)(jnp.asarray(rwkv7.TOKENS))
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)
    assert loaded.tokenizer.encode("ab'\"é\n").tolist() == [257, 258, 259, 11]


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
    (tmp_path / "x.gguf").write_bytes(POINTER)
    with pytest.raises(ValueError, match=r"x\.gguf is a Git LFS pointer"):
        load(tmp_path / "x.gguf")
    writer = gguf.GGUFWriter(tmp_path / "y.gguf", "bert")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(
        ValueError, match="architecture = 'bert' must be one of llama, qwen2, qwen3, mamba, lfm2, rwkv6, rwkv7"
    ):
        load(tmp_path / "y.gguf")
