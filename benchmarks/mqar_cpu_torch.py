"""The models of `mqar_cpu.py` in PyTorch, the head at labelled positions only: `python mqar_cpu_torch.py FILE.npz`.

`mqar_cpu.py --peer` starts it, under a Python that has torch and numpy and need not have jax. FILE holds parameters
under our names, batches and constants of the optimizer. Each line of standard input is a task, answered by one line:

    check N      the losses of N updates without dropout
    time N       CPU ms per update, over N updates with dropout

`forms` says how scores are made: `authors` as in HazyResearch/zoology (all scores masked and normalised step by step,
Taylor features written out), `lean` by the best of PyTorch (its fused attention; the Taylor polynomial of the scores).
Parameters go back to those of FILE before each check.
"""

import math
import sys
import time
from collections.abc import Callable

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from torch import Tensor, nn  # pyright: ignore[reportMissingImports]
from torch.nn import functional as F  # pyright: ignore[reportMissingImports]

Weights = dict[str, Tensor]


def linear(p: Weights, name: str, x: Tensor) -> Tensor:
    return F.linear(x, p[f"{name}/kernel"].T, p.get(f"{name}/bias"))


def attention(p: Weights, x: Tensor, lean: bool) -> Tensor:
    q, k, v = (linear(p, name, x)[:, None] for name in ("q_proj", "k_proj", "v_proj"))
    if lean:
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    else:
        hidden = torch.full((x.shape[1], x.shape[1]), -10000.0).triu(1)
        y = torch.softmax(q @ (k / math.sqrt(k.shape[-1])).mT + hidden, dim=-1) @ v
    return linear(p, "out_proj", y[:, 0])


def taylor(p: Weights, x: Tensor, lean: bool) -> Tensor:
    q, k, v = (linear(p, name, x) for name in ("q_proj", "k_proj", "v_proj"))
    if lean:
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        weights = torch.tril(1 + scores + scores**2 / 2)
    else:
        weights = torch.tril(features(q) @ features(k).mT)
    return linear(p, "out_proj", weights @ v / (weights.sum(-1, keepdim=True) + 1e-12))


def features(x: Tensor) -> Tensor:
    """`1, x / d^(1/4), x x^T / sqrt(2 d)`, whose inner products are `1 + s + s^2 / 2`."""
    d = x.shape[-1]
    squares = (x[..., None] * x[..., None, :]).flatten(-2) / math.sqrt(2 * d)
    return torch.cat([torch.ones_like(x[..., :1]), x / d**0.25, squares], dim=-1)


def base_conv(p: Weights, u: Tensor, lean: bool) -> Tensor:
    t, projected = u.shape[1], linear(p, "projection", u)
    if "taps" in p:
        taps = p["taps"].T[:, None].flip(-1)  # PyTorch correlates
        convolved = F.conv1d(u.mT, taps, p["conv_bias"], padding=taps.shape[-1] - 1, groups=u.shape[-1])[..., :t].mT
        return projected * convolved + u
    f = {name: p[f"implicit_filter/{name}"] for name in ("kernel_1", "bias_1", "kernel_2", "bias_2")}
    taps = torch.relu(p["positions"][:t] @ f["kernel_1"] + f["bias_1"]) @ f["kernel_2"] + f["bias_2"]
    spectrum = torch.fft.rfft(u.mT, n=2 * t) * torch.fft.rfft(taps.T, n=2 * t)
    return projected * (torch.fft.irfft(spectrum, n=2 * t)[..., :t].mT + u) + u


def mixer_of(p: Weights) -> Callable[[Weights, Tensor, bool], Tensor]:
    if "projection/kernel" in p:
        return base_conv
    return attention if p["q_proj/kernel"].shape[1] == p["v_proj/kernel"].shape[1] else taylor


class Model:
    """Parameters, named as in our modules, and the loss of a batch."""

    def __init__(self, weights: Weights, buffers: Weights, lean: bool):
        self.weights, self.lean = weights, lean
        self.mixers = [{**inside(weights, f"layers/{i}/mixer/"), **buffers} for i in range(2)]

    def loss(self, tokens: Tensor, positions: Tensor, targets: Tensor, dropout: float) -> Tensor:
        p = self.weights
        x = F.embedding(tokens, p["embedding"])
        if "position_embedding" in p:
            x = x + p["position_embedding"][: x.shape[1]]
        x = F.dropout(x, dropout)
        for i, mixer in enumerate(self.mixers):
            x = x + mixer_of(mixer)(mixer, self.norm(f"layers/{i}/mixer_norm", x), self.lean)
            x = x + self.norm(f"layers/{i}/mlp_norm", x)
        x = self.norm("final_norm", x).gather(1, positions[:, :, None].expand(-1, -1, x.shape[-1]))
        return F.cross_entropy(F.linear(x, p["embedding"]).flatten(0, 1), targets.flatten())

    def norm(self, name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.weights[f"{name}/scale"], self.weights[f"{name}/bias"], eps=1e-5)


def inside(weights: Weights, prefix: str) -> Weights:
    return {name.removeprefix(prefix): x for name, x in weights.items() if name.startswith(prefix)}


class Trainer:
    """AdamW on a model, with the constants of FILE."""

    def __init__(self, file: dict[str, np.ndarray]):
        arrays = {name: torch.from_numpy(x) for name, x in file.items() if x.dtype.kind in "fi"}
        self.rates, self.clip_norm = file["rates"].tolist(), float(file["clip_norm"])
        self.dropout, self.step = float(file["dropout"]), 0
        self.batches = list(
            zip(arrays["tokens"].long(), arrays["positions"].long(), arrays["targets"].long(), strict=True)
        )
        weights = {name: nn.Parameter(x.clone()) for name, x in inside(arrays, "params/").items()}
        decayed = [x for name, x in weights.items() if name in file["decayed"]]
        others = [x for name, x in weights.items() if name not in file["decayed"]]
        groups = [{"params": decayed, "weight_decay": float(file["weight_decay"])}, {"params": others}]
        betas = (float(file["b1"]), float(file["b2"]))
        self.optimizer = torch.optim.AdamW(groups, betas=betas, eps=float(file["eps"]), weight_decay=0.0, fused=True)
        self.model = Model(weights, inside(arrays, "buffers/"), str(file["forms"]) == "lean")

    def update(self, dropout: float) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = self.rates[self.step % len(self.rates)]
        loss = self.model.loss(*self.batches[self.step % len(self.batches)], dropout)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.weights.values(), self.clip_norm)
        self.optimizer.step()
        self.step += 1
        return loss.item()


def main(path: str) -> None:
    """Answers the tasks on standard input, one per line, until it ends."""
    torch.set_num_threads(1)
    with np.load(path) as loaded:
        file = dict(loaded)
    trainer = Trainer(file)
    print(torch.__version__, flush=True)
    for line in sys.stdin:
        task, count = line.split()
        if task == "check":
            trainer = Trainer(file)
            print(*(trainer.update(0.0) for _ in range(int(count))), flush=True)
        else:
            start = time.process_time()
            for _ in range(int(count)):
                trainer.update(trainer.dropout)
            print(1e3 * (time.process_time() - start) / int(count), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
