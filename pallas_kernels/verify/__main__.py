"""`python -m pallas_kernels.verify`: verifies the kernels on a new kind of device."""

import argparse
import contextlib
import importlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pallas_kernels.benchmark import environment
from pallas_kernels.benchmark.report import write_whole
from pallas_kernels.certificates import SETTING
from pallas_kernels.kernel_sources import kernel_hash
from pallas_kernels.registry import OPS
from pallas_kernels.verify.case import Case, Variant, relative_error, where_wrong
from pallas_kernels.verify.job import Job, batch_size, in_turn, probe
from pallas_kernels.verify.page import case_lines, markdown, time_line
from pallas_kernels.verify.truths import Truths

DESCRIPTION = """Compare every kernel with float64 on the host, smallest case first, each in its own process, killed if
it hangs; then time the headline shapes. Later cases compile while one runs. A report (FILE, and a page in
Markdown next to it) is written after every case. On a CPU the kernels are interpreted, in fewer cases."""
EXIT = """exit status: 0 all cases are right; 1 a case is wrong, hangs, fails or was not run; 2 no device answers, or
the kernels do not run on it."""
NO_DEVICE = ("RESOURCE_EXHAUSTED", "out of memory", "OUT_OF_MEMORY", "Unable to initialize backend")
"""Messages of a process that found no memory or no device, which other programs may use."""
TIME_S = 60.0
"""Time limit of timing a call, in seconds."""


def main(argv: list[str] | None = None) -> int:
    """Runs the cases and returns the exit status."""
    args = _parser().parse_args(argv)
    if args.compare:
        from pallas_kernels.verify import compare

        return compare.main()
    end = time.monotonic() + 60 * args.minutes
    device = probe()
    if device is None:
        print("verify: no device answers", file=sys.stderr)
        return 2
    if device["platform"] == "gpu" and device["capability"] != "9.0":
        print(f"verify: {device['device']} has compute capability {device['capability']}, not 9.0", file=sys.stderr)
        return 2
    known = {"hardware": _hardware(), "seed": args.seed, "versions": environment.versions()}
    known["kernels"] = {op: kernel_hash(op) for op in OPS}
    run = Run({**device, **known, "cases": [], "times": []}, args, end)
    kernels = ", ".join(f"{op} {found[:12]}" for op, found in run.report["kernels"].items())
    print(f"{device['device']}, jax {device['jax']}, kernels {kernels}", flush=True)
    run.cases()
    if not args.only:
        run.times()
    cases = run.report["cases"]
    right = sum(result["status"] == "ok" for result in cases)
    print(f"{right} of {len(cases)} cases are right; written to {args.out} and {page_of(args.out)}")
    if right < len(cases):
        return 1
    print(f"{SETTING}={args.out.resolve()} makes these kernels the automatic choice on this architecture")
    return 0


