"""`python -m pallas_kernels.verify`: verifies the kernels on a new kind of device."""

import argparse
import contextlib
import importlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pallas_kernels import certificates, pages, triton_packages
from pallas_kernels.benchmark import checks, environment
from pallas_kernels.certificates import SETTING
from pallas_kernels.child import Child, Outcome, in_turn, use_host
from pallas_kernels.dispatch import language_of
from pallas_kernels.kernel_sources import LANGUAGES, MOSAIC, TRITON, kernel_hash
from pallas_kernels.registry import FUSED, OPS
from pallas_kernels.verify import worker
from pallas_kernels.verify.case import Variant, where_wrong
from pallas_kernels.verify.kernel_case import KernelCase
from pallas_kernels.verify.page import case_lines, markdown, milliseconds

DESCRIPTION = """Compare every kernel with float64 on the host, smallest case first, each in its own process, killed if
it hangs; then time the headline shapes. Later cases compile while one runs. A report (FILE, and a page in
Markdown next to it) is written after every case. On a CPU the kernels are interpreted, in fewer cases."""
EXIT = """exit status: 0 all cases are right; 1 a case is wrong, hangs, fails or was not run; 2 no device answers, or
the kernels do not run on it."""
NO_DEVICE = ("RESOURCE_EXHAUSTED", "out of memory", "OUT_OF_MEMORY", "Unable to initialize backend")
"""Messages of a process that found no memory or no device, which other programs may use."""
COMPILE_S, TIME_S, PROBE_S = 120.0, 60.0, 60.0
"""Time limits of compiling, of timing a call, and of starting JAX (ten seconds on a GPU) and computing 1 + 1."""
ENVIRONMENT = {
    "cpu": {"JAX_PLATFORMS": "cpu", "NPROC": "16"},  # the interpreter blocks a thread of XLA for every warpgroup
    "gpu": {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "JAX_TRACEBACK_FILTERING": "off"},
    "tpu": {},
}
"""Environment of the processes by platform: several processes share the memory of a GPU."""
SEED, REPEATS = 0, 20
"""Seed of the random inputs, and runs on a device whose bits are compared."""
MOST_AHEAD = {"cpu": 16, "gpu": 12, "tpu": 0}
"""Processes that compile while another one runs; a TPU serves only one process."""


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
    languages = certificates.languages(device["capability"] or device["device"])
    language = args.kernels or next(iter(languages), MOSAIC)
    if reason := _refusal(device, language, languages):
        print(f"verify: {reason}", file=sys.stderr)
        return 2
    known = {"hardware": environment.hardware(), "seed": SEED, "versions": environment.versions()}
    known["language"] = language
    kernels = {op: kernel_hash(op, language) for op in certificates.ops_in(language)}
    cases: list[dict[str, Any]] = []
    run = Run({**device, **known, "kernels": kernels, "cases": cases, "times": []}, args, end)
    hashes = pages.named({op: found[:12] for op, found in kernels.items()})
    print(f"{device['device']}, jax {device['jax']}, kernels {hashes}", flush=True)
    run.cases()
    if not args.only:
        run.times()
    right = sum(result["status"] == "ok" for result in cases)
    print(f"{right} of {len(cases)} cases are right; written to {args.out} and {page_of(args.out)}")
    if right < len(cases):
        return 1
    print(f"{SETTING}={args.out.resolve()} makes these kernels the automatic choice on this architecture")
    return 0


def _refusal(device: Mapping[str, Any], language: str, languages: Sequence[str]) -> str | None:
    """Why kernels in a language cannot be verified on a device, which runs those in `languages`."""
    if language not in languages:
        of = f" of compute capability {device['capability']}" if device["capability"] else ""
        return f"no kernels in {language.title()} run on {device['device']}{of}"
    return triton_packages.missing() if language == TRITON else None


