"""Published layouts, against logits of transformers. Kills: a transposed or misplaced tensor."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.interop import load, save
from jaxzoo.interop.families import FAMILIES
from jaxzoo.interop.fields import Fields
from jaxzoo.interop.loading import read_tensors
from jaxzoo.mixers import AttentionConfig, SlidingWindowAttentionConfig
from jaxzoo.models import LanguageModelConfig
from tests.interop import published
from tests.pallas_kernels.shared import full, slow

CORE = ("based", "llama-yarn-tied")
"""Between them: stacks and single layers, split and renamed tensors, taps, a tied head."""
SLOW = (
    "gpt_neox-sequential",
    "llama-biases",
    "qwen2-windows",
    "recurrent_gemma-biases",
    "transformer_pp-odd",
    "qwen3",
    "qwen2",
    "mistral",
    "transformer_pp",
    "gpt_neox-parallel",
    "lfm2-biases",
    "delta_net-gate",
)
"""Other fields of families that a folder in full has."""
MERGED = ("hgrn2", "retnet")
"""Families that are written with other tensors of the same function."""
RENAMED = ("olmo_hybrid",)
"""Families that are written as their released models, which transformers saves otherwise."""
FOLDERS = [name if name in CORE else slow(name) if name in SLOW else full(name) for name in published.NAMES]


@pytest.mark.parametrize("name", FOLDERS)
def test_published_folder(name, tmp_path):
    """Kills: a tensor in another place or transposed, a field misread, a tensor lost on the way back."""
    expected = published.make_folder(name, tmp_path / "theirs")
    loaded = load(tmp_path / "theirs")
    logits = jax.jit(loaded.model.__call__)(jnp.asarray(published.TOKENS))
    np.testing.assert_allclose(logits[:, -2:, :5], expected, rtol=0, atol=1e-4)
    assert loaded.tokenizer is None
    family = "based" if name.startswith(("based", "transformer_pp")) else "qwen3_5" if name == "qwen3_5" else None
    save(loaded.model, tmp_path / "ours", family=family)
    there, here = read_tensors(tmp_path / "theirs"), read_tensors(tmp_path / "ours")
    assert name in RENAMED or there.keys() == here.keys()
    if name in (*MERGED, *RENAMED):
        again = jax.jit(load(tmp_path / "ours").model.__call__)(jnp.asarray(published.TOKENS))
        np.testing.assert_allclose(again, logits, rtol=0, atol=1e-5)
        return
    for key, array in there.items():
        tolerance = 1e-7 if "norm" in key or key.endswith(".mu") else 0  # some are stored as the difference to 1
        np.testing.assert_allclose(here[key], array, rtol=0, atol=tolerance)


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
@pytest.mark.parametrize("first", [0, 2, 3])
def test_windows_by_the_older_field(family, first):
    """Kills: windows that a reader of `max_window_layers` alone puts on other layers."""
    heads = {"n_heads": 2, "head_dim": 8, "positions": "rotary", "qkv_bias": family == "qwen2"}
    heads |= {"qk_norm": "rms"} if family == "qwen3" else {}
    full, near = AttentionConfig(**heads), SlidingWindowAttentionConfig(**heads, window=6)
    model = LanguageModelConfig(
        pattern=(full,) * first + (near,) * (3 - first),
        d_model=16,
        n_layers=3,
        vocab_size=31,
        pad_vocab_multiple=1,
        mlp="swiglu",
        norm="rms",
        norm_eps=1e-6,
    )
    content = json.loads(json.dumps(FAMILIES[family].write(model)))
    del content["layer_types"]
    again = FAMILIES[family].read(Fields(content, "config.json"), {})
    assert [getattr(layer, "window", None) for layer in again.layers] == [None] * first + [6] * (3 - first)
