"""`jaxzoo plan --config FILE --topology v5e:16x16`: memory and time of a run on absent accelerators."""

import dataclasses
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from jaxzoo.cli.config_file import ConfigOptions, read_config
from jaxzoo.cli.flags import UsageError, flag, output_file
from jaxzoo.cli.runner import command_line
from jaxzoo.config.checked import PositiveInt
from jaxzoo.utils.progress import show_progress
from jaxzoo.utils.screen import Failure, Screen


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanCommand(ConfigOptions):
    """Compiles the train step of a config file for absent accelerators, and prints its memory per device, its FLOPs,
    the bytes that devices send to each other, and the shortest time that a step can take. Any field of the config can
    be overridden by its dotted name, as in jaxzoo train. The data need not be on disk. pip install '.[aot]'
    brings the compilers (Linux).

    jaxzoo plan --config configs/lm/based_tiny.py --topology v5e:2x4 --mesh.fsdp 8

    jaxzoo plan --config configs/lm/based_tiny.py --topology h100:8 --search --save plan.json

    jaxzoo plan --table plans/*.json

    Exit status: 0 the plan fits; 1 it does not, or the compiler rejects the program; 2 invalid request, not compiled.
    """

    topology: Annotated[str | None, flag("NAME")] = None
    """Target devices: v5e:16x16, v6e:2x4, v5p:2x2x2 (chips of a slice), h100:8 (GPUs of a host)."""
    search: bool = False
    """Try meshes and remat policies, the most promising first, and plan with the fastest that fits."""
    most_compiled: Annotated[PositiveInt, flag("N")] = 4
    """Largest number of programs that --search compiles."""
    traffic: Annotated[tuple[PositiveInt, ...] | None, flag("N")] = None
    """Also print the N source files with the most memory traffic, by pass; without a number: 20."""
    save: Annotated[Path | None, flag("FILE")] = None
    """Write the plan there as JSON."""
    table: Annotated[tuple[Path, ...] | None, flag("FILE")] = None
    """Print saved plans side by side, and nothing else."""


@command_line(
    selector="config", out_of_memory="the compiler has no memory left on this machine; try a smaller topology"
)
def main(command: PlanCommand, flags: Sequence[str]) -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no warnings of compilers
    if command.table is not None:
        if not command.table:
            raise UsageError("--table must name at least one file")
        if flags:
            raise UsageError(f"--table takes only files, not {flags[0]}")
        from jaxzoo.plan.plan import Plan
        from jaxzoo.plan.plan_report import table

        print(table([Plan.load(path.expanduser()) for path in command.table]))
        return
    config = read_config(command, flags, prog="jaxzoo plan")
    if command.topology is None:
        raise UsageError("--topology is required, such as --topology v5e:4x4 or --topology h100:8")
    save = command.save and output_file("--save", command.save)
    from jaxzoo.plan.topology import find_topology

    topology = find_topology(command.topology)
    from jaxzoo.plan.compile import make_plan
    from jaxzoo.plan.plan_report import describe, verdict
    from jaxzoo.plan.search import search
    from jaxzoo.plan.traffic_sources import sources_table

    screen = Screen(sys.stdout)
    name = command.name or Path(command.config or "").stem
    start = time.monotonic()
    part = "starting"

    def say(line: str) -> None:
        nonlocal part
        part = line
        screen.say(f"{time.monotonic() - start:6.1f} s  {line}")

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python would wait for the end of the compilation
    with show_progress("s", lambda: (part, round(time.monotonic() - start), None)):
        if command.search:
            plan = search(config, topology, name=name, most=command.most_compiled, say=say)
        else:
            plan = make_plan(config, topology, name=name, say=say)
    screen.say(describe(plan))
    if command.traffic is not None and plan.sources:
        screen.say("\n" + sources_table(list(plan.sources), *(command.traffic or (20,))))
    if save is not None:
        plan.save(save)
    if not plan.fits:
        raise Failure(verdict(plan))