class Run:
    """Runs the cases and times of one module, and writes the report."""

    def __init__(self, report: dict[str, Any], args: argparse.Namespace, end: float):
        self.report, self._args, self._end = report, args, end
        self._platform, self._language = report["platform"], report.get("language", MOSAIC)
        self._lost = False
        self._explained: set[tuple[str, ...]] = set()

    def cases(self) -> None:
        """Runs every case; marks cases as not run if no time or no device is left."""
        cases = self._chosen(importlib.import_module(self._args.cases).CASES)
        cases = {i: case for i, case in cases.items() if language_of(case.name.split()[1]) == self._language}
        cases = {i: case for i, case in cases.items() if not self._args.only or case.name in self._args.only}
        found = self.report["cases"]  # complete from the start, so that a killed run certifies nothing
        found += [{"case": case.name, "status": "not run", "message": "the run was stopped"} for case in cases.values()]
        places = list(cases)
        ahead = min(MOST_AHEAD[self._platform], os.cpu_count() or 1)
        jobs = in_turn(lambda i: self._job(places[i]), len(places), ahead)
        with contextlib.closing(jobs), contextlib.closing(worker.truths(list(cases.values()), SEED)) as exact:
            for i, (index, case) in enumerate(cases.items()):
                if self._over():
                    result = self._not_run()
                else:
                    result = self._check(case, index, next(jobs), next(exact))
                    self._lost = result["status"] in ("timeout", "failed") and probe() is None
                found[i] = {"case": case.name, **result}
                save(self.report, self._args.out)
                print("\n".join(case_lines(found[i])), flush=True)

    def times(self) -> None:
        """Times the calls one by one, after compiling in parallel; leaves out kernels that are not right."""
        failed = {tuple(x["case"].split()[:3]) for x in self.report["cases"] if x["status"] != "ok"}
        calls = list(self._chosen(importlib.import_module(self._args.times).TIMES).items())
        calls = [(i, x) for i, x in calls if _language_of_call(x.name) in (self._language, None)]
        size = max(1, min(2 * MOST_AHEAD[self._platform], os.cpu_count() or 1))
        for start in range(0, len(calls), size):
            batch = calls[start : start + size]
            right = [i for i, call in batch if not failed & _passes(call.name) and not self._over()]
            jobs = {i: self._child(worker.timed_call, module=self._args.times, index=i) for i in right}
            for job in jobs.values():
                job.prepare()
            for i, call in batch:
                row = {"call": call.name, **self._timed(jobs.pop(i, None))}
                self.report["times"].append(row)
                save(self.report, self._args.out)
                print(f"{row['call']}: {milliseconds(row)} {row.get('message', 'ms')}", flush=True)

    def _chosen(self, lists: Any) -> dict[int, Any]:
        """Entries of the platform's list for the chosen ops, by index."""
        ops = self._args.ops
        return {i: x for i, x in enumerate(lists[self._platform]) if ops is None or x.name.split()[0] in ops}

    def _timed(self, job: Child | None) -> dict[str, Any]:
        """Status and times of a compiled call; without a job, the reason."""
        if job is None or self._over():
            if job is not None:
                job.close()
            return self._not_run("a case of this kernel is not right")
        ended = job.result(TIME_S)
        if ended.value is None:
            self._lost = probe() is None
            return ended.failure()
        return {"seconds": ended.seconds, **ended.value}

    def _over(self) -> bool:
        return self._lost or time.monotonic() > self._end

    def _not_run(self, reason: str = "") -> dict[str, Any]:
        message = "the device was lost" if self._lost else "no time was left" if self._over() else reason
        return {"status": "not run", "message": message}

    def _job(self, index: int, segments: int | None = None, environment: Mapping[str, str] = {}) -> Child:
        interpret = self._platform == "cpu"
        return self._child(
            worker.prepared_case,
            environment,
            module=self._args.cases,
            index=index,
            seed=SEED,
            repeats=0 if interpret else REPEATS,
            variant=Variant(interpret=interpret, segments=segments)._asdict(),
            multiprocessors=self.report.get("cores") if self._platform == "gpu" else None,
            capability=self.report.get("capability"),
        )

    def _child(self, function: Callable, environment: Mapping[str, str] = {}, **options: Any) -> Child:
        arguments = {"platform": self._platform, **options}
        return Child(function, arguments, COMPILE_S, {**ENVIRONMENT[self._platform], **environment})

    def _check(self, case: KernelCase, index: int, job: Child, truth: list[np.ndarray]) -> dict[str, Any]:
        """Status and errors by output; a process that found no memory or no device is restarted once."""
        result, found = _compared(case, truth, job.result(self._args.timeout))
        if result["status"] == "failed" and any(word in "\n".join(result["output"]) for word in NO_DEVICE):
            print(f"{case.name}: started again, the process found no memory or no device", flush=True)
            result, found = _compared(case, truth, self._job(index).result(self._args.timeout))
            result["restarted"] = True
        if result["status"] == "wrong":
            names = list(case.tolerances)
            first = next(name for name in names if result["errors"][name] >= case.tolerances[name])
            place = names.index(first)
            result["where"] = {"output": first, **where_wrong(found[place], truth[place], case.tolerances[first])}
            result["variants"] = self._variants(case, index, truth)
        elif result.get("changed"):
            message = f"{result['changed']} of {REPEATS} repeats have other bits"
            result |= {"status": "unstable", "message": message}
        return result

    def _variants(self, case: KernelCase, index: int, truth: list[np.ndarray]) -> dict[str, Any]:
        """Runs the first wrong case of a Mosaic kernel's pass with automatic barriers, and with a single segment."""
        kernel = tuple(case.name.split()[:3])
        if kernel in self._explained or self._language == TRITON:
            return {}
        self._explained.add(kernel)
        variants = {
            "automatic barriers": self._job(index, environment={"PALLAS_KERNELS_BARRIERS": "1"}),
            "one segment": self._job(index, segments=1),
        }
        return {name: _compared(case, truth, job.result(self._args.timeout))[0] for name, job in variants.items()}


