"""CPU cost of every mixer on one thread: `python -m benchmarks.mixers_cpu`; see `--help`.

At several lengths: forward and backward of a batch, one decode step after as many tokens, temporary memory of the
former (by XLA's count) and its compile time. Times are CPU times of the process over all threads, which a busy machine
disturbs less than wall time. Mixers in the result file are not measured again; a file of another machine or of other
versions is refused.

If by the mixer's own count of FLOPs a sequence costs less than O(t^2), its time is compared with t log t: the last row
is marked `!` if it grows from 1,024 to 8,192 tokens by more than 8 * 13 / 10, plus 10 %. Compile times of 10 CPU s or
more are marked too.

With `--peers`, PyTorch forms of the same mixers alternate with ours (`mixers_cpu_torch.py`), with one thread and the
allocator settings of our trainer. A peer is left out if its time at the previous length, extrapolated quadratically,
exceeds `--peer-limit`.
"""

import dataclasses
import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from jaxzoo.cli.flags import UsageError, flags_of, parse_flags
from jaxzoo.cli.runner import run
from jaxzoo.config.checked import Checked, PositiveFloat, PositiveInt, nearest
from jaxzoo.utils.screen import Screen
from jaxzoo.utils.whole_files import write_whole

PROGRAM = "python -m benchmarks.mixers_cpu"
FROM, TO = 1024, 8192
"""Lengths between which growth is compared with t log t."""
NOISE = 1.1
"""Tolerance: a time may grow by this factor more than t log t."""
COMPILE_SECONDS = 10.0

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(Checked):
    """Measures the registered mixers on one thread of this machine's CPU; goes on where it was stopped."""

    only: tuple[str, ...] = ()
    """Names of what to measure; empty: all. With them, what is done of these is measured again."""
    lengths: tuple[PositiveInt, ...] = (256, 1024, 4096, 8192)
    """Tokens of a sequence."""
    width: PositiveInt = 64
    """d_model."""
    batch: PositiveInt = 8
    """Sequences."""
    seconds: PositiveFloat = 2.0
    """Time for the calls of one measurement; three are the fewest."""
    peers: str = ""
    """Checkout of HazyResearch/zoology: also times the peers. Empty: ours alone."""
    peer_python: str = ""
    """A Python interpreter with torch, transformers, einops, pydantic, opt_einsum and scipy; needed for peers."""
    peer_limit: PositiveFloat = 120.0
    """Longest call of a peer, in seconds, extrapolated from a shorter sequence."""
    out: Path = Path("benchmarks/results/mixers_cpu.json")
    """File of the result; the picture is named like it."""

    def __post_init__(self) -> None:
        self.require("peer_python", bool(self.peers) == bool(self.peer_python), "must come together with peers")


def main(argv: Sequence[str] | None = None) -> int:
    return run(_measure, argv, interrupted="interrupted; what is done is kept")


def _measure(argv: Sequence[str]) -> None:
    command = parse_flags(Command, argv, prog=PROGRAM, known=flags_of(Command()))
    os.environ |= {"JAX_PLATFORMS": "cpu", "NPROC": "1"}  # before JAX starts: XLA's pool of threads

    from benchmarks.mixers_cpu_plot import draw
    from benchmarks.subjects import subjects

    known = subjects()
    for name in command.only:
        if name not in known:
            raise UsageError(f"--only: unknown subject {name!r}{nearest(name, known)}")
    report = _start(command, list(known))
    screen = Screen(sys.stdout)
    screen.say(f"{report['device']}, jax {report['versions']['jax']}")
    for name in command.only or known:
        if name in command.only or not _complete(report, name, command):
            report["subjects"][name] = _subject(name, command, screen)
            write_whole(command.out, json.dumps(report, indent=1) + "\n")
    screen.say(table(report))
    draw(report, command.out.with_suffix(".png"))
    screen.say(f"{command.out} and {command.out.with_suffix('.png')}")


def _start(command: Command, names: Sequence[str]) -> Row:
    """Reads the existing report, without subjects that are gone, or makes an empty one."""
    from benchmarks.generation.measure import environment

    circumstances = {"width": command.width, "batch": command.batch}
    report = {"benchmark": "mixers_cpu", **environment(), **circumstances, "subjects": {}}
    circumstances |= {name: report[name] for name in ("device", "versions")}  # of all rows, which are drawn together
    if not command.out.exists():
        command.out.parent.mkdir(parents=True, exist_ok=True)
        return report
    before = json.loads(command.out.read_text())
    for name, value in circumstances.items():
        if before[name] != value:
            raise UsageError(f"{command.out} has {name}={before[name]}, not {value}; choose another file with --out")
    done = {name: before["subjects"][name] for name in names if name in before["subjects"]}
    return {**report, "subjects": done}


