"""Time of Algorithm 11 (Zoology) against attention's lookup, and gates of its circuit: a JSON file and a picture.

`python -m benchmarks.parallel_recall`; see `--help`. Answers are compared with a dictionary before they are timed. The
circuits are counted, not run: `jaxzoo/theory/recall_circuit.py`.
"""

import dataclasses
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from jaxzoo.sweep.machine import commit, machine
from jaxzoo.theory.circuits import compile_channels, size
from jaxzoo.theory.parallel_recall import attention_lookup, one_sort, parallel_recall
from jaxzoo.theory.recall_circuit import build, count, count_attention
from pallas_kernels.figure import add_legend, bound_style, panels, save, series_style

MOST_SECONDS = 2.0
CIRCUITS = ((2, 2), (4, 2), (8, 3))
"""Triples, and bits of a token, of the circuits that are compiled."""
PROGRAMS = ("Algorithm 11", "one sort (ours)", "attention's lookup")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchmarkConfig:
    """Lengths in tokens, powers of 2; a triple has three tokens."""

    shortest: int = 10
    """log2 of the shortest text that is timed."""
    longest: int = 18
    """log2 of the longest one."""
    out: Path = Path("benchmarks/results/parallel_recall-cpu.json")
    """File of the numbers; the picture lies next to it."""


def main(argv: Sequence[str] | None = None) -> None:
    """Measures, counts, writes and draws, as the command line `argv` (None: the process's own) says."""
    config = tyro.cli(BenchmarkConfig, args=argv)
    times = [measure(2**i) for i in range(config.shortest, config.longest + 1)]
    counts = [sizes(2**i) for i in range(4, 21)]
    report = {
        "machine": machine(),
        "load": os.getloadavg()[2],
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "jax": jax.__version__,
        "times": times,
        "counts": counts,
        "base_conv": [as_base_conv(n, bits) for n, bits in CIRCUITS],
    }
    config.out.write_text(json.dumps(report, indent=1) + "\n")
    draw(times, counts, config.out.with_suffix(".png"))


def measure(n_tokens: int) -> dict[str, float]:
    """CPU milliseconds of each program, of all its threads: the best of three calls after compilation, or the only one
    of a program that takes seconds."""
    n, rng = n_tokens // 3, np.random.default_rng(0)
    bits = max(n - 1, 1).bit_length()
    keys, values, queries = (jnp.asarray(rng.integers(0, n, n), jnp.int32) for _ in range(3))
    memory: dict[int, int] = {}
    expected = []
    for key, value, query in zip(keys.tolist(), values.tolist(), queries.tolist(), strict=True):
        expected.append(memory.get(query, -1))
        memory[key] = value
    row: dict[str, float] = {"tokens": n_tokens}
    programs = (parallel_recall, one_sort, lambda *arrays: attention_lookup(*arrays, bits=bits))
    for name, program in zip(PROGRAMS, programs, strict=True):
        np.testing.assert_array_equal(program(keys, values, queries), expected)
        seconds = []
        while len(seconds) < 3 and sum(seconds) < MOST_SECONDS:
            start = time.process_time()
            jax.block_until_ready(program(keys, values, queries))
            seconds.append(time.process_time() - start)
        row[name] = round(1e3 * min(seconds), 3)
    print(row, flush=True)
    return row


def sizes(n_tokens: int) -> dict[str, int]:
    """Gates and depth of both circuits for the largest power of 2 of triples, with tokens of as many bits as N has."""
    n, bits = 2 ** ((n_tokens // 3).bit_length() - 1), n_tokens.bit_length() - 1
    ours, attention = count(n, bits), count_attention(n, bits)
    return {
        "tokens": n_tokens,
        "triples": n,
        "bits": bits,
        "gates": ours.gates,
        "depth": ours.depth,
        "attention_gates": attention.gates,
        "attention_depth": attention.depth,
    }


def as_base_conv(n: int, bits: int) -> dict[str, int]:
    """Size of the circuit, and of the layers of BaseConv that compute it."""
    circuit = build(n, bits)
    compiled = compile_channels(circuit)
    width = compiled.layers[0].config.width
    layers = len(compiled.layers)
    parameters = layers * (width * width + 3 * width)
    row = {"triples": n, "bits": bits, **size(circuit)._asdict()}
    return {**row, "layers": layers, "width": width, "parameters": parameters}


def draw(times: list[dict[str, float]], counts: list[dict[str, int]], path: Path) -> None:
    """Times, sizes and depths over the length."""
    figure, ((left, middle, right),) = panels(1, 3, size=(11, 3.6), title="MQAR by sorting (Zoology, Algorithm 11)")
    for i, name in enumerate(PROGRAMS):
        left.plot([row["tokens"] for row in times], [row[name] for row in times], **series_style(i), label=name)
    n = np.array([row["tokens"] for row in counts], float)
    d = np.array([row["bits"] for row in counts], float)
    for axes, what in ((middle, "gates"), (right, "depth")):
        axes.plot(n, [row[what] for row in counts], **series_style(0), label="_circuit of Algorithm 11")
        axes.plot(n, [row[f"attention_{what}"] for row in counts], **series_style(2), label="_circuit of attention")
        bound = n * d * np.log2(n) ** 2 if what == "gates" else np.log2(d) * np.log2(n) ** 2
        name = "Prop. H.36, constant 1: N d log² N gates, log d log² N depth"
        axes.plot(n, bound, **bound_style(), label=name if what == "gates" else "_")
    left.set(xlabel="tokens", ylabel="CPU ms", title="programs")
    middle.set(xlabel="tokens", ylabel="gates", title="circuits: size")
    right.set(xlabel="tokens", ylabel="gates in sequence", title="circuits: depth")
    for axes in (left, middle, right):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
    add_legend(figure)
    save(figure, path)


if __name__ == "__main__":
    main()
