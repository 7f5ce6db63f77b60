"""Mamba-3, TTT and MoBA against their authors' code: `JAXZOO_AUTHORS=DIR python -m pytest -m parity tests/parity`.

DIR holds clones of state-spaces/mamba (last read at e9594ce), test-time-training/ttt-lm-pytorch (cd831db) and
MoonshotAI/MoBA (61e456b). In place of Mamba-3's GPU kernels stand the token-by-token references of its own tests.
"""

import importlib.util
import math
import os
import sys
import types
from pathlib import Path

import pytest
from flax import nnx

from jaxzoo.mixers import Mamba3Config, MoBAConfig, TTTConfig
from tests.parity.carry import compare, inputs, randomize

pytestmark = pytest.mark.parity
D = 24
CLONES = os.environ.get("JAXZOO_AUTHORS")


@pytest.fixture
def authors(torch, monkeypatch):
    """Imports a file of the clones, by its path."""
    if CLONES is None:
        pytest.skip("needs JAXZOO_AUTHORS, a directory with clones of mamba, ttt-lm-pytorch and MoBA")

    def load(path):
        spec = importlib.util.spec_from_file_location(Path(path).stem, Path(CLONES, path))
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        spec.loader.exec_module(module)
        return module

    return load


def kernels(get, **names):
    """Projections, our name -> theirs."""
    return {f"{ours}.kernel": get(f"{theirs}.weight").T for ours, theirs in names.items()}


