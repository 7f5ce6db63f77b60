"""flash-linear-attention's layers on a CPU: Triton kernels replaced by its own naive functions and by plain PyTorch."""

import importlib
import types

import pytest

OPS = {
    "forgetting_attn": ("parallel_forgetting_attn", "forgetting_attn.naive_forgetting_attn", {}),
    "path_attn": ("parallel_path_attn", "path_attn.naive_path_attn", {"chunk_size": 8}),
    "gsa": ("chunk_gsa", "gsa.naive_recurrent_gsa", {}),
    "abc": ("chunk_abc", "gsa.naive_recurrent_gsa", {"g": None}),
    "comba": ("chunk_comba", "comba.naive_chunk_comba", {"chunk_size": 8}),
    "gdn2": ("chunk_gdn2", "gdn2.naive_recurrent_gdn2", {}),
    "gated_deltaproduct": (
        "chunk_gated_delta_product",
        "gated_delta_product.naive_recurrent_gated_delta_product",
        {"scale": None, "cu_seqlens": None},
    ),
    "hgrn": ("chunk_hgrn", "hgrn.naive_recurrent_hgrn", {}),
    "mesa_net": ("chunk_mesa_net", "mesa_net.naive_mesa_net_CG", {"chunk_size": 37}),
    "nsa": ("parallel_nsa", "nsa.naive_nsa", {}),
}
"""Layer module -> its kernel, the naive function in `fla.ops` (module, name), and further arguments."""


def _length(x, eps=1e-6):
    return x * (x.square().sum(-1, keepdim=True) + eps).rsqrt()


def _rms(x, weight, eps):
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * (1 if weight is None else weight)


def _naive(name, function, further):
    def call(**arguments):
        given = {**arguments, **further}
        for absent in ("use_cache", "output_final_state", "initial_state", "h_kk_init", "h_kv_init"):
            given.pop(absent, None)
        if "cu_seqlens" not in further:
            given.pop("cu_seqlens", None)
        given["max_CG_iteration"] = given.get("max_CG_iteration", 0)
        if name != "mesa_net":
            del given["max_CG_iteration"]
        if given.pop("use_qk_l2norm_in_kernel", False):
            given |= {key: _length(given[key]) for key in ("q", "k", "p") if key in given}
        if name == "gated_deltaproduct":
            given["q"] = given["q"] * given["q"].shape[-1] ** -0.5  # as the kernel; the naive function has no scale
        if name == "path_attn":
            q = given["q"]
            given["scale"] = q.shape[-1] ** -0.5
            given["g"] = q.new_zeros(q.shape[:3]) if given["g"] is None else given["g"]
        if name == "abc":
            given["g"] = None
        return function(**given)

    def positional(*args, **arguments):
        named = dict(zip(("q", "k", "v", "g"), args, strict=False))
        found = call(**named, **arguments)
        if name in ("forgetting_attn", "nsa"):
            return found
        return found if isinstance(found, tuple) else (found, None, None)[: 3 if name == "mesa_net" else 2]

    return positional


@pytest.fixture
def fla(torch, monkeypatch):
    """`fla.layers`' modules by name, computed in PyTorch."""
    functional = torch.nn.functional
    pytest.importorskip("fla", reason="needs flash-linear-attention: pip install -e '.[parity]'")
    modules = importlib.import_module("fla.modules")

    def convolve(self, x, **_):
        y = functional.conv1d(
            functional.pad(x.transpose(1, 2), (self.kernel_size[0] - 1, 0)), self.weight, self.bias, groups=x.shape[-1]
        )
        return (functional.silu(y) if self.activation else y).transpose(1, 2), None

    def normalize(self, x):
        return _rms(x, self.weight, self.eps)

    def normalize_groups(self, x):
        parts = x.reshape(*x.shape[:-1], self.num_groups, -1)
        return _rms(parts, None, self.eps).reshape(x.shape) * self.weight

    def normalize_gated(self, x, gate):
        opened = torch.sigmoid(gate) if self.activation == "sigmoid" else functional.silu(gate)
        return _rms(x, self.weight, self.eps) * opened

    def rotate(self, q, k, **_):
        half = self.dim // 2
        frequency = self.base ** (-torch.arange(half) / half)
        angle = (torch.arange(q.shape[1])[:, None] * frequency)[:, None]

        def turn(x):
            a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
            cos, sin = angle.cos(), angle.sin()
            return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)

        return turn(q), turn(k)

    for name, forward in {
        "ShortConvolution": convolve,
        "RMSNorm": normalize,
        "GroupNorm": normalize_groups,
        "FusedRMSNormGated": normalize_gated,
        "RotaryEmbedding": rotate,
    }.items():
        monkeypatch.setattr(getattr(modules, name), "forward", forward)
    found = {}
    for name, (kernel, naive, further) in OPS.items():
        folder, function = naive.split(".")
        layer = importlib.import_module(f"fla.layers.{name}")
        function = getattr(importlib.import_module(f"fla.ops.{folder}.naive"), function)
        monkeypatch.setattr(layer, kernel, _naive(name, function, further))
        found[name] = layer
    for name in ("path_attn", "mesa_net"):
        monkeypatch.setattr(found[name], "l2_norm", lambda x, **_: _length(x))
    monkeypatch.setattr(
        found["gsa"],
        "rms_norm_linear",
        lambda x, weight, _, kernel, bias: functional.linear(_rms(x, weight, 1e-5), kernel, bias),
    )
    monkeypatch.setattr(found["hgrn"], "swiglu", lambda x, y: functional.silu(x) * y)
    return types.SimpleNamespace(**found)