def _complete(report: Row, name: str, command: Command) -> bool:
    from benchmarks.mixers_cpu_measure import PEERS

    rows = {row["length"]: row for row in report["subjects"].get(name, {"rows": ()})["rows"]}
    asked = not command.peers or name not in PEERS or any("peer_cpu_ms" in row for row in rows.values())
    return set(command.lengths) <= set(rows) and asked


def _subject(name: str, command: Command, screen: Screen) -> Row:
    """Measures all rows of a subject in one process."""
    from benchmarks.subjects import family, subjects, train_growth

    config = subjects()[name]
    facts = {"family": family(config), "flops_growth": train_growth(config, command.width)}
    rows: list[Row] = []
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        for length in sorted(command.lengths):
            try:
                row = process.submit(_row, name, length, command, _ask_peer(rows, length, command)).result()
            except BrokenProcessPool:
                row = {"length": length, "out_of_memory": True}
            rows.append(row)
            screen.say(f"{name:28} {_in_short(row)}")
            if "out_of_memory" in row:
                break
    return {**facts, "rows": rows}


def _ask_peer(rows: Sequence[Row], length: int, command: Command) -> bool:
    """Returns whether the peer, if there is one, is expected to finish in time."""
    if not command.peers:
        return False
    if not rows:
        return True
    last = rows[-1]
    return 1e-3 * last.get("peer_cpu_ms", math.inf) * (length / last["length"]) ** 2 < command.peer_limit


def _row(name: str, length: int, command: Command, ask_peer: bool) -> Row:
    import jax

    from benchmarks.mixers_cpu_measure import PEERS, Peer, Size, measure
    from benchmarks.subjects import subjects

    size = Size(command.width, command.batch, length, command.seconds)
    try:
        if not (ask_peer and name in PEERS):
            return measure(subjects()[name], size)
        with Peer(command.peer_python, Path(command.peers), PEERS[name], size) as peer:
            return measure(subjects()[name], size, peer)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return {"length": length, "out_of_memory": True}


def table(report: Row) -> str:
    columns = [
        "mixer",
        "tokens",
        "forward and backward, CPU ms",
        "temporary MiB",
        "compilation, CPU s",
        "decode step, CPU µs",
        "state per sequence, KiB",
    ]
    columns += ["PyTorch, CPU ms", "growth exponent of the time, 1k to 8k tokens"]
    lines = ["| " + " | ".join(columns) + " |", "| --- " * len(columns) + "|"]
    for name, subject in report["subjects"].items():
        growth = _growth_cell(subject)
        for row in subject["rows"]:
            cells = [name, f"{row['length']:,}", *_cells(row), growth if row is subject["rows"][-1] else ""]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cells(row: Row) -> Iterator[str]:
    if "out_of_memory" in row:
        yield from ("out of memory", *[""] * 5)
        return
    yield f"{row['cpu_ms']:.1f}"
    yield f"{row['temporary_bytes'] / 2**20:.0f}"
    yield f"{row['compile_cpu_s']:.1f}" + " !" * (row["compile_cpu_s"] >= COMPILE_SECONDS)
    yield f"{row['step_cpu_us']:.0f}" if "step_cpu_us" in row else "no stream"
    yield f"{row['state_bytes'] / 1024:.1f}" if "state_bytes" in row else ""
    peer = row.get("peer_cpu_ms")
    yield f"{peer:.1f} ({peer / row['cpu_ms']:.1f}x)" if peer else ""


def exponent(subject: Row) -> float | None:
    """Returns e of the time t^e of forward and backward between `FROM` and `TO`; None if a time is missing."""
    times = {row["length"]: row["cpu_ms"] for row in subject["rows"] if "cpu_ms" in row}
    if FROM not in times or TO not in times:
        return None
    return math.log(times[TO] / times[FROM]) / math.log(TO / FROM)


def grows_too_fast(subject: Row) -> bool:
    """Returns whether the time grows faster than t log t although the FLOPs grow slower than t^2."""
    e = exponent(subject)
    allowed = NOISE * TO * math.log2(TO) / (FROM * math.log2(FROM))
    return e is not None and subject["flops_growth"] not in ("t", "t^2") and (TO / FROM) ** e > allowed


def _growth_cell(subject: Row) -> str:
    e = exponent(subject)
    if e is None:
        return ""
    quadratic = subject["flops_growth"] in ("t", "t^2")
    return f"{e:.2f}" + (" (quadratic)" if quadratic else "") + " !" * grows_too_fast(subject)


def _in_short(row: Row) -> str:
    return f"{row['length']:>6}  " + "  ".join(f"{cell:>10}" for cell in _cells(row))


if __name__ == "__main__":
    raise SystemExit(main())