@pytest.fixture
def mamba3(authors, torch, monkeypatch):
    """The layer's module, with references for kernels; `final`: their last states."""

    class Norm(torch.nn.Module):
        def __init__(self, d, eps=1e-5, group_size=None, **_):
            super().__init__()
            self.weight, self.eps, self.size = torch.nn.Parameter(torch.ones(d)), eps, group_size or d

        def forward(self, x, z=None):
            y = x.unflatten(-1, (-1, self.size))
            y = (y * (y.square().mean(-1, keepdim=True) + self.eps).rsqrt()).flatten(-2) * self.weight
            return y if z is None else y * torch.nn.functional.silu(z)

    def run_siso(**given):
        inputs = {key: given[key] for key in given if key[0].isupper()}
        y, layer.final = siso.mamba3_siso_step_ref(**inputs)
        return y

    def run_mimo(*, fuse_pregate_headwise_rms_norm, outproj_norm_weight, MIMO_Out, **given):
        inputs = {key: given[key] for key in given if key[0].isupper()}
        n = inputs["Q"].shape[-1]
        pairs = torch.arange(n).reshape(2, n // 2).T.reshape(-1)  # the reference turns neighbours
        inputs |= {key: inputs[key][..., pairs] for key in ("Q", "K", "Q_bias", "K_bias")}
        if outproj_norm_weight is not None:
            outproj_norm_weight = outproj_norm_weight.reshape(inputs["V"].shape[2], -1)
        y, (angle, s, k, v) = mimo.mamba3_MIMO_step_ref(
            **inputs,
            MIMO_O=MIMO_Out,
            fused_norm=fuse_pregate_headwise_rms_norm,
            outproj_norm_weight=outproj_norm_weight,
        )
        back = torch.argsort(pairs)
        layer.final = angle, s[..., back], k[..., back], v
        return y

    for path, names in {
        "triton.layernorm_gated": {"RMSNorm": Norm},
        "triton.mamba3.mamba3_siso_combined": {"mamba3_siso_combined": run_siso},
        "triton.mamba3.mamba3_siso_step": {"mamba3_siso_step": None},
        "triton.mamba3.mamba3_mimo_rotary_step": {"apply_rotary_qk_inference_fwd": None},
        "tilelang.mamba3.mamba3_mimo": {"mamba3_mimo": run_mimo},
        "cute.mamba3.mamba3_step_fn": {"mamba3_step_fn": None},
    }.items():
        parts = f"mamba_ssm.ops.{path}".split(".")
        for name in (".".join(parts[:end]) for end in range(1, len(parts) + 1)):
            module = sys.modules.get(name, types.ModuleType(name))
            module.__path__ = []
            monkeypatch.setitem(sys.modules, name, module)
        vars(module).update(names)
    siso, mimo = (authors(f"mamba/tests/ops/{x}.py") for x in ("triton/test_mamba3_siso", "tilelang/test_mamba3_mimo"))
    layer = authors("mamba/mamba_ssm/modules/mamba3.py")
    return layer


@pytest.mark.parametrize("rank", [None, 3])
@pytest.mark.parametrize(("normalize", "groups", "turned"), [(False, 1, 0.5), (True, 2, 1.0)])
def test_mamba3(mamba3, torch, rank, normalize, groups, turned):
    """Kills: other pairs of channels, a bias before the norm, a trapezoid or decay of another token, ranks mixed up."""
    mimo = {"is_mimo": True, "mimo_rank": rank, "fuse_pregate_headwise_norm": normalize} if rank else {}
    sizes = {"d_state": 8, "headdim": 6, "ngroups": groups, "rope_fraction": turned, "is_outproj_norm": normalize}
    theirs = mamba3.Mamba3(D, chunk_size=16, **sizes, **mimo)
    randomize(theirs, torch, std=0.3)
    names = {"dt_bias": "dt_bias", "b_bias": "B_bias", "c_bias": "C_bias", "d": "D"}
    names |= {"b_norm.scale": "B_norm.weight", "c_norm.scale": "C_norm.weight"}
    names |= {name: name for name in ("mimo_x", "mimo_z", "mimo_o") if rank}
    names |= {"norm.scale": "norm.weight"} if normalize else {}

    def carry(get):
        values = kernels(get, in_proj="in_proj", out_proj="out_proj")
        return values | {ours: get(name) for ours, name in names.items()}

    def state():
        angle, s, k, v = mamba3.final
        found = {"angle": angle % (2 * math.pi), "s": s.mT, "k": k if rank else k[:, :, None]}
        return found | ({} if rank else {"v": v})

    config = Mamba3Config(
        d_model=D, d_state=8, head_dim=6, n_groups=groups, rank=rank, rope_fraction=turned, normalize=normalize
    )
    layer = config.build(rngs=nnx.Rngs(0))
    compare(layer, theirs, carry, inputs(t=19), run=lambda layer, x: layer(x), torch=torch, final=state)


@pytest.mark.parametrize(("inner", "gate", "t"), [("linear", False, 36), ("linear", True, 37), ("mlp", True, 36)])
def test_ttt(authors, torch, inner, gate, t):
    """Kills: gradients at later weights, place factors of other tokens, rotation by halves, another GELU; a state only
    after whole mini-batches, because theirs is not defined within one."""
    module, final, rate = authors("ttt-lm-pytorch/ttt.py"), {}, {"linear": 1.0, "mlp": 0.1}[inner]
    config = module.TTTConfig(
        vocab_size=8,
        hidden_size=D,
        num_attention_heads=2,
        num_hidden_layers=1,
        use_gate=gate,
        ttt_layer_type=inner,
        ttt_base_lr=rate,
        mini_batch_size=4,
    )
    theirs = {"linear": module.TTTLinear, "mlp": module.TTTMLP}[inner](config, 0)
    randomize(theirs, torch, std=0.2)
    learn, weights = theirs.ttt, ("W1", "b1", "W2", "b2") if inner == "mlp" else ("W1", "b1")

    def recorded(*args, **given):
        y, after = learn(*args, **given)
        final.update(after)
        return y, after

    theirs.ttt = recorded
    arrays = {"place_scale": "learnable_token_idx", "inner_scale": "ttt_norm_weight", "inner_shift": "ttt_norm_bias"}
    arrays |= {"post_norm.scale": "post_norm.weight", "post_norm.bias": "post_norm.bias"}
    arrays |= {f"weights.{i}": name for i, name in enumerate(weights)}

    def carry(get):
        projections = {f"{x}_proj": f"{x}_proj" for x in "qkv"} | ({"gate_proj": "g_proj"} if gate else {})
        values = kernels(get, out_proj="o_proj", **projections)
        values |= {"lr_proj.kernel": get("learnable_ttt_lr_weight")[:, 0].T}
        values |= {"lr_proj.bias": get("learnable_ttt_lr_bias")[:, 0]}
        return values | {ours: get(name) for ours, name in arrays.items()}

    def run(layer, x):
        return layer(x, position_ids=torch.arange(t)[None].expand(len(x), -1))

    def state():
        changes = [final[f"{name}_states"] - getattr(theirs, name)[None] for name in weights]
        return {"change": torch.cat([y.flatten(2) for y in changes], -1)}

    ours = TTTConfig(d_model=D, n_heads=2, inner=inner, mini_batch=4, gate=gate).build(rngs=nnx.Rngs(0))
    compare(ours, theirs, carry, inputs(t=t), run=run, torch=torch, final=None if t % 4 else state)


@pytest.mark.parametrize("topk", [1, 3])
def test_moba(authors, torch, topk):
    """Kills: scaled block scores, the own block left out, a block of the future, a softmax per block."""
    attend = authors("MoBA/moba/moba_naive.py").moba_attn_varlen_naive
    names = ("q_proj", "k_proj", "v_proj", "out_proj")
    theirs = torch.nn.ModuleDict({name: torch.nn.Linear(D, D, bias=False) for name in names})
    randomize(theirs, torch, std=0.2)

    def run(layer, x):
        (b, t, _), heads = x.shape, [layer[name](x).reshape(-1, 4, 6) for name in names[:3]]
        return layer["out_proj"](attend(*heads, torch.arange(b + 1) * t, t, 4, topk).reshape(b, t, D))

    config = MoBAConfig(d_model=D, n_heads=4, block_size=4, n_selected=topk, positions="none")
    ours = config.build(rngs=nnx.Rngs(0))
    compare(ours, theirs, lambda get: kernels(get, **{x: x for x in names}), inputs(), run=run, torch=torch)
