"""RWKV-6 in llama.cpp's GGUF layout, against its equations in float64 by the authors' names of tensors."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxzoo.interop import load, save
from tests.interop import published
from tests.interop.test_gguf import REMEDY
from tests.interop.test_rwkv7 import normed, sigmoid

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(importlib.util.find_spec("gguf") is None, reason=REMEDY),
]
D, HEADS, LAYERS, HIDDEN, ROWS = 12, 3, 3, 20, 61
SHIFT_RANK, DECAY_RANK, EVERY = 2, 4, 2
TOKENS = published.TOKENS[:, :9]


def released():
    """Random tensors of the release's names and shapes."""
    shapes = {"emb.weight": (ROWS, D), "head.weight": (ROWS, D)}
    norms = ["ln_out", "blocks.0.ln0"]
    for i in range(LAYERS):
        block, att, ffn = f"blocks.{i}", f"blocks.{i}.att", f"blocks.{i}.ffn"
        norms += [f"{block}.ln1", f"{block}.ln2", f"{att}.ln_x"]
        vectors = [f"{att}.time_maa_{n}" for n in "xwkvrg"] + [f"{att}.time_decay"]
        shapes |= dict.fromkeys([*vectors, f"{ffn}.time_maa_k", f"{ffn}.time_maa_r"], (1, 1, D))
        shapes |= {f"{att}.time_maa_w1": (D, 5 * SHIFT_RANK), f"{att}.time_maa_w2": (5, SHIFT_RANK, D)}
        shapes |= {f"{att}.time_decay_w1": (D, DECAY_RANK), f"{att}.time_decay_w2": (DECAY_RANK, D)}
        shapes |= {f"{att}.{n}.weight": (D, D) for n in ("receptance", "key", "value", "gate", "output")}
        shapes |= {f"{att}.time_faaaa": (HEADS, D // HEADS), f"{ffn}.receptance.weight": (D, D)}
        shapes |= {f"{ffn}.key.weight": (HIDDEN, D), f"{ffn}.value.weight": (D, HIDDEN)}
    shapes |= {f"{norm}.{end}": (D,) for norm in norms for end in ("weight", "bias")}
    return {name: published.numbers(name, shape) for name, shape in shapes.items()}


def time_mix(z, x, before, s):
    """One token (arXiv 2404.05892, sec. 4); s is (head, key, value), and is changed in place."""
    to_last = before - x
    hidden = np.tanh((x + to_last * z["time_maa_x"].reshape(-1)) @ z["time_maa_w1"]).reshape(5, -1)
    w, k, v, r, g = (
        x + to_last * (z[f"time_maa_{n}"].reshape(-1) + hidden[j] @ z["time_maa_w2"][j]) for j, n in enumerate("wkvrg")
    )
    decay = np.exp(-np.exp(z["time_decay"].reshape(-1) + np.tanh(w @ z["time_decay_w1"]) @ z["time_decay_w2"]))
    gate = z["gate.weight"] @ g
    r, k, v = z["receptance.weight"] @ r, z["key.weight"] @ k, z["value.weight"] @ v
    out = []
    r, k, v, decay = (y.reshape(HEADS, -1) for y in (r, k, v, decay))
    for h in range(HEADS):
        write = np.outer(k[h], v[h])
        out.append(r[h] @ (s[h] + z["time_faaaa"][h][:, None] * write))
        s[h] = decay[h][:, None] * s[h] + write
    return z["output.weight"] @ (normed(np.array(out), z, "ln_x", 64e-5) * gate * sigmoid(gate))


def truth(tensors, tokens):
    """Logits (t, vocab) of one sequence."""
    z = {name: array.astype(np.float64) for name, array in tensors.items()}
    inside = [
        {name.removeprefix(f"blocks.{i}.{part}."): array for name, array in z.items() if f"blocks.{i}.{part}." in name}
        for i in range(LAYERS)
        for part in ("att", "ffn")
    ]
    last, s, logits = np.zeros((2 * LAYERS, D)), np.zeros((LAYERS, HEADS, D // HEADS, D // HEADS)), []
    for token in tokens:
        x = normed(z["emb.weight"][token], z, "blocks.0.ln0", 1e-5)
        for i in range(LAYERS):
            u = normed(x, z, f"blocks.{i}.ln1", 1e-5)
            x, last[2 * i] = x + time_mix(inside[2 * i], u, last[2 * i], s[i]), u
            u, ffn = normed(x, z, f"blocks.{i}.ln2", 1e-5), inside[2 * i + 1]
            k, r = (u + (last[2 * i + 1] - u) * ffn[f"time_maa_{n}"].reshape(-1) for n in "kr")
            hidden = ffn["value.weight"] @ np.maximum(ffn["key.weight"] @ k, 0) ** 2
            x, last[2 * i + 1] = x + sigmoid(ffn["receptance.weight"] @ r) * hidden, u
        logits.append(z["head.weight"] @ normed(x, z, "ln_out", 1e-5))
    return np.array(logits)


def as_llama_cpp(tensors, joint):
    """Names and numbers as llama.cpp's converter writes them; `joint`: the shifts of a layer in one tensor."""
    ends = {"emb": "token_embd", "head": "output", "ln_out": "output_norm", "blocks.0.ln0": "token_embd_norm"}
    names = {"ln1": "attn_norm", "ln2": "attn_norm_2", "att.ln_x": "time_mix_ln", "att.time_faaaa": "time_mix_first"}
    names |= {f"att.time_maa_{n}": f"time_mix_{n}" for n in ("w1", "w2")}
    names |= {f"att.time_maa_{n}": f"time_mix_lerp_{n}" for n in "xwkvrg"}
    names |= {f"att.time_decay{n}": f"time_mix_decay{n}" for n in ("", "_w1", "_w2")}
    names |= {f"ffn.time_maa_{n}": f"channel_mix_lerp_{n}" for n in "kr"}
    for name, array in tensors.items():
        whole, _, end = name.rpartition(".")
        if whole in ends:
            yield f"{ends[whole]}.{end}", array
            continue
        _, i, inside = name.split(".", 2)
        inside, end = inside.rsplit(".", 1) if inside.endswith((".weight", ".bias")) else (inside, "weight")
        if joint and inside in [f"att.time_maa_{n}" for n in "wkvrg"]:
            if inside.endswith("_w"):
                fused = np.stack([tensors[f"{whole}.time_maa_{n}"][0] for n in "wkvrg"])[:, None]
                yield f"blk.{i}.time_mix_lerp_fused.weight", fused
            continue
        if inside in ("att.output", "ffn.value"):
            array = array / 2 ** (int(i) // EVERY)
        array = array.swapaxes(-1, -2) if inside.endswith(("_w1", "_w2")) else np.squeeze(array)
        theirs = names.get(inside, inside.replace("att.", "time_mix_").replace("ffn.", "channel_mix_"))
        yield f"blk.{i}.{theirs}.{end}", array


def write(file, tensors, joint):
    import gguf

    writer = gguf.GGUFWriter(file, "rwkv6")
    writer.add_context_length(1048576)
    writer.add_embedding_length(D)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_layer_norm_eps(1e-5)
    writer.add_rescale_every_n_layers(EVERY)
    writer.add_wkv_head_size(D // HEADS)
    writer.add_time_mix_extra_dim(SHIFT_RANK)
    writer.add_time_decay_extra_dim(DECAY_RANK)
    writer.add_head_count(0)
    for name, array in as_llama_cpp(tensors, joint):
        writer.add_tensor(name, np.ascontiguousarray(array, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_rwkv6(tmp_path):
    """Kills: mixtures in another order, a low-rank map transposed, output matrices still halved, the eps of another
    norm; shifts in separate tensors, as older files have them, that are read otherwise; a folder of
    flash-linear-attention with the wrong eps."""
    tensors = released()
    for joint in (True, False):
        write(tmp_path / f"{joint}.gguf", tensors, joint)
    loaded, older = (load(tmp_path / f"{joint}.gguf") for joint in (True, False))
    expected = np.stack([truth(tensors, row) for row in TOKENS])
    logits = jax.jit(loaded.model.__call__)(jnp.asarray(TOKENS))
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)
    jax.tree.map(np.testing.assert_array_equal, nnx.state(loaded.model), nnx.state(older.model))
    with pytest.raises(ValueError, match=r"norm_eps=0\.00064: a model of family rwkv6 has 9"):
        save(loaded.model, tmp_path / "none", family="rwkv6_fla")
