"""Packages that Triton kernels need besides JAX."""

import importlib.metadata
import importlib.util

PACKAGES = ("jax_triton", "triton")
INSTALL = "pip install 'jax-triton==0.3.1' 'triton==3.6.*'"


def missing() -> str | None:
    """Packages that are not installed, with the command that installs them, or None."""
    absent = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    return f"{' and '.join(absent)} not installed; {INSTALL}" if absent else None


def versions() -> list[str]:
    """Names and versions of the installed packages."""
    found = [name for name in PACKAGES if importlib.util.find_spec(name) is not None]
    return [f"{name} {importlib.metadata.version(name)}" for name in found]
