"""Kinds of device on which the kernels were verified: only there are they chosen automatically.

A certificate is a report of `python -m pallas_kernels.verify`. It holds for its kind of device, its minor version of
JAX, and each op all of whose cases are right and whose kernels have the same sources as today. PALLAS_KERNELS in the
environment, the same on all hosts of a job, says which count:

    not set     those in `pallas_kernels/certificates`
    FILE        that one as well
    all         kernels are chosen wherever they serve a call
    none        no kernel is chosen

A program may say the same by `using`, which takes precedence.
"""

import contextlib
import contextvars
import functools
import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from pallas_kernels.registry import OPS

SETTING = "PALLAS_KERNELS"
FOLDER = Path(__file__).parent / "certificates"
SHARED = (
    "halo", "layout", "mosaic_gpu_ring", "mosaic_gpu_tiles", "mosaic_tpu_lanes", "shape", "softmax", "xla_chunks",
)  # fmt: skip
"""Files next to this one with which kernels compute; the others choose, count or draw."""

_SETTING: contextvars.ContextVar[str | None] = contextvars.ContextVar("kernel_setting", default=None)


@contextlib.contextmanager
def using(value: str | None) -> Iterator[None]:
    """Programs lowered in this context choose kernels by `value`, as PALLAS_KERNELS would say; None: it says so itself.

    "" is PALLAS_KERNELS not set.
    """
    token = _SETTING.set(value)
    try:
        yield
    finally:
        _SETTING.reset(token)


def setting() -> str:
    """Current setting: "", "all" or the name of a file."""
    value = _SETTING.get()
    return os.environ.get(SETTING, "") if value is None else value


def objection(device: Any, op: str | None = None) -> str | None:
    """Why no kernel of `op` (None: of any op) is chosen automatically on a device, or None; says so once for each."""
    kind = None if device is None else device.device_kind
    if setting() == "none":
        return f"{SETTING} is none"
    if setting() == "all" or any(each == kind and op in (None, of) for each, of in certified()):
        return None
    named = "a device that is not known" if kind is None else kind
    kernels = "the Pallas kernels" if op is None else f"the Pallas kernels of {op}"
    _say_once(
        f"{kernels} are not verified on {named}, and others run; python -m pallas_kernels.verify checks them, "
        f"{SETTING}=verify.json or {SETTING}=all turns them on"
    )
    return f"not verified on {named}"


def choice() -> list[str]:
    """All that the automatic choice depends on besides a program and its device; hosts of one job must agree on it."""
    kinds = ["all"] if setting() == "all" else sorted(f"{kind}: {op}" for kind, op in certified())
    return [minor_version(jax.__version__), *(kernel_hash(op) for op in OPS), *kinds]


def certified() -> frozenset[tuple[str, str]]:
    """(kind of device, op) with a certificate for this version of JAX and the op's kernels."""
    value = setting()
    if value == "none":
        return frozenset()
    files = [*sorted(FOLDER.glob("*.json")), *([Path(value)] if value not in ("", "all") else [])]
    return frozenset().union(*map(_certified_by, files))


@functools.cache
def _certified_by(file: Path) -> frozenset[tuple[str, str]]:
    """Pairs that one report certifies: none if it is of another version of JAX."""
    try:
        report = json.loads(file.read_text())
        if minor_version(report["jax"]) != minor_version(jax.__version__):
            return frozenset()
        same = {op for op, found in report["kernels"].items() if op in OPS and found == kernel_hash(op)}
        statuses = {op: {x["status"] for x in report["cases"] if x["case"].split()[0] == op} for op in same}
        return frozenset((report["device"], op) for op, found in statuses.items() if found == {"ok"})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{SETTING}={str(file)!r} must be 'all', 'none' or a report of python -m pallas_kernels.verify: {error!r}"
        ) from error


def minor_version(version: str) -> str:
    """Major and minor number."""
    return ".".join(version.split(".")[:2])


@functools.cache
def kernel_hash(op: str) -> str:
    """SHA-256 of the sources of an op's kernels: its folder, those of the ops that it uses, and what all share."""
    root = Path(__file__).parent
    files = [root / f"{name}.py" for name in SHARED]
    files += (file for each in _with_used(op, root) for file in root.glob(f"{each}/*.py"))
    texts = (path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() for path in sorted(files))
    return hashlib.sha256(b"\0".join(texts)).hexdigest()


def _with_used(op: str, root: Path) -> set[str]:
    """The op, the ops whose modules its files import, and theirs."""
    found, left = {op}, [op]
    while left:
        for file in root.glob(f"{left.pop()}/*.py"):
            imported = set(re.findall(r"from pallas_kernels\.(\w+)", file.read_text())) & set(OPS)
            left += imported - found
            found |= imported
    return found


@functools.cache
def _say_once(text: str) -> None:
    logging.getLogger("pallas_kernels").warning(text)
