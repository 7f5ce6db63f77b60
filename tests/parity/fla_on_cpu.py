"""flash-linear-attention's layers on a CPU: Triton kernels replaced by its own naive functions and by plain PyTorch."""

import importlib
import inspect
import itertools
import types

import pytest

OPS = {
    "forgetting_attn": ("parallel_forgetting_attn", "forgetting_attn.naive_forgetting_attn", {}),
    "path_attn": ("parallel_path_attn", "path_attn.naive_path_attn", {"chunk_size": 8}),
    "gsa": ("chunk_gsa", "gsa.naive_recurrent_gsa", {}),
    "abc": ("chunk_abc", "gsa.naive_recurrent_gsa", {}),
    "comba": ("chunk_comba", "comba.naive_chunk_comba", {"chunk_size": 8}),
    "gdn2": ("chunk_gdn2", "gdn2.naive_recurrent_gdn2", {}),
    "gated_deltaproduct": (
        "chunk_gated_delta_product",
        "gated_delta_product.naive_recurrent_gated_delta_product",
        {},
    ),
    "hgrn": ("chunk_hgrn", "hgrn.naive_recurrent_hgrn", {}),
    "mesa_net": ("chunk_mesa_net", "mesa_net.naive_mesa_net_CG", {"chunk_size": 37}),
    "nsa": ("parallel_nsa", "nsa.naive_nsa", {}),
}
"""Layer module -> its kernel, the naive function in `fla.ops` (module, name), and further arguments."""
ONE_OUTPUT = ("forgetting_attn", "nsa")
"""Layers whose kernel returns no state."""


def _length(x, eps=1e-6):
    return x * (x.square().sum(-1, keepdim=True) + eps).rsqrt()


def _rms(x, weight, eps):
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * (1 if weight is None else weight)


def naive(name, path, further, final):
    """The function `path` with the arguments of the layer's kernel; puts its final state into the list `final`."""
    folder, function = path.split(".")
    function = getattr(importlib.import_module(f"fla.ops.{folder}.naive"), function)
    known = inspect.signature(function).parameters

    def call(*args, **given):
        given |= dict(zip(("q", "k", "v", "g"), args, strict=False)) | further
        if given.pop("use_qk_l2norm_in_kernel", False):
            given |= {key: _length(given[key]) for key in ("q", "k", "p") if key in given}
        if "scale" in known and given.get("scale") is None:
            given["scale"] = given["q"].shape[-1] ** -0.5
        if name == "path_attn" and given["g"] is None:
            given["g"] = given["q"].new_zeros(given["q"].shape[:3])
        if "output_final_state" in known:
            given["output_final_state"] = True
        unknown = {key: given.pop(key) for key in set(given) - set(known)}
        assert all(value is None or value is False or key == "max_CG_iteration" for key, value in unknown.items()), (
            unknown
        )
        found = function(**{key: value for key, value in given.items() if key in known})
        if name in ONE_OUTPUT:
            return found
        o, *final[:] = found if isinstance(found, tuple) else (found, None)
        return (o, *final)

    return call


def attention(q, k, v, *, causal, window_size=(-1, -1)):
    """`flash_attn_func`."""
    torch = importlib.import_module("torch")
    k, v = (y.repeat_interleave(q.shape[2] // y.shape[2], dim=2) for y in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool)
    seen = seen.tril() if causal else seen
    seen = seen.triu(-window_size[0]) if window_size[0] >= 0 else seen
    return torch.einsum("bhij,bjhd->bihd", scores.masked_fill(~seen, -float("inf")).softmax(-1), v)


def means(x, size, _ends):
    """`mean_pooling` over blocks of tokens."""
    return importlib.import_module("torch").stack([part.mean(1) for part in x.split(size, dim=1)], dim=1)


class BlocksAndOwn:
    """`ParallelMoBAFunction`: one softmax over the own block and the chosen ones."""

    @staticmethod
    def apply(q, k, v, own, chosen_q, chosen_kv, ends_q, ends_kv, _longest, _size, places):
        torch, (t, h, width) = importlib.import_module("torch"), q.shape
        seen = torch.zeros(t, t, dtype=torch.bool)
        for start, stop in itertools.pairwise(own.tolist()):
            seen[start:stop, start:stop] = torch.ones(stop - start, stop - start, dtype=torch.bool).tril()
        weights = (torch.einsum("ihd,jhd->hij", q, k) * width**-0.5).exp() * seen
        total, sums = weights.sum(-1).T.reshape(-1), torch.einsum("hij,jhd->ihd", weights, v).reshape(-1, width)
        pairs = zip(itertools.pairwise(ends_q.tolist()), itertools.pairwise(ends_kv.tolist()), strict=True)
        for (start, stop), (first, last) in pairs:
            keys, values = chosen_kv[first:last, :, 0].unbind(1)
            weights = (chosen_q[start:stop, 0] @ keys.T * width**-0.5).exp()
            total = total.index_add(0, places[start:stop], weights.sum(-1))
            sums = sums.index_add(0, places[start:stop], weights @ values)
        return (sums / total[:, None]).reshape(t, h, width)


def _replace_modules(torch, monkeypatch):
    functional, modules = torch.nn.functional, importlib.import_module("fla.modules")

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
    features = importlib.import_module("fla.modules.feature_map")
    monkeypatch.setattr(features.SwishFeatureMap, "forward", lambda self, x: functional.silu(x))


@pytest.fixture
def fla(torch, monkeypatch):
    """`fla.layers`' modules by name, computed in PyTorch; `final`: the last kernel's state after the last token."""
    functional = torch.nn.functional
    pytest.importorskip("fla", reason="needs flash-linear-attention: pip install -e '.[parity]'")
    _replace_modules(torch, monkeypatch)
    found, final = {name: importlib.import_module(f"fla.layers.{name}") for name in (*OPS, "mla", "moba")}, []
    for name, (kernel, path, further) in OPS.items():
        monkeypatch.setattr(found[name], kernel, naive(name, path, further, final))
    for name in ("path_attn", "mesa_net"):
        monkeypatch.setattr(found[name], "l2_norm", lambda x, **_: _length(x))
    monkeypatch.setattr(
        found["gsa"],
        "rms_norm_linear",
        lambda x, weight, _, kernel, bias: functional.linear(_rms(x, weight, 1e-5), kernel, bias),
    )
    monkeypatch.setattr(found["hgrn"], "swiglu", lambda x, y: functional.silu(x) * y)
    monkeypatch.setattr(found["mla"], "flash_attn_func", attention)
    sparse, blocks = (importlib.import_module(f"fla.ops.{name}") for name in ("nsa.naive", "moba.parallel"))
    monkeypatch.setattr(sparse, "flash_attn_func", attention)
    monkeypatch.setattr(sparse, "mean_pooling", means)
    monkeypatch.setattr(blocks, "ParallelMoBAFunction", BlocksAndOwn)
    monkeypatch.setattr(blocks, "flash_attn_varlen_func", attention)  # for the check that it is installed
    return types.SimpleNamespace(**found, final=final)
