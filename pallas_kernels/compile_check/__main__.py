"""`python -m pallas_kernels.compile_check`: compiles the kernels, prints a table and checks it."""

import argparse
import dataclasses
import functools
import json
import sys
from pathlib import Path
from typing import get_args

import jax

from pallas_kernels import pages
from pallas_kernels.benchmark.environment import ptxas_version, today, version
from pallas_kernels.compile_check import report, table
from pallas_kernels.compile_check.run import check
from pallas_kernels.compile_check.table import differences
from pallas_kernels.compile_check.targets import TARGETS, cuda_tool, missing
from pallas_kernels.registry import OPS, load
from pallas_kernels.workload import Kind

DESCRIPTION = """Compile every kernel ahead of time for absent GPUs and TPUs: registers, spills, memory, remarks of
ptxas; launches, bytes, instructions and the least time that follows. Needs pip install '.[aot]'."""
EXIT = """exit status: 0 no problem; 1 a program does not compile, a kernel spills, races or has a remark of ptxas,
needs too much shared memory, has an invalid tensor map, copies its inputs on a TPU, or has more bundles, rounds or
barriers than in counts.json; 2 a requirement is not installed."""


def main(argv: list[str] | None = None) -> int:
    """Compiles, prints, and returns the exit status."""
    args = _parser().parse_args(argv)
    for platform in sorted({TARGETS[name].platform for name in args.target}):
        if (reason := missing(platform)) is not None:
            print(f"compile_check: {reason}", file=sys.stderr)
            return 2
    versions = _versions(args.target)
    print(pages.named(versions))
    print(report.HEADER)
    options = {"targets": args.target, "kinds": args.kind, "implementation": args.implementation}
    reports = []
    for entry in check(args.op, groups=args.group, **options):
        reports.append(entry)
        print("\n".join(report.lines(entry)), flush=True)
    counts = {
        table.key(x.op, x.kind, x.shape, x.target): table.entry(x.calls, x.floor, compilers(x.target))
        for x in reports
        if x.calls
    }
    entries = [dataclasses.asdict(x) | {"problems": x.problems()} for x in reports]
    if args.json is not None:
        pages.write_json(args.json, {"date": today(), "versions": versions, "programs": entries})
    worse = [] if args.save else _worse(counts)
    if args.against is not None:
        count, lines = differences(entries, json.loads(args.against.read_text())["programs"])
        print("\n".join([*lines, f"{count - len(lines)} of {count} kernels have the same work as in {args.against}"]))
        worse += lines
    if args.save:
        table.save(counts)
    bad = [entry for entry in reports if entry.problems()]
    if bad or not reports:
        print(f"FAILED: {len(bad)} of {len(reports)} programs" if reports else "FAILED: no workload is of that kind")
        return 1
    if worse:
        print("\n".join(f"  ! {text}" for text in worse))
        print(f"FAILED: {len(worse)} worse than in counts.json, or other than in the file compared with")
        return 1
    kernels = sum(len(entry.kernels) for entry in reports)
    print(f"OK: {len(reports)} programs, {kernels} kernels: no spills, remarks of ptxas, races or copies on a TPU")
    return 0


@functools.cache
def compilers(target: str) -> str:
    """Compilers of a target's machine code, with versions."""
    return pages.named(_versions([target]))


def _worse(counts: table.Table) -> list[str]:
    """Counts that are worse than in the committed table, which may lack programs."""
    committed = table.read()
    found = {name: table.regressions(entry, committed[name]) for name, entry in counts.items() if name in committed}
    return [f"{name}: {text}" for name, texts in found.items() for text in texts]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m pallas_kernels.compile_check", description=DESCRIPTION, epilog=EXIT)

    def names(flag, allowed, default):
        text = f"any of {', '.join(allowed)}; default: {', '.join(default) if default else 'all'}"
        parser.add_argument(flag, nargs="+", metavar="NAME", choices=allowed, default=default, help=text)

    names("--op", OPS, OPS)
    names("--target", tuple(TARGETS), tuple(TARGETS))
    names("--kind", get_args(Kind), None)
    names("--group", tuple(dict.fromkeys(name for op in OPS for name in load(op, "workloads").GROUPS)), ("headline",))
    parser.add_argument(
        "--implementation", metavar="NAME", help="one implementation; default: the op's choice for the platform"
    )
    parser.add_argument("--save", action="store_true", help="write the counts into the committed table")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all numbers to this file")
    text = "compare working instructions and registers with FILE, which --json wrote under another JAX"
    parser.add_argument("--against", type=Path, metavar="FILE", help=text)
    return parser


def _versions(target_names: list[str]) -> dict[str, str]:
    platforms = {TARGETS[name].platform for name in target_names}
    versions = {"jax": jax.__version__}
    if "tpu" in platforms:
        versions["libtpu"] = str(version("libtpu"))
    if "cuda" in platforms:
        versions["ptxas"] = ptxas_version(str(cuda_tool("ptxas"))) or "of unknown version"
    return versions


if __name__ == "__main__":
    sys.exit(main())
