"""Speed and memory of the input from token shards: `python -m benchmarks.token_input`; see `--help`. Linux.

Writes corpora of random bytes to a temporary directory and takes batches of short and of long windows as the trainer
does, each measurement in its own process: from one corpus, with segments, and from a mixture of three. Files are in the
page cache, so that the program and not the disk is measured. Private memory must not grow with the corpus; mapped pages
are those of the files that were read, which the operating system reclaims when needed.
"""

import concurrent.futures
import dataclasses
import datetime
import json
import multiprocessing
import os
import re
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxzoo.cli.flags import flags_of, parse_flags
from jaxzoo.cli.runner import run
from jaxzoo.config.checked import Checked, PositiveFloat, PositiveInt
from jaxzoo.utils.screen import Screen

PROGRAM = "python -m benchmarks.token_input"
SIZES = ((64, 256), (16, 2048))
"""Rows and tokens per row of a batch."""
WEIGHTS = (5.0, 3.0, 2.0)
"""Weights of the mixture: the corpus and two of a tenth of its size."""
DOCUMENT, SHARD = 1000, 20_000_000
"""Tokens per document, and at most per shard."""
VALID_TOKENS = 10_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(Checked):
    """Times batches from token shards, and looks at the memory that it takes."""

    tokens: PositiveInt = 200_000_000
    """Tokens of the corpus; 2 bytes each on disk."""
    seconds: PositiveFloat = 5.0
    """Time of each measurement."""
    cores: PositiveInt = 2
    """Cores that a process may use."""
    out: Path = Path("benchmarks/results/token-input-cpu.json")
    """File of the result."""

    def __post_init__(self) -> None:
        self.require("tokens", self.tokens >= 100_000, "must be at least 100000")


def main(argv: Sequence[str] | None = None) -> int:
    return run(_measure, argv, interrupted="interrupted; nothing was written")


def _measure(argv: Sequence[str]) -> None:
    command = parse_flags(Command, argv, prog=PROGRAM, known=flags_of(Command()))
    os.environ["JAX_PLATFORMS"] = "cpu"

    from jaxzoo.sweep.machine import commit, machine, versions

    screen = Screen(sys.stdout)
    with tempfile.TemporaryDirectory() as name:
        sizes = (command.tokens, command.tokens // 10, command.tokens // 10)
        corpora = [str(write_corpus(Path(name, str(i)), size, seed=i)) for i, size in enumerate(sizes)]
        one, mixture = {"path": corpora[0]}, {"sources": [*zip(corpora, WEIGHTS, strict=True)]}
        kinds = {"one corpus": one, "with segments": {**one, "packing": "segments"}, "mixture of three": mixture}
        speed = []
        for rows, length in SIZES:
            for kind, fields in kinds.items():
                row = {"kind": kind, "rows": rows, "length": length}
                speed.append(row | _alone(taken, fields, rows, length, command.seconds, command.cores))
                screen.say(f"{kind}, {rows} x {length}: {speed[-1]['tokens_per_second'] / 1e6:.1f} million tokens/s")
        memory = []
        for corpus, size in zip(corpora[1::-1], sizes[1::-1], strict=True):
            row = _alone(taken, {"path": corpus}, *SIZES[1], command.seconds, command.cores)
            memory.append({"tokens": size} | row)
    report = {
        "benchmark": "token_input",
        "machine": machine(),
        "cores": command.cores,
        "date": datetime.date.today().isoformat(),
        "versions": versions(),
        "commit": commit(),
        "command": " ".join([PROGRAM, *argv]),
        "load": os.getloadavg()[1],
        "tokens": command.tokens,
        "speed": speed,
        "memory": memory,
    }
    command.out.parent.mkdir(parents=True, exist_ok=True)
    command.out.write_text(json.dumps(report, indent=1) + "\n")
    screen.say(table(report))


def table(report: Mapping[str, Any]) -> str:
    kinds = list(dict.fromkeys(row["kind"] for row in report["speed"]))
    lines = [f"| million tokens/s (per CPU-second) | {' | '.join(kinds)} |", "| --- " * (1 + len(kinds)) + "|"]
    for rows, length in dict.fromkeys((row["rows"], row["length"]) for row in report["speed"]):
        chosen = [row for row in report["speed"] if (row["rows"], row["length"]) == (rows, length)]
        cells = [f"{r['tokens_per_second'] / 1e6:.1f} ({r['tokens_per_cpu_second'] / 1e6:.1f})" for r in chosen]
        lines.append(f"| {rows} x {length} | {' | '.join(cells)} |")
    lines += [
        "",
        "| tokens of the corpus | MB on disk | MB of private memory | MB of mapped pages |",
        "| --- " * 4 + "|",
    ]
    for row in report["memory"]:
        cells = [row["tokens"] * 2, row["private_bytes"], row["mapped_bytes"]]
        lines.append(f"| {row['tokens']:,} | {' | '.join(f'{n / 1e6:.0f}' for n in cells)} |")
    return "\n".join(lines)


def taken(fields: Mapping[str, Any], rows: int, length: int, seconds: float, cores: int) -> dict[str, float]:
    """Takes batches for some seconds on some cores; returns tokens/s of wall and of CPU time, and the memory of the
    process. `fields` are those of `TokenDataConfig`; `sources` are pairs of path and weight."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])

    import jax

    from jaxzoo.data.token_data import TokenDataConfig, TokenSourceConfig

    sources = tuple(TokenSourceConfig(path=path, weight=weight) for path, weight in fields.get("sources", ()))
    config = TokenDataConfig(**{"length": length, "valid_tokens": length, **fields, "sources": sources})
    stream = config.build(batch_size=rows, valid_batch_size=rows).train()
    jax.block_until_ready(next(stream))
    n_batches, wall, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - wall < seconds:
        jax.block_until_ready(next(stream))
        n_batches += 1
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    status = Path("/proc/self/status").read_text()
    private, mapped = (
        1024 * int(re.findall(rf"^{name}:\s*(\d+) kB", status, re.M)[0]) for name in ("RssAnon", "RssFile")
    )
    n_tokens = n_batches * rows * length
    return {
        "tokens_per_second": n_tokens / wall,
        "tokens_per_cpu_second": n_tokens / cpu,
        "private_bytes": private,
        "mapped_bytes": mapped,
    }


def write_corpus(path: Path, n_tokens: int, *, seed: int) -> Path:
    """Writes a token directory of random bytes."""
    from jaxzoo.data.tokenizer import ByteTokenizer
    from jaxzoo.data.tokens.token_shards import TokenizedDocument, shard_name, write_manifest, write_shard

    rng = np.random.default_rng(seed)
    path.mkdir()
    bytes_ = ByteTokenizer()
    ids = {"vocab_size": bytes_.vocab_size, "end_of_text": bytes_.end_of_text}
    shards = {"train": -(-n_tokens // SHARD), "valid": 1}
    for split, total in (("train", n_tokens), ("valid", VALID_TOKENS)):
        for i in range(shards[split]):
            n_documents = total // shards[split] // DOCUMENT
            texts = (rng.integers(0, 256, DOCUMENT - 1, np.uint8) for _ in range(n_documents))
            documents = (TokenizedDocument(text, len(text), "") for text in texts)
            write_shard(path, shard_name(split, i), documents, **ids)
    made_by = {"name": bytes_.name, "fingerprint": bytes_.fingerprint, **ids}
    write_manifest(path, shards, tokenizer=made_by, versions={})
    return path


def _alone(function: Any, *arguments: Any) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()


if __name__ == "__main__":
    raise SystemExit(main())
