"""`python -m pallas_kernels.verify`: the first minutes on a new kind of device."""

import argparse
import contextlib
import importlib
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pallas_kernels.certificates import SETTING, kernel_hash
from pallas_kernels.verify.case import Case, Variant, relative_error, where_wrong

DESCRIPTION = """Run every kernel against float64 on the host, smallest case first, each in a process of its own that is
killed when it hangs. Results are written after every case. On a CPU the kernels are interpreted, in fewer cases."""
EXIT = """exit status: 0 all cases are right; 1 one is wrong, hangs, fails or was not run; 2 no device answers, or the
kernels do not run on it."""
PROBE = """
import json, jax
device = jax.devices()[0]
assert float(jax.numpy.ones(()) + 1) == 2
found = {"platform": jax.default_backend(), "device": device.device_kind, "jax": jax.__version__}
print(json.dumps(found | {"capability": getattr(device, "compute_capability", None)}))
"""
COMPILE_S = 120
PROBE_S = 60
"""Seconds in which x + 1 must be computed; starting JAX on a GPU takes some ten of them."""


def main(argv: list[str] | None = None) -> int:
    """Runs the cases and returns the exit status."""
    args = _parser().parse_args(argv)
    end = time.monotonic() + 60 * args.minutes
    device = probe()
    if device is None:
        print("verify: no device answers", file=sys.stderr)
        return 2
    if device["platform"] == "gpu" and device["capability"] != "9.0":
        print(f"verify: {device['device']} has compute capability {device['capability']}, not 9.0", file=sys.stderr)
        return 2
    results: list[dict[str, Any]] = []
    report = {**device, "kernels": kernel_hash(), "seed": args.seed, "versions": _versions(), "cases": results}
    print(f"{device['device']}, jax {device['jax']}, kernels {report['kernels'][:12]}", flush=True)
    cases = importlib.import_module(args.cases).CASES[device["platform"]]
    lost = False
    for index, case in enumerate(cases):
        worker = Worker(args.cases, device["platform"], index, args.seed, args.repeats, args.timeout)
        if lost or time.monotonic() > end:
            result = {"status": "not run", "message": "the device was lost" if lost else "no time was left"}
        else:
            result = check(case, worker)
            lost = result["status"] in ("timeout", "failed") and probe() is None
        results.append({"case": case.name, **result})
        _save(report, args.out)
        print("\n".join(_lines(results[-1])), flush=True)
    right = sum(result["status"] == "ok" for result in results)
    print(f"{right} of {len(results)} cases are right; written to {args.out}")
    if right < len(results):
        return 1
    print(f"{SETTING}={args.out.resolve()} makes these kernels the automatic choice on {device['device']}")
    return 0


def check(case: Case, worker: "Worker") -> dict[str, Any]:
    """Status, errors by output, and for a wrong case the place and what barriers or a single segment change."""
    result, found = worker.run()
    if found is None:
        return result
    truth = case.truth(case.inputs(worker.seed))
    result |= _compared(case, found, truth)
    if result["status"] == "wrong":
        names = list(case.tolerances)
        first = next(name for name in names if result["errors"][name] >= case.tolerances[name])
        place = names.index(first)
        result["where"] = {"output": first, **where_wrong(found[place], truth[place], case.tolerances[first])}
        result["variants"] = {
            name: _compared(case, again, truth) if again is not None else said
            for name, (said, again) in {
                "automatic barriers": worker.run(environment={"PALLAS_KERNELS_BARRIERS": "1"}),
                "one segment": worker.run(segments=1),
            }.items()
        }
    elif result["changed"]:
        result |= {"status": "unstable", "message": f"{result['changed']} of {worker.repeats} repeats have other bits"}
    return result


def _compared(case: Case, found: list[np.ndarray], truth: list[np.ndarray]) -> dict[str, Any]:
    names = case.tolerances
    errors = {name: relative_error(x, y) for name, x, y in zip(names, found, truth, strict=True)}
    return {"status": "ok" if all(errors[name] < names[name] for name in names) else "wrong", "errors": errors}


