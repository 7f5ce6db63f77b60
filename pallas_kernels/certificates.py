"""Architectures on which the kernels were verified: only there are they chosen automatically.

A certificate is a report of `python -m pallas_kernels.verify`. It holds for an architecture (compute capability of a
GPU, so an H100 and an H200 share it; else the device kind), a minor version of JAX, and each op whose cases are all
right. Each case lists the lowered programs that ran. `kernels` has the syntax hash (`kernel_sources`) of the code that
lowers to them: a device run writes it, and `python -m pallas_kernels.verify --compare` renews it without a device after
lowering every case to the same programs. Code with another hash is not certified.

The environment variable PALLAS_KERNELS, equal on all hosts of a job, selects certificates; `using` takes precedence:

    not set     the certificates in `pallas_kernels/certificates`
    FILE        these and FILE
    all         kernels are chosen wherever they serve a call
    none        no kernel is chosen
"""

import contextlib
import contextvars
import functools
import itertools
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from pallas_kernels.kernel_sources import kernel_hash
from pallas_kernels.registry import OPS

SETTING = "PALLAS_KERNELS"
FOLDER = Path(__file__).parent / "certificates"
_SETTING: contextvars.ContextVar[str | None] = contextvars.ContextVar("kernel_setting", default=None)


@contextlib.contextmanager
def using(value: str | None) -> Iterator[None]:
    """Context manager that replaces PALLAS_KERNELS by `value` ("": not set; None: no replacement)."""
    token = _SETTING.set(value)
    try:
        yield
    finally:
        _SETTING.reset(token)


def setting() -> str:
    """Current setting: "", "all", "none" or a file name."""
    value = _SETTING.get()
    return os.environ.get(SETTING, "") if value is None else value


def architecture(device: Any) -> str | None:
    """Compute capability of a GPU ("9.0") or device kind; None: unknown device."""
    return None if device is None else getattr(device, "compute_capability", None) or device.device_kind


def objection(target: str | None, op: str | None = None) -> str | None:
    """Why no kernel of `op` (None: of any op) is chosen on an `architecture`, or None; logs one line for each."""
    if setting() == "none":
        return f"{SETTING} is none"
    known = certified()
    if setting() == "all" or any(found == target and op in (None, of) for found, of in known):
        return None
    named = "a device that is not known"
    if target is not None:
        named = f"{_named(target)} with JAX {minor_version(jax.__version__)}"
    absent = [each for each in OPS if (target, each) not in known]
    remedy = "python -m pallas_kernels.verify checks them there"
    if all(_changed(each, target) for each in absent):
        remedy = "their code changed: python -m pallas_kernels.verify --compare tells whether their programs did"
    _say_once(
        f"the Pallas kernels of {', '.join(absent)} are not verified on {named}, and XLA's programs run; {remedy}, "
        f"{SETTING}=verify.json or {SETTING}=all turns them on"
    )
    return f"not verified on {named}"


def choice() -> list[str]:
    """Inputs of the automatic choice besides program and device; hosts of a job must agree on them."""
    found = ["all"] if setting() == "all" else sorted(f"{target}: {op}" for target, op in certified())
    return [minor_version(jax.__version__), *map(kernel_hash, OPS), *found]


def certified() -> frozenset[tuple[str, str]]:
    """Pairs (architecture, op) with certificates for this version of JAX and this code."""
    known = reports()
    targets = {report["architecture"] for report in known}
    return frozenset(pair for pair in itertools.product(targets, OPS) if _proven(known, *pair))


def verified_multiprocessors(target: str | None) -> frozenset[int]:
    """Multiprocessor counts of the GPUs of an architecture on which kernels ran."""
    return frozenset(report["cores"] for report in reports() if report["architecture"] == target)


def _changed(op: str, target: str | None) -> bool:
    """Whether the certificates of an op are for other code."""
    found = [report["kernels"].get(op) for report in reports() if report["architecture"] == target]
    return any(found) and kernel_hash(op) not in found


def _named(target: str) -> str:
    return f"compute capability {target}" if target.replace(".", "").isdigit() else target


def _proven(reports: list[dict[str, Any]], target: str, op: str) -> bool:
    """Whether every case is right, or only has programs of right cases."""
    same = [x for x in reports if x["architecture"] == target and x["kernels"].get(op) == kernel_hash(op)]
    cases = [case for report in same for case in report["cases"] if case["case"].split()[0] == op]
    right = [case for case in cases if case["status"] == "ok"]
    names = {case["case"] for case in right}
    programs = {program for case in right for program in case.get("programs", ())}

    def holds(case: dict[str, Any]) -> bool:
        if case["status"] in ("wrong", "unstable"):
            return False
        own = case.get("programs", ())
        return case["case"] in names or (bool(own) and programs.issuperset(own))

    return bool(right) and all(map(holds, cases))


def reports() -> list[dict[str, Any]]:
    """Reports of this version of JAX that the setting selects."""
    value = setting()
    if value == "none":
        return []
    files = [*sorted(FOLDER.glob("*.json")), *([Path(value)] if value not in ("", "all") else [])]
    return [report for report in map(_read, files) if minor_version(report["jax"]) == minor_version(jax.__version__)]


@functools.cache
def _read(file: Path) -> dict[str, Any]:
    """Reads the fields of a report that certificates need."""
    try:
        report = json.loads(file.read_text())
        cases = [{key: case[key] for key in ("case", "status", "programs") if key in case} for case in report["cases"]]
        found = {key: report[key] for key in ("jax", "kernels", "cores")}
        if not all(case["case"].split() and case["status"] for case in cases):
            raise ValueError("a case without a name")
        return found | {"cases": cases, "architecture": report["capability"] or report["device"]}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{SETTING}={str(file)!r} must be 'all', 'none' or a report of python -m pallas_kernels.verify: {error!r}"
        ) from error


def minor_version(version: str) -> str:
    """Major and minor version."""
    return ".".join(version.split(".")[:2])


@functools.cache
def _say_once(text: str) -> None:
    logging.getLogger("pallas_kernels").warning(text)
