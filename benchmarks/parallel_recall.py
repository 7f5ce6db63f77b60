"""Time of Algorithm 11 (Zoology) against attention's lookup, and gates of its circuit: a JSON file and a picture.

`python -m benchmarks.parallel_recall`; see `--help`. Answers are compared with a dictionary before they are timed. The
circuits of `experiments/theory/recall_circuit.py` are counted, not run.
"""

import dataclasses
import functools
import json
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from experiments.theory.circuits import Circuit, compile_channels, schedule
from experiments.theory.parallel_recall import NOTHING, Tokens, one_sort, parallel_recall
from experiments.theory.recall_circuit import build
from jaxzoo.sweep.machine import commit, machine
from jaxzoo.utils.array_typing import Array
from jaxzoo.utils.figure import add_legend, bound_style, panels, save, series_style

CHUNK = 256
"""Number of queries whose scores `attention_lookup` holds at once."""
MOST_SECONDS = 2.0
CIRCUITS = ((2, 2), (4, 2), (8, 3))
"""Numbers of triples and bits per token of the compiled circuits."""
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
    """Returns the CPU ms of each program over all threads: the best of three calls after compilation, fewer if slow."""
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


@functools.partial(jax.jit, static_argnames="bits")
def attention_lookup(keys: Tokens, values: Tokens, queries: Tokens, *, bits: int) -> Tokens:
    """Answers all queries by the inner products of codes of `bits` entries of 1 and -1 with all keys."""
    n = len(keys)
    n_chunks = -(-n // CHUNK)
    code = lambda x: (1 - 2 * ((x[:, None] >> jnp.arange(bits)[None]) & 1)).astype(jnp.float32)  # noqa: E731
    coded, j = code(keys), jnp.arange(n)

    def chunk(first: Array) -> Array:
        i = first + jnp.arange(CHUNK)
        scores = code(queries[jnp.minimum(i, n - 1)]) @ coded.T
        at = jnp.max(jnp.where((scores == bits) & (j[None] < i[:, None]), j[None], -1), axis=1)
        return jnp.where(at >= 0, values[jnp.maximum(at, 0)], NOTHING)

    return jax.lax.map(chunk, jnp.arange(n_chunks) * CHUNK).reshape(-1)[:n]


def sizes(n_tokens: int) -> dict[str, int]:
    """Returns gates and depth of both circuits for the largest power of 2 of triples, with log2 N bits per token."""
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


class Size(NamedTuple):
    """Size of a circuit, in the letters of Definition H.1."""

    n: int
    s: int
    depth: int
    w: int
    levels: int
    """Levels of the schedule; at most `2 depth`."""


def size(circuit: Circuit) -> Size:
    """Counts a circuit without gates that no output depends on."""
    levels = schedule(circuit)
    depth = dict.fromkeys(range(circuit.n_inputs + 1), 0)
    for wire, gate in enumerate(circuit.gates, circuit.n_inputs + 1):
        depth[wire] = 1 + max(depth[gate.left], depth[gate.right])
    return Size(
        n=circuit.n_inputs,
        s=sum(len(level.gates) for level in levels),
        depth=max(depth[wire] for wire in circuit.outputs),
        w=max([circuit.n_inputs, *(len(level.gates) + len(level.kept) for level in levels)]),
        levels=len(levels),
    )


class Count(NamedTuple):
    """Number of gates of a circuit, and an upper bound of its depth."""

    gates: int
    depth: int


def count(n: int, bits: int) -> Count:
    """Counts gates and depth of `recall_circuit.build(n, bits)` without building it."""
    gates = depth = levels = 0
    m = 1
    while m < n:
        lookup = _count_lookup(m, bits)
        gates += n // (2 * m) * lookup.gates
        depth = max(depth, lookup.depth)
        levels, m = levels + 1, 2 * m
    chosen = sum(i.bit_count() - 1 for i in range(1, n))  # one of two answers
    return Count(gates + 5 * chosen, depth + 3 * (levels - 1))


def count_attention(n: int, bits: int) -> Count:
    """Counts all n (n - 1) / 2 comparisons of a query with an earlier key, and the sums of match and value."""
    pairs = n * (n - 1) // 2
    sums = 2 * (pairs - (n - 1))
    return Count(pairs * (5 * bits) + sums, 3 + math.ceil(math.log2(bits)) + 1 + math.ceil(math.log2(n - 1)))


def _count_lookup(m: int, bits: int) -> Count:
    """Counts the lookup of m queries among m keys: exact gates, depth of all parts in sequence."""
    if m == 1:
        return Count(5 * bits, 3 + math.ceil(math.log2(bits)) + 1)
    p = int(math.log2(2 * m))
    network, layers = (p * p - p + 4) * 2 ** (p - 2) - 1, p * (p + 1) // 2
    first, back = _count_comparator(bits + 1, p), _count_comparator(p, 2)
    joins = sum(2 * m - 2**i for i in range(p))
    scan = 2 * m + joins * (3 + 3 * (bits + 1))
    compare = 2 * m * (5 * bits - 1 + 3)
    depth = layers * (first.depth + back.depth) + 3 * p + 7 + math.ceil(math.log2(bits))
    return Count(1 + network * (first.gates + back.gates) + scan + compare, depth)


def _count_comparator(sort_bits: int, rest: int) -> Count:
    gates = sort_bits * 6 + 3 * (sort_bits - 1) + 4 * (sort_bits + rest)
    return Count(gates, 3 + 2 * math.ceil(math.log2(sort_bits)) + 2)


def as_base_conv(n: int, bits: int) -> dict[str, int]:
    """Returns the size of the circuit, and of the BaseConv layers that compute it."""
    circuit = build(n, bits)
    compiled = compile_channels(circuit)
    width = compiled.layers[0].config.width
    layers = len(compiled.layers)
    parameters = layers * (width * width + 3 * width)
    row = {"triples": n, "bits": bits, **size(circuit)._asdict()}
    return {**row, "layers": layers, "width": width, "parameters": parameters}


def draw(times: list[dict[str, float]], counts: list[dict[str, int]], path: Path) -> None:
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
