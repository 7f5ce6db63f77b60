"""Folders of transformers, loaded here, and written here, loaded there: equal logits."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.interop import load, save
from jaxzoo.interop.families.fla import KINDS
from tests.interop.published_configs import MODELS, write_folder
from tests.parity.carry import randomize, token_ids
from tests.parity.folders import FOLDERS, UNFUSED, fla_models, make_model

pytestmark = pytest.mark.parity

TOLERANCE = 1e-4


def logits_of(theirs, tokens, torch):
    with torch.no_grad():
        return theirs(torch.tensor(tokens.astype(np.int64)), use_cache=False).logits.numpy()


def all_forms(model, tokens):
    """Logits in one pass, and from two prefills and two steps."""
    n = tokens.shape[1]

    @jax.jit
    def streamed(tokens):
        parts, state = [], model.init_state(tokens.shape[0], capacity=n)
        for start, end in ((0, 5), (5, n - 2)):
            logits, state = model.prefill(tokens[:, start:end], state)
            parts.append(logits)
        for i in (n - 2, n - 1):
            logits, state = model.step(tokens[:, i], state)
            parts.append(logits[:, None])
        return jnp.concatenate(parts, axis=1)

    tokens = jnp.asarray(tokens)
    return jax.jit(model.__call__)(tokens), streamed(tokens)


@pytest.mark.filterwarnings("ignore:According to Bo")  # RWKV-6 of flash-linear-attention
@pytest.mark.parametrize("name", FOLDERS)
def test_folder(name, tmp_path, torch, transformers):
    """Kills: a tensor in another place or order, a field misread, a file that transformers reads otherwise."""
    theirs, tokens = make_model(name), token_ids(61, b=2, t=29)
    theirs.save_pretrained(tmp_path / "theirs")  # before it runs: RWKV rescales its weights in place
    expected = logits_of(theirs, tokens, torch)
    loaded = load(tmp_path / "theirs")
    for found in all_forms(loaded.model, tokens):
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)
    same_model = "qwen3_5" if name == "qwen3_5" else None  # Qwen3-Next without experts is the same
    save(loaded.model, tmp_path / "ours", family=same_model)
    again = type(theirs).from_pretrained(tmp_path / "ours", dtype=torch.float32).eval()
    rescales = getattr(theirs.config, "rescale_every", 0)  # and what is written does not: the eps of norms differs
    tolerance = TOLERANCE if rescales else 1e-5
    np.testing.assert_allclose(logits_of(again, tokens, torch), expected, rtol=0, atol=tolerance)


def test_older_fields_of_gpt_neox(tmp_path, torch, transformers):
    """Kills: rotary fields of folders from before transformers 5, of which Pythia has these, left unread."""
    theirs, tokens = make_model("gpt_neox-parallel"), token_ids(61, b=2, t=29)
    theirs.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["rope_parameters"]
    config |= {"rotary_pct": 0.5, "rotary_emb_base": 100, "rope_scaling": None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = load(tmp_path).model(jnp.asarray(tokens))
    np.testing.assert_allclose(found, logits_of(theirs, tokens, torch), rtol=0, atol=TOLERANCE)


FLA_FAMILIES = (*KINDS, "rwkv6")
THEIRS = [name for name, config in MODELS.items() if "model_type" in config]


@pytest.mark.filterwarnings("ignore:According to Bo")  # RWKV-6 of flash-linear-attention
@pytest.mark.parametrize("model", THEIRS)
def test_published_fields(model, tmp_path, torch, transformers):
    """Kills: fields of published folders that we read, and transformers reads otherwise."""
    write_folder(model, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    if "time_step_limit" in config:  # as the published file has it
        config["time_step_limit"] = [0.0, float("inf")]
    if config["model_type"] in FLA_FAMILIES and fla_models():
        config |= UNFUSED
    (tmp_path / "config.json").write_text(json.dumps(config))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    tokens = token_ids(61, b=2, t=29)
    found = load(tmp_path).model(jnp.asarray(tokens))
    np.testing.assert_allclose(found, logits_of(theirs, tokens, torch), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("kind", ["BASED", "TRANSFORMER_PP", "ODD"])
def test_based(kind, tmp_path, torch):
    """Kills: halves of fc1 swapped, a window of another width, rows of Wqkv in another order, counters taken for
    parameters; through torch.save and its dict, and through our own folder of the same names."""
    from tests.parity import based_model

    config = getattr(based_model, kind)
    theirs, tokens = based_model.Based(config), token_ids(61, b=2, t=29)
    randomize(theirs, torch, std=0.1)
    with torch.no_grad():
        expected = theirs(torch.tensor(tokens.astype(np.int64))).numpy()
    based_model.write_folder(theirs, config, tmp_path / "theirs")
    loaded = load(tmp_path / "theirs")
    for found in all_forms(loaded.model, tokens):
        np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)
    save(loaded.model, tmp_path / "ours", family="based")
    again = load(tmp_path / "ours")
    np.testing.assert_allclose(again.model(jnp.asarray(tokens)), expected, rtol=0, atol=TOLERANCE)


def test_mamba_of_the_authors(tmp_path, torch, transformers):
    """Kills: names and fields of the authors' library, in which Based's peers and state-spaces/mamba-130m come."""
    theirs, tokens = make_model("mamba"), token_ids(61, b=2, t=29)
    state = {name.replace("embeddings", "embedding"): value for name, value in theirs.state_dict().items()}
    torch.save({f"model.{name}": value for name, value in state.items()}, tmp_path / "pytorch_model.bin")
    config = {"d_model": 32, "n_layer": 3, "vocab_size": 61, "rms_norm": True, "ssm_cfg": {"d_state": 5, "dt_rank": 3}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = load(tmp_path).model(jnp.asarray(tokens))
    np.testing.assert_allclose(found, logits_of(theirs, tokens, torch), rtol=0, atol=TOLERANCE)


def test_sharded(tmp_path, torch, transformers):
    """Kills: several files of either side, and bfloat16 tensors."""
    theirs, tokens = make_model("llama"), token_ids(61, b=2, t=29)
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 1
    loaded = load(tmp_path / "theirs")
    expected = logits_of(theirs, tokens, torch)
    np.testing.assert_allclose(loaded.model(jnp.asarray(tokens)), expected, rtol=0, atol=TOLERANCE)
    save(loaded.model, tmp_path / "ours", largest_file=20_000)
    again = type(theirs).from_pretrained(tmp_path / "ours", dtype=torch.float32).eval()
    np.testing.assert_allclose(logits_of(again, tokens, torch), expected, rtol=0, atol=1e-6)
    theirs.bfloat16().save_pretrained(tmp_path / "narrow")
    narrow = load(tmp_path / "narrow").model(jnp.asarray(tokens))
    wide = type(theirs).from_pretrained(tmp_path / "narrow", dtype=torch.float32).eval()
    np.testing.assert_allclose(narrow, logits_of(wide, tokens, torch), rtol=0, atol=TOLERANCE)
