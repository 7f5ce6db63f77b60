"""Device, versions and commit of a measurement."""

import datetime
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import jax

PACKAGES = (
    "jax",
    "jaxlib",
    "jax-cuda13-plugin",
    "jax-cuda12-plugin",
    "nvidia-cuda-nvcc",
    "libtpu",
    "numpy",
    "jax-triton",
    "triton",
)


def device_name() -> str:
    """Name of the accelerator, or of the processor with its cores."""
    if jax.default_backend() != "cpu":
        return jax.devices()[0].device_kind
    cores = f"{platform.machine()} CPU, {os.cpu_count()} cores"
    cpuinfo = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", cpuinfo.read_text()) if cpuinfo.exists() else None
    return f"{found[1].strip()}, {cores}" if found else cores


def slug(device: str) -> str:
    """Device name for file names; for a processor its architecture."""
    cpu = re.search(r"(\w+) CPU, \d+ cores$", device)
    return re.sub(r"[^a-z0-9]+", "-", (f"cpu-{cpu[1]}" if cpu else device).lower()).strip("-")


def today() -> str:
    """The date, UTC."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def describe() -> dict:
    """Device, platform, date and versions."""
    return {"device": device_name(), "platform": jax.default_backend(), "date": today(), "versions": versions()}


def versions() -> dict[str, str]:
    """Versions of Python, installed packages, and ptxas on the PATH."""
    found = {name: found for name in PACKAGES if (found := version(name))} | {"python": platform.python_version()}
    if (ptxas := shutil.which("ptxas")) is not None:  # else Mosaic GPU uses nvidia-cuda-nvcc
        found["ptxas"] = ptxas_version(ptxas)
    return found


def ptxas_version(path: str) -> str:
    """Version of a ptxas; "" if it prints none."""
    return "".join(re.findall(r"V(\d[\d.]*)", _printed(path, "--version"))[:1])


def hardware() -> dict[str, str]:
    """Driver, clocks and power limit of the first GPU, from nvidia-smi; {} without nvidia-smi."""
    fields = ("driver_version", "clocks.max.sm", "clocks.max.memory", "power.limit", "memory.total")
    lines = _printed("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader").splitlines()
    return dict(zip(fields, lines[0].split(", "), strict=True)) if lines else {}


def version(package: str) -> str | None:
    """Version of an installed package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def git_commit(folder: Path) -> str:
    """Commit of a checkout, or "unknown"."""
    if not (folder / ".git").exists():
        return "unknown"
    describe = ("describe", "--always", "--dirty", "--abbrev=12")
    return _printed("git", "-c", "safe.directory=*", "-C", str(folder), *describe) or "unknown"


def _printed(*command: str) -> str:
    """Output of a program; "" if it is absent, fails or takes half a minute."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def free_bytes() -> int | None:
    """Free memory of the default device; None: unknown."""
    stats = jax.devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"] - stats["bytes_in_use"]
    meminfo = Path("/proc/meminfo")
    if jax.default_backend() != "cpu" or not meminfo.exists():
        return None
    found = re.search(r"MemAvailable:\s*(\d+) kB", meminfo.read_text())
    return int(found[1]) * 1024 if found else None