class Run:
    """Runs the cases and times of one module, and writes the report."""

    def __init__(self, report: dict[str, Any], args: argparse.Namespace, end: float):
        self.report, self._args, self._end = report, args, end
        self._platform = report["platform"]
        self._lost = False
        self._explained: set[tuple[str, ...]] = set()

    def cases(self) -> None:
        """Runs every case; marks cases as not run if no time or no device is left."""
        cases = self._chosen(importlib.import_module(self._args.cases).CASES, lambda case: case.name.split()[0])
        cases = {i: case for i, case in cases.items() if not self._args.only or case.name in self._args.only}
        found = self.report["cases"]  # complete from the start, so that a killed run certifies nothing
        found += [{"case": case.name, "status": "not run", "message": "the run was stopped"} for case in cases.values()]
        places = list(cases)
        jobs = in_turn(lambda i: self._job(places[i]), len(places), self._platform)
        truths = Truths(list(cases.values()), self._args.seed)
        with contextlib.closing(jobs), contextlib.closing(truths):
            for i, (index, case) in enumerate(cases.items()):
                if self._over():
                    result = {"status": "not run", "message": self._why_not()}
                else:
                    result = self._check(case, index, next(jobs), truths.of(i))
                    self._lost = result["status"] in ("timeout", "failed") and probe() is None
                found[i] = {"case": case.name, **result}
                self._save()
                print("\n".join(case_lines(found[i])), flush=True)

    def times(self) -> None:
        """Times the calls one by one, after compiling in parallel; leaves out kernels that are not right."""
        failed = {tuple(x["case"].split()[:3]) for x in self.report["cases"] if x["status"] != "ok"}
        module = self._args.times
        calls = self._chosen(importlib.import_module(module).TIMES, lambda call: call.op)
        places, size = list(calls), batch_size(self._platform)
        for start in range(0, len(places), size):
            batch = {i: calls[i] for i in places[start : start + size]}
            right = [i for i, x in batch.items() if not failed & _passes(x) and not self._over()]
            jobs = {i: Job(module, ("TIMES", self._platform, i), {}) for i in right}
            for job in jobs.values():
                job.compile()
            for i, call in batch.items():
                row = {"call": call.name, **self._timed(call, jobs.pop(i, None))}
                self.report["times"].append(row)
                self._save()
                print(time_line(row), flush=True)

    def _chosen(self, lists: Any, op: Callable[[Any], str]) -> dict[int, Any]:
        """Entries of the platform's list for the chosen ops, by index."""
        ops = self._args.ops
        return {i: x for i, x in enumerate(lists[self._platform]) if ops is None or op(x) in ops}

    def _timed(self, call: Any, job: Job | None) -> dict[str, Any]:
        """Status and times of a compiled call; without a job, the reason."""
        if job is None or self._over():
            if job is not None:
                job.close()
            message = self._why_not() if self._over() else "a case of this kernel is not right"
            return {"status": "not run", "message": message}
        result, found = job.result(TIME_S)
        self._lost = found is None and probe() is None
        return result | {key: float(x) for key, x in (found or {}).items()}

    def _over(self) -> bool:
        return self._lost or time.monotonic() > self._end

    def _why_not(self) -> str:
        return "the device was lost" if self._lost else "no time was left"

    def _job(self, index: int, segments: int | None = None, environment: dict[str, str] | None = None) -> Job:
        interpret = self._platform == "cpu"
        variant = Variant(interpret=interpret, segments=segments)._asdict()
        options = {"seed": self._args.seed, "repeats": 0 if interpret else self._args.repeats, "variant": variant}
        options["multiprocessors"] = self.report.get("cores") if self._platform == "gpu" else None
        return Job(self._args.cases, ("CASES", self._platform, index), options, environment)

    def _check(self, case: Case, index: int, job: Job, truth: list[np.ndarray]) -> dict[str, Any]:
        """Status and errors by output; for a wrong case also the place, and the effect of barriers and of one segment.

        A process that found no memory or no device is restarted once.
        """
        result, found = _compared(case, truth, *job.result(self._args.timeout))
        if result["status"] == "failed" and any(word in "\n".join(result["output"]) for word in NO_DEVICE):
            print(f"{case.name}: started again, the process found no memory or no device", flush=True)
            again = self._job(index)
            result, found = _compared(case, truth, *again.result(self._args.timeout))
            result["restarted"] = True
        if result["status"] == "wrong":
            assert found is not None
            names = list(case.tolerances)
            first = next(name for name in names if result["errors"][name] >= case.tolerances[name])
            place = names.index(first)
            result["where"] = {"output": first, **where_wrong(found[place], truth[place], case.tolerances[first])}
            result["variants"] = self._variants(case, index, truth)
        elif result.get("changed"):
            message = f"{result['changed']} of {self._args.repeats} repeats have other bits"
            result |= {"status": "unstable", "message": message}
        return result

    def _variants(self, case: Case, index: int, truth: list[np.ndarray]) -> dict[str, Any]:
        """Runs the first wrong case of a kernel's pass with automatic barriers, and with a single segment."""
        kernel = tuple(case.name.split()[:3])
        if kernel in self._explained:
            return {}
        self._explained.add(kernel)
        variants = {
            "automatic barriers": self._job(index, environment={"PALLAS_KERNELS_BARRIERS": "1"}),
            "one segment": self._job(index, segments=1),
        }
        return {name: _compared(case, truth, *job.result(self._args.timeout))[0] for name, job in variants.items()}

    def _save(self) -> None:
        save(self.report, self._args.out)