def probe() -> dict[str, Any] | None:
    """JAX's default device, if it computes 1 + 1 in time."""
    return Child(worker.device, {}, PROBE_S).result().value


def _compared(case: KernelCase, truth: list[np.ndarray], ended: Outcome) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Result of a job with status and errors, and its outputs."""
    if ended.value is None:
        return ended.failure(), []
    names, found = case.tolerances, ended.value
    errors = dict(zip(names, checks.errors(found["outputs"], truth), strict=True))
    status = "ok" if all(errors[name] < names[name] for name in names) else "wrong"
    ran = {"changed": found["changed"], "programs": found["programs"]}
    return {"status": status, "errors": errors, **ran, "seconds": ended.seconds}, found["outputs"]


def _passes(name: str) -> set[tuple[str, ...]]:
    """First words of the cases on which a timed call depends."""
    op, kind, *_, implementation = name.split()
    passes = ("forward", "backward") if kind == "forward_backward" else ("forward",)
    return {(op, implementation, x) for x in passes}


def _language_of_call(name: str) -> str | None:
    """Language of the kernels of a timed call; None: XLA's, to compare with."""
    implementation = name.split()[-1]
    return None if implementation == "xla" else language_of(implementation)


def page_of(path: Path) -> Path:
    """Path of the page of a report."""
    return path.with_suffix(".md")


def save(report: dict[str, Any], path: Path) -> None:
    """Writes the report and its page atomically."""
    pages.write_json(path, report)
    pages.write_whole(page_of(path), markdown(report))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m pallas_kernels.verify", description=DESCRIPTION, epilog=EXIT)
    parser.add_argument(
        "--ops", nargs="+", choices=(*OPS, *FUSED), metavar="OP",
        help=f"verify, time and certify only these of {', '.join((*OPS, *FUSED))}; default: all",
    )  # fmt: skip
    parser.add_argument(
        "--compare", action="store_true",
        help="compare lowered programs with the certificates, without a device, and renew these",
    )  # fmt: skip
    parser.add_argument(
        "--kernels", choices=LANGUAGES, metavar="LANGUAGE",
        help="verify kernels in mosaic (Hopper GPUs, TPUs) or triton (NVIDIA GPUs of compute capability 8.0 on); "
        "default: mosaic where it runs",
    )  # fmt: skip
    parser.add_argument("--only", nargs="+", metavar="CASE", help="names of cases; default: all of the ops")
    parser.add_argument("--minutes", type=float, default=15.0, help="time after which no case starts; default: 15")
    parser.add_argument(
        "--out", type=Path, default=Path("verify.json"), metavar="FILE", help="report; default: verify.json"
    )
    parser.add_argument("--timeout", type=float, default=30.0, metavar="S", help="time limit of a case; default: 30")
    parser.add_argument("--cases", default="pallas_kernels.verify.cases", metavar="MODULE", help="module with CASES")
    parser.add_argument("--times", default="pallas_kernels.verify.cases", metavar="MODULE", help="module with TIMES")
    return parser


if __name__ == "__main__":
    use_host()
    sys.exit(main())
