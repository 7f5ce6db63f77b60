"""Launches and memory traffic of ops, by XLA and by kernels, in programs for absent devices: a JSON file, a table.

`python -m benchmarks.op_programs --ops taylor wkv4` (extra `aot`); see `--help`. Nothing runs. Shapes: 4 rows of 8,192
tokens, 16 heads of 64 keys and values, bfloat16 with float32 decays; Taylor with 16 numbers per key, the selective scan
with 16 numbers per channel. Counted: instructions that launch a kernel (loops unrolled), bytes between the chip and its
memory without caches, and temporary memory. The floor is every input read and every output written once, forward; with
backward, inputs three times and outputs twice.
"""

import dataclasses
import itertools
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import tyro
from jax.sharding import SingleDeviceSharding

from jaxzoo.ops.bonus_linear_attention import bonus_linear_attention
from jaxzoo.ops.delta_rule import Removal, delta_rule
from jaxzoo.ops.diagonal_scan import diagonal_scan
from jaxzoo.ops.linear_attention import linear_attention
from jaxzoo.ops.wkv4 import wkv4
from jaxzoo.plan.hlo import Hlo
from jaxzoo.plan.memory_traffic import is_free, memory_bytes
from pallas_kernels import certificates
from pallas_kernels.compile_check.compiler_text import read_program
from pallas_kernels.compile_check.targets import TARGETS
from pallas_kernels.dispatch import lowering_for
from pallas_kernels.residual_norm import residual_norm
from pallas_kernels.selective_scan import selective_scan
from pallas_kernels.short_conv import short_conv
from pallas_kernels.taylor_attention import taylor_attention

B, T, H, K, N = 4, 8192, 16, 64, 16


def _rg_lru(a: Any, x: Any) -> Any:
    """`h_i = a_i h_{i-1} + x_i`, one number per channel."""
    coefficients = lambda tokens: tuple(token.astype(jnp.float32) for token in tokens)  # noqa: E731
    return diagonal_scan(
        (a, x), coefficients, lambda h, _: h.astype(x.dtype), jnp.zeros((B, H * K), jnp.float32)
    )[0]  # fmt: skip


def _decayed(q: Any, k: Any, v: Any, log_decay: Any) -> Any:
    return linear_attention(q, k, v, log_decay=log_decay)[0]


def _gated_delta(q: Any, k: Any, v: Any, beta: Any, log_decay: Any) -> Any:
    return delta_rule(q, k, v, beta=beta, log_decay=log_decay)[0]


def _conv(x: Any, gate: Any, taps: Any, offsets: Any) -> Any:
    """Based's gated convolution, between its projections."""
    return short_conv(x, taps, output_gate=gate, n_plain=0, offsets=offsets)


def _norm_and_conv(stream: Any, branch: Any, scale: Any, gate: Any, taps: Any, offsets: Any) -> tuple[Any, Any]:
    """Residual addition and RMSNorm, whose output is convolved."""
    stream, normed = residual_norm(stream, branch, scale, eps=1e-5)
    return stream, _conv(normed, gate, taps, offsets)


