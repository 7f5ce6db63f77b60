"""Kinds of device on which the kernels were verified: only there are they chosen automatically.

A certificate is the report of `python -m pallas_kernels.verify` in which every case is right. It holds for its kind of
device, its minor version of JAX and the kernels' sources. PALLAS_KERNELS in the environment, the same on all hosts of a
job, says which count:

    not set     those in `pallas_kernels/certificates`
    FILE        that one as well
    all         kernels are chosen wherever they serve a call

A program may say the same by `using`, which takes precedence.
"""

import contextlib
import contextvars
import functools
import hashlib
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from pallas_kernels.registry import OPS

SETTING = "PALLAS_KERNELS"
FOLDER = Path(__file__).parent / "certificates"

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


def objection(device: Any) -> str | None:
    """Why no kernel is chosen automatically on a device, or None; says so once for a kind of device."""
    kind = None if device is None else device.device_kind
    if setting() == "all" or kind in certified_kinds():
        return None
    named = "a device that is not known" if kind is None else kind
    _say_once(
        f"the Pallas kernels are not verified on {named}, and others run; python -m pallas_kernels.verify checks them, "
        f"{SETTING}=verify.json or {SETTING}=all turns them on"
    )
    return f"not verified on {named}"


def choice() -> list[str]:
    """All that the automatic choice depends on besides a program and its device; hosts of one job must agree on it."""
    kinds = ["all"] if setting() == "all" else sorted(certified_kinds())
    return [minor_version(jax.__version__), kernel_hash(), *kinds]


def certified_kinds() -> frozenset[str]:
    """Kinds of device with a certificate for this version of JAX and these kernels."""
    value = setting()
    files = [*sorted(FOLDER.glob("*.json")), *([Path(value)] if value not in ("", "all") else [])]
    return frozenset(kind for file in files if (kind := _kind(file)) is not None)


@functools.cache
def _kind(file: Path) -> str | None:
    """The kind of device that a report certifies; None: it is of other versions, or a case is not right."""
    try:
        report = json.loads(file.read_text())
        valid = minor_version(report["jax"]) == minor_version(jax.__version__) and report["kernels"] == kernel_hash()
        right = bool(report["cases"]) and all(case["status"] == "ok" for case in report["cases"])
        return report["device"] if valid and right else None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{SETTING}={str(file)!r} must be 'all' or a report of python -m pallas_kernels.verify: {error!r}"
        ) from error


def minor_version(version: str) -> str:
    """Major and minor number."""
    return ".".join(version.split(".")[:2])


@functools.cache
def kernel_hash() -> str:
    """SHA-256 of the sources that kernels are made of."""
    root = Path(__file__).parent
    files = [*root.glob("*.py"), *(file for op in OPS for file in root.glob(f"{op}/*.py"))]
    texts = (path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() for path in sorted(files))
    return hashlib.sha256(b"\0".join(texts)).hexdigest()


@functools.cache
def _say_once(text: str) -> None:
    logging.getLogger("pallas_kernels").warning(text)
