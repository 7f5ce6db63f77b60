"""Refused folders of other libraries. Kills: a field or tensor that is ignored."""

import json
import tracemalloc
from typing import Any

import jax
import numpy as np
import pytest

from jaxzoo.interop import load, save
from jaxzoo.interop.loading import open_folder, read_tensors, read_variables
from jaxzoo.mixers import (
    AttentionConfig,
    GatedDeltaNetConfig,
    GatedShortConvConfig,
    HyenaConfig,
    Mamba2Config,
    RGLRUConfig,
    SlidingWindowAttentionConfig,
)
from jaxzoo.models import LanguageModelConfig
from jaxzoo.models.blueprint import Variables
from jaxzoo.parallel.sharding import MeshConfig, make_mesh
from tests.interop import published, torch_files

NAME = "llama-yarn-tied"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 516567560\n"


@pytest.fixture
def folder(tmp_path):
    published.make_folder(NAME, tmp_path)
    return tmp_path


def parts(folder):
    return json.loads((folder / "config.json").read_text()), dict(read_tensors(folder))


def refused(folder, message):
    with pytest.raises(ValueError, match=message) as raised:
        open_folder(folder)
    assert "\n" not in str(raised.value)
    assert str(folder) in str(raised.value)


FIELDS = [
    ({"model_type": "gpt_bigcode"}, "model_type = 'gpt_bigcode' is of no family"),
    ({"model_type": None}, "model_type = None is of no family"),
    ({"hidden_size": "32"}, "hidden_size = '32' must be an integer of at least 1"),
    ({"hidden_size": True}, "hidden_size = true must be an integer"),
    ({"hidden_size": None}, "hidden_size = null must be given"),
    ({"hidden_act": "relu"}, "hidden_act = 'relu' must be one of silu, gelu"),
    ({"rms_norm_eps": -1}, "rms_norm_eps = -1 must be a number of at least 0"),
    ({"tie_word_embeddings": "yes"}, "tie_word_embeddings = 'yes' must be true or false"),
    ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type = 'dynamic' must be one of default"),
    ({"rope_parameters": [1]}, r"rope_parameters = \[1\] must be an object"),
    ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "phase": 3}}, "phase = 3 is a field that this"),
    ({"quantization_config": {"bits": 4}}, "quantization_config = {'bits': 4} is a field .* --ignore-field quant"),
    ({"num_hidden_layer": 5}, "num_hidden_layer = 5 is a field .* did you mean 'num_hidden_layers'"),
    ({"num_key_value_heads": 3}, "n_kv_heads=3 must divide n_heads=4"),
    ({"num_hidden_layers": 4}, r"tensor model.layers.3.input_layernorm.weight of shape \[32\] is missing \(and 8 more"),
    ({"num_hidden_layers": 2}, r"tensor model.layers.2.\S+ is no part of a llama model .* \(and 8 more"),
    ({"intermediate_size": 41}, r"tensor model.layers.0.mlp.down_proj.weight has shape \[32, 40\], and \[32, 41\] by"),
    ({"tie_word_embeddings": False}, r"tensor lm_head.weight of shape \[61, 32\] is missing$"),
]


def test_refused_fields(folder):
    """Kills: a field that is read as another type, skipped, or changes the model in silence."""
    config, _ = parts(folder)
    for change, message in FIELDS:
        (folder / "config.json").write_text(json.dumps({**config, **change}))
        refused(folder, message)
    (folder / "config.json").write_text(json.dumps({**config, "my_note": "x", "use_mup": False}))
    refused(folder, "my_note = 'x'")
    open_folder(folder, ignore_fields=("my_note",))
    (folder / "config.json").write_text("{" * 100)
    refused(folder, "must be JSON")
    (folder / "config.json").unlink()
    refused(folder, "has no config.json")
    refused(folder / "none", "is no directory")