def _compared(
    case: Case, truth: list[np.ndarray], result: dict[str, Any], found: dict[str, np.ndarray] | None
) -> tuple[dict[str, Any], list[np.ndarray] | None]:
    """Result of a job with status and errors, and its outputs."""
    if found is None:
        return result, None
    names = case.tolerances
    outputs = [found[str(i)] for i in range(len(names))]
    errors = {name: relative_error(x, y) for name, x, y in zip(names, outputs, truth, strict=True)}
    status = "ok" if all(errors[name] < names[name] for name in names) else "wrong"
    ran = {"changed": int(found["changed"]), "programs": found["programs"].tolist()}
    return {"status": status, "errors": errors, **ran, **result}, outputs


def _passes(call: Any) -> set[tuple[str, ...]]:
    """First words of the cases on which a timed call depends."""
    passes = ("forward", "backward") if call.kind == "forward_backward" else ("forward",)
    return {(call.op, call.implementation, x) for x in passes}


def page_of(path: Path) -> Path:
    """Path of the page of a report."""
    return path.with_suffix(".md")


def save(report: dict[str, Any], path: Path) -> None:
    """Writes the report and its page atomically."""
    write_whole(path, json.dumps(report, indent=1) + "\n")
    write_whole(page_of(path), markdown(report))


def _hardware() -> dict[str, str]:
    """Driver, clocks and power limit of the first GPU, from nvidia-smi; {} without nvidia-smi."""
    fields = ("driver_version", "clocks.max.sm", "clocks.max.memory", "power.limit", "memory.total")
    if shutil.which("nvidia-smi") is None:
        return {}
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
        return {}
    return dict(zip(fields, (x.strip() for x in done.stdout.splitlines()[0].split(",")), strict=True))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m pallas_kernels.verify", description=DESCRIPTION, epilog=EXIT)
    parser.add_argument(
        "--ops", nargs="+", choices=OPS, metavar="OP",
        help=f"verify, time and certify only these of {', '.join(OPS)}; default: all",
    )  # fmt: skip
    parser.add_argument(
        "--compare", action="store_true",
        help="lower the verified cases without a device, compare their programs with the certificates, renew these",
    )  # fmt: skip
    parser.add_argument("--only", nargs="+", metavar="CASE", help="names of cases; default: all of the ops")
    parser.add_argument("--minutes", type=float, default=15.0, help="time after which no case starts; default: 15")
    parser.add_argument(
        "--out", type=Path, default=Path("verify.json"), metavar="FILE", help="report; default: verify.json"
    )
    parser.add_argument("--timeout", type=float, default=30.0, metavar="S", help="time limit of a case; default: 30")
    parser.add_argument(
        "--repeats", type=int, default=20, help="number of runs whose bits are compared; default: 20; none on a CPU"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the random inputs; default: 0")
    parser.add_argument("--cases", default="pallas_kernels.verify.cases", metavar="MODULE", help="module with CASES")
    parser.add_argument("--times", default="pallas_kernels.verify.times", metavar="MODULE", help="module with TIMES")
    return parser


if __name__ == "__main__":
    import jax

    jax.config.update("jax_platforms", "cpu")  # truths are computed on the host: only workers touch the accelerator
    sys.exit(main())
