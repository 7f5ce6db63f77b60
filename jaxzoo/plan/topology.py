"""Topologies of absent accelerators, by name."""

import dataclasses
import os
import re
from typing import Any

import jax
from jax.experimental import topologies

from jaxzoo.plan.plan import find
from jaxzoo.utils.devices import Accelerator
from pallas_kernels.compile_check.run import ENVIRONMENT
from pallas_kernels.compile_check.targets import TARGETS, missing

TPU_CHIPS = {"v5e": 2, "v5p": 3, "v6e": 2}
"""Kind of TPU -> number of dimensions of a slice."""

MOST_GPUS = 8
"""GPUs of one host, to which the link bandwidth applies."""

FORMS = ", ".join([*(f"{name}:{'x'.join('XYZ'[:n])}" for name, n in TPU_CHIPS.items()), f"h100:N (up to {MOST_GPUS})"])
"""Forms of topology names."""

_QUIET = {"TPU_ACCELERATOR_TYPE": "v5litepod-8", "TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}
"""Metadata that libtpu would otherwise request from a cloud machine; no topology depends on it."""


@dataclasses.dataclass(frozen=True)
class Topology:
    """Devices to compile for; nothing runs on them."""

    name: str
    """Name, such as `v5e:16x16`."""
    device: Accelerator
    """Peak rates of one device."""
    platform: str
    """Platform that a program is lowered for: `tpu` or `cuda`."""
    devices: tuple[Any, ...]
    """JAX's descriptions of the devices."""


def find_topology(name: str) -> Topology:
    """Returns the topology of a name (see `FORMS`).

    Raises `ValueError` if there is no such topology, or its compiler is not installed.
    """
    kind, _, size = name.partition(":")
    sizes = [n for n in size.split("x") if re.fullmatch(r"[1-9]\d*", n)]
    if kind not in (*TPU_CHIPS, "h100") or len(sizes) != TPU_CHIPS.get(kind, 1) or size != "x".join(sizes):
        raise ValueError(f"topology {name!r} must be one of {FORMS}")
    platform = "tpu" if kind in TPU_CHIPS else "cuda"
    if (reason := missing(platform)) is not None:
        raise ValueError(f"topology {name!r}: {reason}; pip install '.[aot]' brings all that it needs")
    jax.config.update("jax_platforms", "cpu")  # plugins do not look for devices
    told = {variable: value for variable, value in ENVIRONMENT.items() if "TPU" in variable}
    for variable, value in (told | _QUIET).items():
        os.environ.setdefault(variable, value)
    device = find(kind)
    if platform == "cuda":
        if int(size) > MOST_GPUS:
            raise ValueError(f"topology {name!r} must have at most the {MOST_GPUS} GPUs of one host")
        return Topology(name, device, platform, tuple(TARGETS[kind].devices(int(size))))
    try:
        found = topologies.get_topology_desc(name, platform).devices
    except jax.errors.JaxRuntimeError as error:
        raise ValueError(f"topology {name!r} does not exist: {str(error).splitlines()[0]}") from error
    return Topology(name, device, platform, tuple(found))
