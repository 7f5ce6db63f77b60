"""Architectures on which the kernels were verified: only there are they chosen automatically.

A certificate is a report of `python -m pallas_kernels.verify`. It holds for an architecture (compute capability of a
GPU, so an H100 and an H200 share it; else the device kind), a minor version of JAX, and each op whose cases are all
right. Each case lists the lowered programs that ran. `kernels` has the syntax hash (`kernel_sources`) of the code that
lowers to them: a device run writes it, and `python -m pallas_kernels.verify --compare` renews it without a device after
lowering every case to the same programs. Code with another hash is not certified. A report is for kernels in one
`language`, Mosaic (if it names none) or Triton, and certifies none in the other.

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

from pallas_kernels import triton_packages
from pallas_kernels.kernel_sources import LANGUAGES, MOSAIC, TRITON, has_triton, kernel_hash
from pallas_kernels.registry import FUSED, OPS

LEAST_FOR_TRITON = 8.0
"""Compute capability of Ampere, which multiplies matrices of bfloat16."""
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


def languages(target: str | None) -> tuple[str, ...]:
    """Languages of kernels that can run on an `architecture`, preferred first."""
    if target is None or not _is_capability(target):
        return (MOSAIC,)
    served = (TRITON,) if float(target) >= LEAST_FOR_TRITON else ()
    return (MOSAIC, *served) if target == "9.0" else served


def ops_in(language: str) -> tuple[str, ...]:
    """Ops with kernels in a language."""
    return OPS if language == MOSAIC else tuple(filter(has_triton, (*OPS, *FUSED)))


def objection(target: str | None, op: str | None = None, language: str = MOSAIC) -> str | None:
    """Why no kernel of `op` (None: of any op) in a language is chosen on an `architecture`, or None.

    Logs one line for each reason that a user can change.
    """
    if setting() == "none":
        return f"{SETTING} is none"
    if op not in (None, *ops_in(language)):
        return f"{op} has no kernels in {language.title()}"
    if target is not None and language not in languages(target):
        return f"no kernels in {language.title()} run on {_named(target)}"
    if language == TRITON and (reason := triton_packages.missing()):
        if languages(target)[0] == TRITON:
            _say_once(f"kernels for {_named(target or '')} need packages, and XLA's programs run: {reason}")
        return reason
    known = certified(language)
    if setting() == "all" or any(found == target and op in (None, of) for found, of in known):
        return None
    named = "a device that is not known"
    if target is not None:
        named = f"{_named(target)} with JAX {minor_version(jax.__version__)}"
    if languages(target)[0] == language:
        _offer(named, [each for each in ops_in(language) if (target, each) not in known], target, language)
    return f"not verified on {named}"


def _offer(named: str, absent: list[str], target: str | None, language: str) -> None:
    """Logs how kernels that are not verified on a device can be."""
    remedy = "python -m pallas_kernels.verify checks them there"
    if all(_changed(each, target, language) for each in absent):
        remedy = "their code changed: python -m pallas_kernels.verify --compare tells whether their programs did"
    elif language == TRITON:
        remedy += " in minutes; its report can be given to the project"
    kind = "Triton" if language == TRITON else "Pallas"
    _say_once(
        f"the {kind} kernels of {', '.join(absent)} are not verified on {named}, and XLA's programs run; {remedy}, "
        f"{SETTING}=verify.json or {SETTING}=all turns them on"
    )


def choice() -> list[str]:
    """Inputs of the automatic choice besides program and device; hosts of a job must agree on them."""
    pairs = [f"{language} {target}: {op}" for language in LANGUAGES for target, op in sorted(certified(language))]
    hashes = [kernel_hash(op, language) for language in LANGUAGES for op in ops_in(language)]
    found = ["all"] if setting() == "all" else pairs
    return [minor_version(jax.__version__), *triton_packages.versions(), *hashes, *found]


def certified(language: str = MOSAIC) -> frozenset[tuple[str, str]]:
    """Pairs (architecture, op) with certificates for this version of JAX and this code."""
    return _pairs(reports(language), language)


def verified(language: str = MOSAIC) -> frozenset[tuple[str, str]]:
    """Pairs (architecture, op) with certificates of the package for any version of JAX and this code."""
    known = [report for report in map(_read, sorted(FOLDER.glob("*.json"))) if report["language"] == language]
    versions = {minor_version(report["jax"]) for report in known}
    by_version = ([x for x in known if minor_version(x["jax"]) == version] for version in versions)
    return frozenset[tuple[str, str]]().union(*(_pairs(each, language) for each in by_version))


def _pairs(known: list[dict[str, Any]], language: str) -> frozenset[tuple[str, str]]:
    targets = {report["architecture"] for report in known}
    pairs = itertools.product(targets, ops_in(language))
    return frozenset((target, op) for target, op in pairs if _proven(known, target, op))


def verified_multiprocessors(target: str | None) -> frozenset[int]:
    """Multiprocessor counts of the GPUs of an architecture on which its preferred kernels ran."""
    known = reports(languages(target)[0]) if languages(target) else []
    return frozenset(report["cores"] for report in known if report["architecture"] == target)


def _changed(op: str, target: str | None, language: str) -> bool:
    """Whether the certificates of an op are for other code."""
    found = [report["kernels"].get(op) for report in reports(language) if report["architecture"] == target]
    return any(found) and kernel_hash(op, language) not in found


def _named(target: str) -> str:
    return f"compute capability {target}" if _is_capability(target) else target


def _is_capability(target: str) -> bool:
    return target.replace(".", "").isdigit()


def _proven(reports: list[dict[str, Any]], target: str, op: str) -> bool:
    """Whether reports on kernels in one language certify an op: every case is right, or only has programs of right
    cases."""
    same = [
        x for x in reports if x["architecture"] == target and x["kernels"].get(op) == kernel_hash(op, x["language"])
    ]
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


def reports(language: str = MOSAIC) -> list[dict[str, Any]]:
    """Reports on kernels in a language, of this version of JAX, that the setting selects."""
    value = setting()
    if value == "none":
        return []
    files = [*sorted(FOLDER.glob("*.json")), *([Path(value)] if value not in ("", "all") else [])]
    current = [report for report in map(_read, files) if minor_version(report["jax"]) == minor_version(jax.__version__)]
    return [report for report in current if report["language"] == language]


@functools.cache
def _read(file: Path) -> dict[str, Any]:
    """Reads the fields of a report that certificates need."""
    try:
        report = json.loads(file.read_text())
        cases = [{key: case[key] for key in ("case", "status", "programs") if key in case} for case in report["cases"]]
        found = {key: report[key] for key in ("jax", "kernels", "cores")}
        if not all(case["case"].split() and case["status"] for case in cases):
            raise ValueError("a case without a name")
        language = report.get("language", MOSAIC)
        if language not in LANGUAGES:
            raise ValueError(f"language {language!r}")
        return found | {
            "cases": cases, "architecture": report["capability"] or report["device"], "language": language,
        }  # fmt: skip
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