class Worker:
    """Processes that run one case."""

    def __init__(self, module: str, platform: str, index: int, seed: int, repeats: int, timeout: float):
        self.arguments = [module, platform, str(index)]
        self.interpret, self.seed, self.timeout = platform == "cpu", seed, timeout
        self.repeats = 0 if self.interpret else repeats

    def run(
        self, *, segments: int | None = None, environment: Mapping[str, str] | None = None
    ) -> tuple[dict[str, Any], list[np.ndarray] | None]:
        """What is known of the run, and its outputs; None where it failed."""
        variant = Variant(interpret=self.interpret, segments=segments)._asdict()
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            options = {"seed": self.seed, "repeats": self.repeats, "variant": variant}
            (folder / "options.json").write_text(json.dumps(options))
            command = [sys.executable, "-m", "pallas_kernels.verify.worker", *self.arguments, name]
            # The GPU interpreter blocks one thread of XLA's pool for every warpgroup.
            threads = {"JAX_PLATFORMS": "cpu", "NPROC": "16"} if self.interpret else {}
            start = time.monotonic()
            with (folder / "said").open("wb") as said:
                process = subprocess.Popen(
                    command, stdout=said, stderr=said, start_new_session=True,
                    env={**os.environ, **threads, **(environment or {})},
                )  # fmt: skip
                try:
                    phase = self._wait(process, folder)
                finally:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            seconds = {"seconds": round(time.monotonic() - start, 1)}
            if phase is not None:
                return {"status": "timeout", "message": f"killed while it was {phase}", **seconds}, None
            if process.returncode:
                lines = (folder / "said").read_text(errors="replace").splitlines() or [f"status {process.returncode}"]
                return {"status": "failed", "message": lines[-1][:500], **seconds}, None
            with np.load(folder / "outputs.npz") as saved:
                outputs = [saved[key] for key in saved.files if key != "changed"]
                return {"changed": int(saved["changed"]), **seconds}, outputs

    def _wait(self, process: subprocess.Popen, folder: Path) -> str | None:
        """Waits for the end of a process; what it was doing when its time was up, or None."""
        for phase, seconds in (("compiling", COMPILE_S), ("running", self.timeout)):
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                if process.poll() is not None:
                    return None
                if phase == "compiling" and (folder / "compiled").exists():
                    break
                time.sleep(0.05)
            else:
                return phase
        return None


def probe() -> dict[str, Any] | None:
    """The device that JAX takes, if it computes x + 1 in time."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=PROBE_S, check=True
        )
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
        return None
    return json.loads(done.stdout.splitlines()[-1])


def _versions() -> dict[str, str]:
    names = ("jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda12-plugin", "libtpu", "numpy")
    found = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _save(report: dict[str, Any], path: Path) -> None:
    """Writes the report as a whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_text(json.dumps(report, indent=1) + "\n")
    unfinished.replace(path)


def _lines(result: dict[str, Any]) -> list[str]:
    errors = " ".join(f"{name} {error:.1e}" for name, error in result.get("errors", {}).items())
    lines = [f"{result['status']:9s}{result.get('seconds', 0):6.1f} s  {result['case']}  {errors}".rstrip()]
    if "message" in result:
        lines.append(f"    {result['message']}")
    lines += [f"    {key}: {value}" for key, value in result.get("where", {}).items()]
    lines += [
        f"    with {name}: {x['status']} {x.get('errors', x.get('message'))}"
        for name, x in result.get("variants", {}).items()
    ]
    return lines


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m pallas_kernels.verify", description=DESCRIPTION, epilog=EXIT)
    parser.add_argument("--minutes", type=float, default=15.0, help="no case starts later; default: 15")
    parser.add_argument("--out", type=Path, default=Path("verify.json"), metavar="FILE", help="default: verify.json")
    parser.add_argument("--timeout", type=float, default=30.0, metavar="S", help="seconds for the runs of a case")
    parser.add_argument(
        "--repeats", type=int, default=20, help="runs whose bits are compared; default: 20; none on a CPU"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random inputs; default: 0")
    parser.add_argument("--cases", default="pallas_kernels.verify.cases", metavar="MODULE", help="module with CASES")
    return parser


if __name__ == "__main__":
    import jax

    jax.config.update("jax_platforms", "cpu")  # truths are computed on the host: only workers touch the accelerator
    sys.exit(main())
