"""Based and its peers in PyTorch, with the parameter names of the released code, for comparisons on a CPU.

The released code needs a GPU. This states what it computes: pre-norm blocks, `fc1` with values, then gates, and mixers
as their config's `_target_` says.
"""

import json
import math

import torch
from torch import nn
from torch.nn import functional as F


class RMSNorm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


class ShortConvolution(nn.Module):
    def __init__(self, width, taps):
        super().__init__()
        self.conv = nn.Conv1d(width, width, taps, groups=width, padding=taps - 1, bias=False)

    def forward(self, x):
        return self.conv(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)


class BaseConv(nn.Module):
    def __init__(self, d, config, *, expand_proj=2, kernel_size=3, **_):
        super().__init__()
        self.inner = expand_proj * d // 2
        self.in_proj, self.out_proj = nn.Linear(d, 2 * self.inner), nn.Linear(self.inner, d)
        self.conv = ShortConvolution(self.inner, kernel_size)

    def forward(self, x):
        u1, u2 = self.in_proj(x).split(self.inner, dim=-1)
        return self.out_proj(F.silu(self.conv(u1)) * u2)


class LinearAttention(nn.Module):
    def __init__(self, d, config, *, num_heads=16, feature_dim=16, head_dim=None, **_):
        super().__init__()
        self.sizes = (num_heads, feature_dim, head_dim or d // num_heads)
        self.proj_q = nn.Linear(d, num_heads * feature_dim, bias=False)
        self.proj_k = nn.Linear(d, num_heads * feature_dim, bias=False)
        self.proj_v = nn.Linear(d, num_heads * self.sizes[2], bias=False)
        self.out_proj = nn.Linear(num_heads * self.sizes[2], d, bias=False)

    def forward(self, x):
        (h, f, v), (b, t, _) = self.sizes, x.shape
        q, k = (p(x).view(b, t, h, f).transpose(1, 2) for p in (self.proj_q, self.proj_k))
        values = self.proj_v(x).view(b, t, h, v).transpose(1, 2)
        s = q @ k.transpose(-1, -2) / math.sqrt(f)
        weights = (1 + s + s.square() / 2).tril()
        y = weights @ values / (weights.sum(-1, keepdim=True) + 1e-12)
        return self.out_proj(y.transpose(1, 2).reshape(b, t, h * v))


class MHA(nn.Module):
    def __init__(self, d, config, *, window_size=None, **_):
        super().__init__()
        self.heads, self.back = config["n_head"], None if window_size is None else window_size // 2
        self.rotated = int(config.get("rotary_emb_fraction", 0) * d // self.heads)
        self.Wqkv = nn.Linear(d, 3 * d, bias=config.get("qkv_proj_bias", True))
        self.out_proj = nn.Linear(d, d, bias=config.get("out_proj_bias", True))

    def turn(self, x):
        """An odd number of channels has the frequencies of that number, and a channel more turns (flash-attn)."""
        angle = torch.arange(x.shape[1])[:, None] * 10000.0 ** (-torch.arange(0, self.rotated, 2) / self.rotated)
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        half = angle.shape[-1]
        a, b = x[..., :half], x[..., half : 2 * half]
        return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., 2 * half :]], dim=-1)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.Wqkv(x).view(b, t, 3, self.heads, d // self.heads).unbind(2)
        q, k = (self.turn(y) if self.rotated else y for y in (q, k))
        i = torch.arange(t)
        seen = i[None] <= i[:, None]
        if self.back is not None:
            seen &= i[None] >= i[:, None] - self.back
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        scores = (q @ k.transpose(-1, -2) / math.sqrt(d // self.heads)).masked_fill(~seen, -math.inf)
        return self.out_proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))


MIXERS = {"BaseConv": BaseConv, "LinearAttention": LinearAttention, "SlidingAttention": MHA}


class GatedMlp(nn.Module):
    def __init__(self, d, width, bias):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(d, 2 * width, bias=bias), nn.Linear(width, d, bias=bias)

    def forward(self, x):
        y, gate = self.fc1(x).chunk(2, dim=-1)
        return self.fc2(F.silu(gate) * y)


class Block(nn.Module):
    def __init__(self, config, i):
        super().__init__()
        d = config["n_embd"]
        section = config.get("mixer")
        for name in ("alt_mixer", "alt_mixer_2"):
            section = config[name] if i in config.get(f"{name}_layers", ()) else section
        fields = dict(section or {})
        kind = MIXERS.get(fields.pop("_target_", "").rpartition(".")[2], MHA)
        self.norm1, self.norm2 = RMSNorm(d, 1e-5), RMSNorm(d, 1e-5)
        self.mixer, self.mlp = kind(d, config, **fields), GatedMlp(d, config["n_inner"], config["mlp_fc1_bias"])

    def forward(self, x):
        x = x + self.mixer(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Based(nn.Module):
    """`state_dict` has the released names."""

    def __init__(self, config):
        super().__init__()
        multiple = config["pad_vocab_size_multiple"]
        rows = -(-config["vocab_size"] // multiple) * multiple
        self.transformer = nn.Module()
        self.transformer.embeddings = nn.Module()
        self.transformer.embeddings.word_embeddings = nn.Embedding(rows, config["n_embd"])
        self.transformer.layers = nn.ModuleList([Block(config, i) for i in range(config["n_layer"])])
        self.transformer.ln_f = RMSNorm(config["n_embd"], 1e-5)
        self.lm_head = nn.Linear(config["n_embd"], rows, bias=False)
        self.lm_head.weight = self.transformer.embeddings.word_embeddings.weight

    def forward(self, tokens):
        x = self.transformer.embeddings.word_embeddings(tokens)
        for layer in self.transformer.layers:
            x = layer(x)
        return self.lm_head(self.transformer.ln_f(x))


BASED = {
    "vocab_size": 61,
    "pad_vocab_size_multiple": 8,
    "n_embd": 32,
    "n_layer": 5,
    "n_head": 4,
    "n_inner": 48,
    "activation_function": "swiglu",
    "rms_norm": True,
    "residual_in_fp32": True,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "qkv_proj_bias": False,
    "out_proj_bias": False,
    "rotary_emb_fraction": 1,
    "layer_norm_epsilon": 1e-5,
    "n_positions": 0,
    "special_initializer": True,
    "scale_attn_by_inverse_layer_idx": False,
    "mixer": {
        "_target_": "based.models.mixers.convolution.BaseConv",
        "l_max": 64,
        "use_bias": True,
        "expand_proj": 4,
        "kernel_sizes": 3,
    },
    "alt_mixer": {
        "_target_": "based.models.mixers.linear_attention.LinearAttention",
        "l_max": 64,
        "feature_map": {"_target_": "based.models.mixers.linear_attention.TaylorExp", "input_dim": 4},
        "feature_dim": 4,
        "num_heads": 4,
        "parallel_implementation": "fla_parallel",
    },
    "alt_mixer_2": {
        "_target_": "based.models.mixers.slide_attention.SlidingAttention",
        "window_size": 10,
        "num_heads": 4,
        "causal": True,
    },
    "alt_mixer_layers": [1],
    "alt_mixer_2_layers": [2],
}
TRANSFORMER_PP = {k: v for k, v in BASED.items() if "mixer" not in k} | {
    "rotary_emb_fraction": 0.5,
    **dict.fromkeys(("mlp_fc1_bias", "mlp_fc2_bias", "qkv_proj_bias", "out_proj_bias"), True),
}
ODD = TRANSFORMER_PP | {"rotary_emb_fraction": 0.4}
"""Of 8 channels of a head 3, as of the 70 of attn-1b 35."""


def write_folder(model, config, directory):
    """Writes a checkpoint as Lightning does: names with a prefix, counters among the parameters."""
    directory.mkdir()
    state = {f"model.{name}": value for name, value in model.state_dict().items()}
    state["train_metrics.num-tokens.count"] = torch.tensor(7)
    torch.save(state, directory / "pytorch_model.bin")
    (directory / "config.json").write_text(json.dumps(config))
