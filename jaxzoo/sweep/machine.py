"""Machine, versions and commit, which are part of every result."""

import functools
import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path

PACKAGES = ("jax", "flax", "optax", "orbax-checkpoint")


def versions() -> dict[str, str]:
    """Versions of Python and of `PACKAGES`."""
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in PACKAGES}


@functools.cache
def commit() -> str | None:
    """Commit of this package's git checkout, with `-dirty` if files were changed; None: no checkout."""
    here = Path(__file__).parent
    try:
        head = _git(here, "rev-parse", "--short=12", "HEAD")
        return head + ("-dirty" if _git(here, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@functools.cache
def machine() -> str:
    """Name of the device: `AMD EPYC 7B13, 2 cores`, `NVIDIA H200`."""
    import jax

    device = jax.devices()[0]
    if device.platform != "cpu":
        return device.device_kind
    info = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE) if info.exists() else None
    name = found[1] if found else platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores"