TOKENS = ((B, T, H, K),) * 3
BY_TOKEN, BY_CHANNEL = ((B, T, H), "float32"), ((B, T, H, K), "float32")
CHANNELS = ((H * K,), "float32")
OPS: dict[str, tuple[Callable[..., Any], tuple]] = {
    "taylor_attention": (taylor_attention, ((B, T, H, 16), (B, T, H, 16), (B, T, H, K))),
    "linear_attention": (lambda *x: linear_attention(*x)[0], TOKENS),
    "linear_attention, decay per token": (_decayed, (*TOKENS, BY_TOKEN)),
    "linear_attention, decay per channel": (_decayed, (*TOKENS, BY_CHANNEL)),
    "bonus_linear_attention": (
        lambda q, k, v, g, u: bonus_linear_attention(q, k, v, log_decay=g, bonus=u)[0],
        (*TOKENS, BY_CHANNEL, ((H, K), "float32")),
    ),
    "delta_rule": (lambda q, k, v, beta: delta_rule(q, k, v, beta=beta)[0], (*TOKENS, BY_TOKEN)),
    "delta_rule, decay per token": (_gated_delta, (*TOKENS, BY_TOKEN, BY_TOKEN)),
    "delta_rule, decay per channel": (_gated_delta, (*TOKENS, BY_TOKEN, BY_CHANNEL)),
    "delta_rule, general": (
        lambda q, k, v, u, z, g: delta_rule(q, k, v, removal=Removal(u, z), log_decay=g)[0],
        (*TOKENS, *TOKENS[:2], BY_CHANNEL),
    ),
    "wkv4": (lambda k, v, w, u: wkv4(k, v, w=w, u=u)[0], ((B, T, H * K), (B, T, H * K), CHANNELS, CHANNELS)),
    "diagonal_scan, RG-LRU": (_rg_lru, ((B, T, H * K), (B, T, H * K))),
    "short_conv": (_conv, ((B, T, H * K), (B, T, H * K), ((3, H * K), "float32"), ((3, H * K), "float32"))),
    "residual_norm": (lambda *x: residual_norm(*x, eps=1e-5), (((B, T, H * K), "float32"), (B, T, H * K), CHANNELS)),
    "residual_norm and short_conv": (
        _norm_and_conv,
        (
            ((B, T, H * K), "float32"),
            (B, T, H * K),
            CHANNELS,
            (B, T, H * K),
            ((3, H * K), "float32"),
            ((3, H * K), "float32"),
        ),
    ),
    "selective_scan": (
        lambda x, delta, b, c, log_a: selective_scan(x, delta, -jnp.exp(log_a), b, c),
        ((B, T, H * K), (B, T, H * K), (B, T, N), (B, T, N), ((H * K, N), "float32")),
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchmarkConfig:
    """Settings of the benchmark; a program takes half a minute to two minutes of a core."""

    ops: tuple[str, ...] = ()
    """Ops whose names contain one of these words; all by default."""
    passes: tuple[Literal["forward", "forward_backward"], ...] = ("forward", "forward_backward")
    """Forward alone, or with all gradients."""
    target: Literal["h100", "v5e", "v6e"] = "h100"
    """The absent device."""
    kernels: bool = False
    """With the Pallas kernels that serve an op, verified or not, in rows of their own; ops without are left out."""
    out: Path = Path("benchmarks/results/op_programs.json")
    """File of the numbers; those of other programs in it stay."""


def main(argv: Sequence[str] | None = None) -> None:
    config = tyro.cli(BenchmarkConfig, args=argv)
    chosen = [name for name in OPS if not config.ops or any(word in name for word in config.ops)]
    if not chosen:
        raise SystemExit(f"benchmarks.op_programs: --ops {' '.join(config.ops)} names no op; known: {', '.join(OPS)}")
    found = json.loads(config.out.read_text()) if config.out.exists() else {}
    for name, kind in itertools.product(chosen, config.passes):
        start = time.monotonic()
        row = measure(name, kind, config.target, kernels=config.kernels)
        if row is not None:
            label = f"{name}, kernels" if config.kernels else name
            found[f"{label} {kind} {config.target}"] = row
            print(f"{name}, {kind}, {config.target}: {row}, compiled in {time.monotonic() - start:.0f} s", flush=True)
            config.out.write_text(json.dumps(found, indent=1) + "\n")


def measure(name: str, kind: str, target: str, *, kernels: bool = False) -> dict[str, int] | None:
    """Returns launches, bytes, floor and temporary bytes of an op's program; None if kernels are asked for and
    absent."""
    device = TARGETS[target]
    sharding = SingleDeviceSharding(device.devices()[0])
    op, shapes = OPS[name]
    described = [shape if isinstance(shape[-1], str) else (shape, "bfloat16") for shape in shapes]
    inputs = [jax.ShapeDtypeStruct(shape, dtype, sharding=sharding) for shape, dtype in described]
    size = lambda tree: sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))  # noqa: E731
    loss = lambda *x: sum(y.astype(jnp.float32).sum() for y in jax.tree.leaves(op(*x)))  # noqa: E731
    program = (lambda *x: op(*x)) if kind == "forward" else jax.grad(loss, argnums=tuple(range(len(inputs))))
    chosen = certificates.using("all" if kernels else "none")
    with lowering_for(device.platform, multiprocessors=device.cores), chosen:
        outputs = size(jax.eval_shape(lambda *x: op(*x), *inputs))
        compiled: Any = jax.jit(program).trace(*inputs).lower(lowering_platforms=(device.platform,)).compile()
    text = compiled.as_text()
    if kernels and not read_program(text, {}):
        return None
    hlo = Hlo(text)
    return {
        "launches": launches(hlo),
        "bytes": memory_bytes(hlo),
        "floor": size(inputs) + outputs if kind == "forward" else 3 * size(inputs) + 2 * outputs,
        "temporary": compiled.memory_analysis().temp_size_in_bytes,
    }


def launches(hlo: Hlo) -> int:
    """Counts kernels and copies that a run launches, loops unrolled, without constants, which compilers fuse."""
    return sum(
        times
        for _, each, times in hlo.steps()
        if not is_free(each) and each.opcode not in ("iota", "broadcast", "copy-start")
    )


if __name__ == "__main__":
    main()