def test_refused_tensors(folder):
    """Kills: a tensor that is left out in silence, a head that only claims to be tied, a damaged or missing file."""
    config, tensors = parts(folder)
    tensors = {key: array.copy() for key, array in tensors.items()}
    embedding = tensors["model.embed_tokens.weight"]
    rope = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32)}
    published.write_folder(folder / "more", config, {**tensors, **rope, "lm_head.weight": embedding})
    left_out = open_folder(folder / "more").account.left_out
    assert left_out == ("lm_head.weight", "model.layers.0.self_attn.rotary_emb.inv_freq")
    published.write_folder(folder / "untied", config, {**tensors, "lm_head.weight": embedding + 1})
    refused(folder / "untied", "tensor lm_head.weight is no part of a llama model")

    file = folder / "model.safetensors"
    whole = file.read_bytes()
    header = int.from_bytes(whole[:8], "little")
    damages = [
        (whole[:-5], "cut off"),
        (whole[:100], "cut off"),
        (b"", "cut off"),
        (b"\xff" * 8 + whole[8:], "cut off"),
        (whole[:8] + b"[" + whole[9:], "damaged"),
        (whole.replace(b'"F32"', b'"U16"').replace(b'"F16"', b'"U16"'), "damaged"),
        (whole.replace(b'"shape":[61,32]', b'"shape":[61,33]'), "damaged"),
        (whole.replace(b'"shape":[61,32]', b'"shape":[-1,-2]'), "damaged"),
        (whole[:8] + whole[8 : 8 + header].replace(b'"dtype"', b'"dtypo"', 1) + whole[8 + header :], "damaged"),
        (POINTER, "is a Git LFS pointer, not the file itself; run git lfs pull"),
    ]
    for content, message in damages:
        file.write_bytes(content)
        refused(folder, message)
    file.unlink()
    refused(folder, "holds no tensors")

    (folder / "pytorch_model.bin").write_bytes(POINTER)
    refused(folder, "is a Git LFS pointer")
    torch_files.write_tensors(folder / "pytorch_model.bin", tensors)
    found = open_folder(folder).tensors
    np.testing.assert_array_equal(found["model.norm.weight"], tensors["model.norm.weight"])
    (folder / "pytorch_model.bin").unlink()
    index = folder / "model.safetensors.index.json"
    for content, message in (
        ({"weight_map": {"a": "x.safetensors"}}, "names x.safetensors, which is missing"),
        ({"weight_map": {"a": "../x.safetensors"}}, "must be the name of a file next to it"),
        ({"weight_map": ["x"]}, "has no weight_map"),
    ):
        index.write_text(json.dumps(content))
        refused(folder, message)


