"""RWKV-7 of its authors and of FLA, against its equations in float64. Kills: a swapped low-rank map."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.interop import load, save
from jaxzoo.interop.loading import read_tensors
from tests.interop import published, torch_files

D, HEADS, LAYERS, HIDDEN, ROWS = 12, 3, 3, 20, 61
RANKS = {"w": 2, "a": 3, "v": 4, "g": 5}
TOKENS = published.TOKENS[:, :9]
FLA = {
    "model_type": "rwkv7",
    "hidden_size": D,
    "head_dim": D // HEADS,
    "num_heads": None,
    "num_hidden_layers": LAYERS,
    "intermediate_size": HIDDEN,
    "hidden_ratio": 4.0,
    "hidden_act": "sqrelu",
    "vocab_size": ROWS,
    "value_dim": [D] * LAYERS,
    "norm_eps": 64e-5 / 4,
    "attn": None,
    "attn_mode": "chunk",
    "fuse_norm": True,
    "norm_first": True,
    "norm_bias": True,
    **{f"{name}_low_rank_dim": RANKS[n] for name, n in (("decay", "w"), ("a", "a"), ("v", "v"), ("gate", "g"))},
}


def released():
    """Random tensors of the release's names and shapes; block 0 has the `v0`, `v1` and `v2` that nothing reads."""
    shapes = {"emb.weight": (ROWS, D), "head.weight": (ROWS, D)}
    norms = ["ln_out", "blocks.0.ln0"]
    for i in range(LAYERS):
        block, att = f"blocks.{i}", f"blocks.{i}.att"
        norms += [f"{block}.ln1", f"{block}.ln2", f"{att}.ln_x"]
        vectors = [f"{att}.x_{n}" for n in "rwkvag"] + [f"{att}.{n}0" for n in "wav"]
        vectors += [f"{att}.k_k", f"{att}.k_a", f"{block}.ffn.x_k"]
        shapes |= dict.fromkeys(vectors, (1, 1, D))
        shapes |= {f"{att}.{n}.weight": (D, D) for n in ("receptance", "key", "value", "output")}
        shapes |= {f"{att}.{n}1": (D, rank) for n, rank in RANKS.items()}
        shapes |= {f"{att}.{n}2": (rank, D) for n, rank in RANKS.items()}
        shapes |= {f"{att}.r_k": (HEADS, D // HEADS)}
        shapes |= {f"{block}.ffn.key.weight": (HIDDEN, D), f"{block}.ffn.value.weight": (D, HIDDEN)}
    shapes |= {f"{norm}.{end}": (D,) for norm in norms for end in ("weight", "bias")}
    return {name: published.numbers(name, shape) for name, shape in shapes.items()}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def normed(x, z, name, eps):
    """Normalizes over the last axis; scale and shift have all channels."""
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)
    return x.reshape(-1) * z[f"{name}.weight"] + z[f"{name}.bias"]


def time_mix(z, x, before, s, first_value, eps):
    """One token (arXiv 2503.14456, sec. 4); s is (head, value, key), and is changed in place."""
    r, w, k, v, a, g = (x + (before - x) * z[f"x_{n}"].reshape(-1) for n in "rwkvag")
    receptance, key, value = z["receptance.weight"] @ r, z["key.weight"] @ k, z["value.weight"] @ v
    decay = np.exp(-np.exp(-0.5) * sigmoid(z["w0"].reshape(-1) + np.tanh(w @ z["w1"]) @ z["w2"]))
    rate = sigmoid(z["a0"].reshape(-1) + a @ z["a1"] @ z["a2"])
    gate = sigmoid(g @ z["g1"]) @ z["g2"]
    if first_value is None:
        first_value = value
    else:
        share = sigmoid(z["v0"].reshape(-1) + v @ z["v1"] @ z["v2"])
        value = (1 - share) * value + share * first_value
    removed, key = key * z["k_k"].reshape(-1), key * (1 + (rate - 1) * z["k_a"].reshape(-1))
    r, w, k, v, a, kappa = (y.reshape(HEADS, -1) for y in (receptance, decay, key, value, rate, removed))
    out = []
    for h in range(HEADS):
        unit = kappa[h] / np.linalg.norm(kappa[h])
        s[h] = s[h] @ (np.diag(w[h]) - np.outer(unit, a[h] * unit)) + np.outer(v[h], k[h])
        out.append(s[h] @ r[h])
    y = normed(np.array(out), z, "ln_x", eps)
    y = y + ((r * z["r_k"] * k).sum(-1, keepdims=True) * v).reshape(-1)
    return z["output.weight"] @ (y * gate), first_value


def truth(tensors, tokens, head_eps=64e-5):
    """Logits (t, vocab) of one sequence."""
    z = {name: array.astype(np.float64) for name, array in tensors.items()}
    inside = [
        {name.removeprefix(f"blocks.{i}.{part}."): array for name, array in z.items() if f"blocks.{i}.{part}." in name}
        for i in range(LAYERS)
        for part in ("att", "ffn")
    ]
    last, s = np.zeros((2 * LAYERS, D)), np.zeros((LAYERS, HEADS, D // HEADS, D // HEADS))
    logits = []
    for token in tokens:
        x, first_value = normed(z["emb.weight"][token], z, "blocks.0.ln0", 1e-5), None
        for i in range(LAYERS):
            u = normed(x, z, f"blocks.{i}.ln1", 1e-5)
            y, first_value = time_mix(inside[2 * i], u, last[2 * i], s[i], first_value, head_eps)
            x, last[2 * i] = x + y, u
            u, ffn = normed(x, z, f"blocks.{i}.ln2", 1e-5), inside[2 * i + 1]
            hidden = ffn["key.weight"] @ (u + (last[2 * i + 1] - u) * ffn["x_k"].reshape(-1))
            x, last[2 * i + 1] = x + ffn["value.weight"] @ np.maximum(hidden, 0) ** 2, u
        logits.append(z["head.weight"] @ normed(x, z, "ln_out", 1e-5))
    return np.array(logits)


@pytest.mark.slow
def test_folder_of_the_authors(tmp_path):
    """Kills: a low-rank map transposed or of another letter, shares of the shifts in another order, values of another
    layer, another eps of the heads; a file that does not come back bit for bit."""
    tensors = released()
    torch_files.write_tensors(tmp_path / "RWKV-x070.pth", tensors)
    with pytest.raises(ValueError, match=r'no config.json; .*"model_type": "rwkv7"'):
        load(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "rwkv7"}')
    loaded = load(tmp_path)
    assert loaded.account.left_out == tuple(f"blocks.0.att.v{n}" for n in range(3))
    expected = np.stack([truth(tensors, row) for row in TOKENS])
    np.testing.assert_allclose(jax.jit(loaded.model.__call__)(jnp.asarray(TOKENS)), expected, rtol=0, atol=1e-4)
    save(loaded.model, tmp_path / "ours")
    again, used = read_tensors(tmp_path / "ours"), tensors.keys() - set(loaded.account.left_out)
    assert again.keys() == used
    for name in used:
        np.testing.assert_array_equal(again[name], tensors[name], err_msg=name)
    assert load(tmp_path / "ours").config == loaded.config


def of_fla(name, array):
    """Name and tensor in flash-linear-attention."""
    maps = {"1": "0.weight", "2": "2.weight", "0": "2.bias"}
    if found := re.fullmatch(r"(.*\.att)\.([wavg])([012])", name):
        name = f"{found[1]}.{found[2]}_lora.lora.{maps[found[3]]}"
        array = array.T if array.ndim == 2 else array
    names = {"receptance": "r_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj", "ln_x": "g_norm"}
    if ".att." in name:
        name = re.sub("|".join(names), lambda found: names[found[0]], name)
    top = {
        r"^emb\b": "model.embeddings",
        r"^head\b": "lm_head",
        r"^ln_out\b": "model.norm",
        r"^blocks\b": "model.layers",
    }
    parts = {r"\bln0\b": "pre_norm", r"\bln1\b": "attn_norm", r"\bln2\b": "ffn_norm", r"\batt\b": "attn"}
    for pattern, new in (top | parts).items():
        name = re.sub(pattern, new, name)
    return name, array if ".x_" in name and ".attn." in name else array.reshape(
        array.shape[-1:] if array.shape[:2] == (1, 1) else array.shape
    )


@pytest.mark.full
def test_folder_of_fla(tmp_path):
    """Kills: a matrix of the low-rank maps not transposed, fields of config.json misread, a folder that does not come
    back; the eps of the heads is theirs times the width."""
    tensors = {name: array for name, array in released().items() if not re.search(r"blocks\.0\.att\.v[012]", name)}
    theirs = dict(of_fla(name, array) for name, array in tensors.items())
    published.write_folder(tmp_path / "theirs", FLA | {"norm_eps": 1e-5}, theirs)
    loaded = load(tmp_path / "theirs")
    expected = np.stack([truth(tensors, row, head_eps=4e-5) for row in TOKENS])
    np.testing.assert_allclose(jax.jit(loaded.model.__call__)(jnp.asarray(TOKENS)), expected, rtol=0, atol=1e-4)
    with pytest.raises(ValueError, match=r"norm_eps=4e-05: a model of family rwkv7 has 0.00064"):
        save(loaded.model, tmp_path / "none", family="rwkv7")
    save(loaded.model, tmp_path / "ours", family="rwkv7_fla")
    again = read_tensors(tmp_path / "ours")
    assert again.keys() == theirs.keys()
    for name, array in theirs.items():
        np.testing.assert_array_equal(again[name], array, err_msg=name)
    assert load(tmp_path / "ours").config == loaded.config
