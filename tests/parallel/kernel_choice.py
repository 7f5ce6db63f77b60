"""One of two processes that lower the same call for a mesh over both; prints what it would run, as JSON.

Arguments: PORT PROCESS FOLDER. `tests/parallel/test_kernel_choice.py` starts them.
"""

import functools
import hashlib
import json
import os
import sys
import types
from pathlib import Path

import jax

from jaxzoo.train.checks import check_kernels
from jaxzoo.train.config import TrainConfig
from pallas_kernels import certificates, dispatch
from pallas_kernels.taylor_attention import sharded_taylor_attention
from pallas_kernels.taylor_attention.problem import Problem

MARKERS = {"tpu": "tpu_custom_call", "cuda": "mosaic_gpu"}
DEVICE = types.SimpleNamespace(device_kind="NVIDIA H100 80GB HBM3", compute_capability="9.0")


def program(platform: str) -> list:
    """A digest of the program for a platform, and how many kernels are in it."""
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    assert len({device.process_index for device in mesh.devices.flat}) == 2
    call = functools.partial(sharded_taylor_attention, mesh=mesh, batch_axes=("data",))
    arrays = jax.eval_shape(Problem(b=4, t=128, h=8, k=16, v=64).inputs)
    text = jax.jit(call).trace(*arrays).lower(lowering_platforms=(platform,)).as_text()
    return [hashlib.sha256(text.encode()).hexdigest(), text.count(MARKERS[platform])]


def main(port: str, process: str, folder: str) -> None:
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(process))
    dispatch.target_device = lambda ctx: DEVICE
    certificates.FOLDER = Path(folder, f"shipped{process}")
    certificates.FOLDER.mkdir()
    op = "taylor_attention"
    right = {"device": DEVICE.device_kind, "capability": DEVICE.compute_capability, "cores": 132}
    right |= {"jax": jax.__version__, "kernels": {op: certificates.kernel_hash(op)}}
    report = json.dumps(right | {"cases": [{"case": f"{op} mosaic_gpu forward", "status": "ok"}]})
    own = Path(folder, f"own{process}.json")
    own.write_text(report)
    found = {}
    for name, setting in (("nothing", ""), ("own report", str(own)), ("all", "all"), ("shipped", "")):
        if name == "shipped":
            (certificates.FOLDER / "h100.json").write_text(report)
        os.environ[certificates.SETTING] = setting
        check_kernels(TrainConfig())
        found[name] = {platform: program(platform) for platform in MARKERS}
    os.environ[certificates.SETTING] = "all" if process == "1" else ""
    try:
        check_kernels(TrainConfig())
    except ValueError as error:
        found["refusal"] = str(error)
    check_kernels(TrainConfig(pallas_kernels="all"))
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