def test_memory_and_shards(tmp_path):
    """Kills: a copy of the whole file, of a stack of layers, or of a whole tensor where a device has a part.

    Counts the memory of NumPy: arrays of JAX, which stay, are not in it, nor are pages of the mapped file.
    """
    config, shapes, _ = published.read(NAME)
    d, layers, rows = 256, 6, 2000
    config |= {
        "hidden_size": d,
        "head_dim": 64,
        "intermediate_size": 512,
        "vocab_size": rows,
        "num_hidden_layers": layers,
    }
    sizes = {8: 64, 16: 128, 32: d, 40: 512, 61: rows}
    shapes = {key: tuple(sizes[n] for n in shape) for key, shape in shapes.items()}
    first = {key: shape for key, shape in shapes.items() if ".layers.0." in key}
    others = {key: shape for key, shape in shapes.items() if ".layers." not in key}
    stacked = {key.replace(".0.", f".{i}."): shape for i in range(layers) for key, shape in first.items()}
    arrays = {key: published.numbers(key, shape) for key, shape in {**others, **stacked}.items()}
    published.write_folder(tmp_path, config, arrays)
    largest = max(array.nbytes for array in arrays.values())
    total = sum(array.nbytes for array in arrays.values())
    del arrays
    loaded, opened = load(tmp_path), open_folder(tmp_path)
    tracemalloc.start()
    read_variables(opened)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert largest <= peak < 1.3 * largest + 2**20 < total / 2

    mesh = make_mesh(MeshConfig(data=1, fsdp=2, tensor=2), jax.devices()[:4]) if len(jax.devices()) >= 4 else None
    if mesh is not None:
        sharded = load(tmp_path, mesh=mesh, dtype="bfloat16").model
        q = sharded.stacks[0].blocks[0].mixer.q_proj.kernel[...]
        assert (q.dtype, q.addressable_shards[0].data.shape) == (jax.numpy.bfloat16, (layers, d // 2, d // 2))
        assert sharded.final_norm.scale[...].dtype == jax.numpy.float32
        np.testing.assert_allclose(
            np.asarray(q, np.float32), loaded.model.stacks[0].blocks[0].mixer.q_proj.kernel[...], rtol=4e-3
        )


def test_refused_to_write(tmp_path):
    """Kills: a model written as one that it is not; files of others overwritten."""
    config = LanguageModelConfig(pattern=(HyenaConfig(),), d_model=8, n_layers=1, vocab_size=8)
    with pytest.raises(ValueError, match="no family of other libraries has this model; llama: norm='layer'"):
        save((config, None), tmp_path / "x")
    with pytest.raises(ValueError, match="family 'lama' must be one of llama"):
        save((config, None), tmp_path / "x", family="lama")
    mixer = Mamba2Config(d_state=2, head_dim=4, proj_bias=True)
    biased = LanguageModelConfig(pattern=(mixer,), d_model=8, n_layers=1, vocab_size=8, mlp="none", norm="rms")
    with pytest.raises(ValueError, match="proj_bias=True: a model of family mamba2 has no such layers"):
        save((biased, None), tmp_path / "x", family="mamba2")
    attention = AttentionConfig(n_heads=2, positions="rotary", output_gate=True)
    gated = LanguageModelConfig(pattern=(attention,), d_model=8, n_layers=1, vocab_size=8, norm="rms")
    with pytest.raises(
        ValueError, match=r"variable layers\.0\.mixer\.gate_proj\.kernel has no place in a model of family llama"
    ):
        save((gated, Variables({}, {})), tmp_path / "x", family="llama")
    assert not (tmp_path / "x").exists()
    (tmp_path / "y").write_text("mine")
    with pytest.raises(ValueError, match="holds files"):
        save((config, None), tmp_path)


ROTARY: dict[str, Any] = {"n_heads": 2, "positions": "rotary"}
WINDOW: dict[str, Any] = {"n_heads": 2, "window": 4}
BIASED: dict[str, Any] = {"qkv_bias": True, "out_bias": True}
NORMED: dict[str, Any] = {**ROTARY, "qk_norm": "rms", "qk_norm_eps": 1e-5}
GATED: dict[str, Any] = {"norm": "rms", "mlp": "swiglu"}
PLAIN: dict[str, Any] = {"norm": "layer", "mlp": "gelu", "mlp_bias": True}
GRIFFIN: dict[str, Any] = {
    "norm": "rms",
    "mlp": "geglu_tanh",
    "mlp_bias": True,
    "embed_scale": 4.0,
    "logit_soft_cap": 30.0,
}
UNLIKE = [
    (
        "llama",
        GATED,
        [AttentionConfig(**ROTARY), AttentionConfig(**ROTARY, rotary_interleaved=True)],
        "layer 1: rotary_interleaved=True must be that of layer 0 in llama, False",
    ),
    ("gpt_neox", PLAIN, [SlidingWindowAttentionConfig(**WINDOW, **BIASED)], "no window"),
    (
        "based",
        GATED,
        [AttentionConfig(n_heads=2), SlidingWindowAttentionConfig(**WINDOW)],
        "layer 1: positions='rotary' must be that of layer 0 in based, 'none'",
    ),
    ("based", GATED, [AttentionConfig(n_heads=2, positions="alibi")], "positions='alibi'"),
    ("based", GATED, [GatedShortConvConfig(), GatedShortConvConfig(conv_bias=True)], "all convolutions"),
    (
        "recurrent_gemma",
        GRIFFIN,
        [
            RGLRUConfig(n_heads=2, form="release", decay_constant=2.0),
            SlidingWindowAttentionConfig(**WINDOW, out_bias=True),
        ],
        "decay_constant 8",
    ),
    (
        "qwen3_next",
        GATED,
        [GatedDeltaNetConfig(n_heads=2, gate=False), AttentionConfig(**NORMED, output_gate=True)],
        "Gated DeltaNet with a gate",
    ),
]


@pytest.mark.parametrize(("family", "fields", "pattern", "message"), UNLIKE)
def test_options_without_a_place_in_a_folder(family, fields, pattern, message, tmp_path):
    """Kills: an option of a later layer, or one without a variable, that the written model does not have."""
    config = LanguageModelConfig(pattern=tuple(pattern), d_model=16, n_layers=len(pattern), vocab_size=8, **fields)
    with pytest.raises(ValueError, match=message):
        save((config, Variables({}, {})), tmp_path / "x", family=family)
    assert not (tmp_path / "x").exists()
