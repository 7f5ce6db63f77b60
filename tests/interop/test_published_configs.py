"""Published config.json files. Kills: a field that is refused or skipped."""

import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.interop import load
from jaxzoo.mixers import RGLRUConfig, SlidingWindowAttentionConfig
from jaxzoo.mixers.attention.multi_head import MultiHeadConfig
from tests.interop.published_configs import LAYERS, MODELS, PUBLISHED, write_folder
from tests.pallas_kernels.shared import slow


def test_there_are_many():
    """Kills: families whose fields are known from folders of today's transformers alone."""
    assert len(MODELS) == len(PUBLISHED) >= 30
    assert all(entry["source"] for entry in PUBLISHED)


@pytest.mark.parametrize("model", MODELS)
def test_fields(model, tmp_path):
    """Kills: a field of a published folder that is refused, skipped, or read as another value."""
    fields = write_folder(model, tmp_path)
    config = load(tmp_path).config
    assert config.tie_embeddings == fields.get(
        "tie_word_embeddings", fields.get("tie_embeddings", config.tie_embeddings)
    )
    n_layers = config.n_layers // (2 if fields.get("model_type") in ("rwkv", "rwkv6") else 1)
    assert n_layers == LAYERS
    text = fields.get("text_config", fields)
    rope = text.get("rope_parameters", text)
    for layer in config.layers:
        if not isinstance(layer, MultiHeadConfig):
            continue
        if rope.get("rope_theta", 0) is None:
            assert layer.positions == "none"
            continue
        assert layer.rotary_base == rope.get("rope_theta", fields.get("rotary_emb_base", 10000.0))
        share = rope.get("partial_rotary_factor", fields.get("rotary_pct", 1.0))
        assert layer.rotary_fraction == share
        scaling = fields.get("rope_scaling") or {}
        assert layer.rotary_scaling.kind == scaling.get("rope_type", "none")
    windows = [isinstance(layer, SlidingWindowAttentionConfig) for layer in config.layers]
    if fields.get("model_type") == "mistral":
        assert all(windows) == bool(fields.get("sliding_window", 4096))
    elif fields.get("model_type") == "recurrent_gemma":
        assert [isinstance(layer, RGLRUConfig) for layer in config.layers] == [True, True, False]
    else:
        assert not any(windows)


STREAMED = ["state-spaces/mamba2-130m", "google/recurrentgemma-2b", "smollm2_135m", slow("allenai/Olmo-Hybrid-7B")]


@pytest.mark.full
@pytest.mark.parametrize("model", STREAMED)
def test_streams(model, tmp_path):
    """Kills: a model that loads and does not run: prefill and steps give the logits of one pass."""
    write_folder(model, tmp_path)
    loaded = load(tmp_path).model
    tokens = jnp.asarray(np.arange(22).reshape(2, 11) * 7 % 61, jnp.int32)
    whole = loaded(tokens)
    logits, state = loaded.prefill(tokens[:, :9], loaded.init_state(2, capacity=16))
    np.testing.assert_allclose(logits, whole[:, :9], rtol=0, atol=2e-4)
    for i in (9, 10):
        logits, state = loaded.step(tokens[:, i], state)
        np.testing.assert_allclose(logits, whole[:, i], rtol=0, atol=2e-4)


def test_the_page_lists_them():
    """Kills: a family that docs/checkpoints.md calls checked and that no published config is of, and the reverse."""
    page = (Path(__file__).parents[2] / "docs" / "checkpoints.md").read_text()
    named = {"rwkv": "rwkv4", "rwkv6": "rwkv6_fla", None: "mamba_ssm"}
    families = {name: named.get(config.get("model_type"), config.get("model_type")) for name, config in MODELS.items()}
    rows = re.findall(r"^\| config fields of (\d+) published .*? \| (.*) \|$", page, re.MULTILINE)
    assert sum(int(n) for n, _ in rows) == len(MODELS)
    for n, listed in rows:
        here = re.findall(r"`(\w+)`", listed)
        assert sum(family in here for family in families.values()) == int(n)
    assert {family for _, listed in rows for family in re.findall(r"`(\w+)`", listed)} == set(families.values())
