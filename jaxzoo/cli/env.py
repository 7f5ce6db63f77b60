"""`jaxzoo env`: versions, devices and kernels, for bug reports."""

import dataclasses
import importlib.metadata
import platform
import re

from jaxzoo.cli.runner import command_line


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvCommand:
    """Prints the versions of jaxzoo and of what it needs, the devices, and the kernels that run there by default."""


@command_line()
def main(command: EnvCommand) -> None:
    import jax

    from jaxzoo import __version__
    from pallas_kernels import certificates
    from pallas_kernels.benchmark.environment import device_name, version, versions

    needed = [line for line in importlib.metadata.requires("jaxzoo") or () if "extra ==" not in line]
    names = re.findall(r"^[\w-]+", "\n".join(needed), re.MULTILINE)
    found = versions() | {name: version(name) or "absent" for name in names}
    target = certificates.architecture(jax.devices()[0])
    kernels = [
        f"{op} ({language.title()})"
        for language in certificates.languages(target)
        for where, op in sorted(certificates.certified(language))
        if where == target
    ]
    lines = {
        "jaxzoo": __version__,
        "system": f"{platform.platform()}, {platform.machine()}",
        "versions": ", ".join(f"{name} {number}" for name, number in sorted(found.items())),
        "devices": f"{jax.device_count()} x {device_name()} ({jax.default_backend()})",
        "kernels": ", ".join(kernels) or f"none certified for {target}; XLA serves",
    }
    for name, line in lines.items():
        print(f"{name}: {line}")
