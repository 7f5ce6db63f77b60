"""`python -m pallas_kernels.benchmark OP`: checks and times an op, and writes JSON."""

import argparse
import dataclasses
import os
import runpy
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

from pallas_kernels import pages
from pallas_kernels.benchmark import candidates, ceilings as ceilings_module, environment, report, run
from pallas_kernels.benchmark.candidates import Candidate, Peers
from pallas_kernels.registry import FUSED, OPS, load
from pallas_kernels.workload import KINDS

T = TypeVar("T")
REPOSITORY = Path(__file__).parents[2]
EPILOG = """\
examples:
  python -m pallas_kernels.benchmark taylor_attention
  python -m pallas_kernels.benchmark taylor_attention --groups cpu_length --implementations xla naive
  python -m pallas_kernels.benchmark taylor_attention --groups headline step --peers benchmarks/torch_peers.py
  python -m pallas_kernels.benchmark --render benchmarks/results/taylor-nvidia-h200-2026-01-31.json

Groups are those of the op's workloads.py; without --groups, those named cpu... on a CPU and all others elsewhere.
The result is written after every row; an interrupted run keeps its rows.
Exit status: 0; 1 where a candidate was wrong or failed; 2 for a bad command line.
"""


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m pallas_kernels.benchmark", description=__doc__, epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    p.add_argument("op", nargs="?", metavar="OP", help=f"one of {', '.join((*OPS, *FUSED))}")
    p.add_argument("--groups", nargs="+", metavar="GROUP", help="groups of workloads")
    help = f"any of {', '.join(KINDS)}; default: all"
    p.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND", help=help)
    p.add_argument(
        "--implementations", nargs="+", metavar="NAME", help="candidates by name; default: those of the platform"
    )
    p.add_argument(
        "--peers", type=Path, metavar="FILE.py", help="run FILE.py, whose peers(op, platform) adds candidates"
    )
    p.add_argument(
        "--out", type=Path, default=Path("benchmarks/results"), metavar="DIR", help="results; default: %(default)s"
    )
    p.add_argument(
        "--repeats", type=_positive, default=10, metavar="N", help="number of timed batches; default: %(default)s"
    )
    p.add_argument(
        "--seconds", type=float, default=0.5, metavar="S", help="seconds of timing per row; default: %(default)s"
    )
    p.add_argument("--trace", action="store_true", help="record the time of every kernel of a row in the JSON")
    p.add_argument("--force", action="store_true", help="replace a result of the same op, device and date")
    p.add_argument("--render", type=Path, metavar="FILE.json", help="print the tables of a result")
    return p


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    p = parser()
    options = p.parse_args(argv)
    try:
        if options.render is not None:
            print(report.markdown(report.load(options.render)))
            return 0
        job = prepare(options)
    except (ValueError, FileNotFoundError, FileExistsError) as error:
        p.error(str(error))
    return benchmark(job)


class Job(NamedTuple):
    """A valid command line: workloads, candidates, settings, and the result so far."""

    cases: list[run.Case]
    candidates: list[Candidate]
    settings: run.Settings
    result: dict
    path: Path


def prepare(options: argparse.Namespace) -> Job:
    """Finds the workloads, candidates and peers.

    Raises ValueError, FileNotFoundError (peers) or FileExistsError (the result) for options that cannot run.
    """
    if options.op is None:
        raise ValueError(f"op is missing: one of {', '.join((*OPS, *FUSED))}, or --render FILE.json")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # leaves memory for torch
    groups = load(options.op, "workloads").GROUPS
    about = environment.describe()
    platform = about["platform"]
    path = options.out / f"{options.op}-{environment.slug(about['device'])}-{about['date']}.json"
    if path.exists() and not options.force:
        raise FileExistsError(f"{path} exists: --force replaces it, --out DIR writes elsewhere")
    names = options.groups or [name for name in groups if name.startswith("cpu") == (platform == "cpu")]
    peers, notes, versions = _peers(options.peers, options.op, platform)
    default = (*candidates.default_names(options.op, platform), *(c.name for c in peers))
    known = {c.name: c for c in (*candidates.known(options.op, platform), *peers)}
    settings = run.Settings(seconds=options.seconds, repeats=options.repeats, trace=options.trace)
    flags = {"kinds": options.kinds, "XLA_FLAGS": os.environ.get("XLA_FLAGS", "")}
    about["versions"] |= versions
    about |= {"commit": environment.git_commit(REPOSITORY), "settings": dataclasses.asdict(settings) | flags}
    return Job(
        cases=run.cases(_chosen("--groups", names, groups), tuple(options.kinds)),
        candidates=list(_chosen("--implementations", options.implementations or default, known).values()),
        settings=settings,
        result={"op": options.op, **about, "notes": list(notes)},
        path=path,
    )


def benchmark(job: Job) -> int:
    """Measures, writes the result after every row, and prints."""
    for note in job.result["notes"]:
        print(note, flush=True)
    platform, settings = job.result["platform"], job.settings
    ceilings = ceilings_module.measure(platform, seconds=settings.seconds, repeats=settings.repeats)
    rows: list[dict] = []
    result = job.result | {"ceilings": dataclasses.asdict(ceilings), "rows": rows}
    for i, row in run.all_rows(job.cases, job.candidates, ceilings, settings):
        print(f"[{i + 1}/{len(job.cases)}] {report.progress(row)}", flush=True)
        rows.append(row)
        pages.write_json(job.path, result)
    print(report.markdown(result))
    print(job.path)
    return int(any(row["status"] in ("wrong", "failed") for row in rows))


def _chosen(option: str, wanted: Collection[str], known: Mapping[str, T]) -> dict[str, T]:
    """Known groups or candidates that are wanted, in the order of the known ones."""
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise ValueError(f"{option} {' '.join(unknown)}: must be among {', '.join(known)}")
    return {name: x for name, x in known.items() if name in wanted}


def _peers(file: Path | None, op: str, platform: str) -> Peers:
    """Peers from `peers(op, platform)` of a Python file, which runs in this process."""
    if file is None:
        return Peers()
    if file.suffix != ".py":
        raise ValueError(f"--peers {file}: must be a file of Python")
    return runpy.run_path(str(file))["peers"](op, platform)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} must be positive")
    return value


if __name__ == "__main__":
    sys.exit(main())
