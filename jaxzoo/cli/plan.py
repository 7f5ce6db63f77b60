"""`python -m jaxzoo.plan --config FILE --topology v5e:16x16`: a run's memory and time before its devices are rented."""

import argparse
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from jaxzoo.cli.config_file import add_config_options, read_config
from jaxzoo.cli.flags import ArgumentParser, UsageError, output_file, positive
from jaxzoo.cli.progress import show_progress
from jaxzoo.cli.runner import run
from jaxzoo.utils.screen import Failure, Screen

PROGRAM = "python -m jaxzoo.plan"

DESCRIPTION = """Compiles the train step of a config file for absent accelerators, and prints its memory per device,
its FLOPs, the bytes that devices send to each other, and the shortest time that a step can take. Any field of the
config can be overridden by its dotted name, as in python -m jaxzoo.train. The data need not be on disk. pip install
'.[aot]' brings the compilers (Linux)."""

EXAMPLES = """examples:
  python -m jaxzoo.plan --config configs/lm/based_tiny.py --topology v5e:2x4 --mesh.fsdp 8
  python -m jaxzoo.plan --config configs/lm/based_tiny.py --topology h100:8 --search --save plan.json
  python -m jaxzoo.plan --table plans/*.json

exit status: 0 the plan fits; 1 it does not, or the compiler takes no such program; 2 refused, nothing was compiled."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (None: the process's own); returns the exit status."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # compilers' warnings would stand between our lines
    return run(_plan, argv, out_of_memory="the compiler has no memory left on this machine; try a smaller topology")


def _plan(argv: Sequence[str]) -> None:
    options, flags = _options().parse_known_args(argv)
    if options.table is not None:
        if flags:
            raise UsageError(f"--table takes files alone, not {flags[0]}")
        from jaxzoo.plan.plan import Plan
        from jaxzoo.plan.plan_report import table

        print(table([Plan.load(Path(path)) for path in options.table]))
        return
    config = read_config(options, flags, prog=PROGRAM, make_parser=_options)
    if options.topology is None:
        raise UsageError("--topology is required, such as --topology v5e:4x4 or --topology h100:8")
    if options.save is not None:
        options.save = output_file("--save", options.save)
    name = options.name or Path(options.config).stem
    from jaxzoo.plan.topology import find_topology

    topology = find_topology(options.topology)
    from jaxzoo.plan.compile import make_plan
    from jaxzoo.plan.plan_report import describe, verdict
    from jaxzoo.plan.search import search
    from jaxzoo.plan.traffic_sources import sources_table

    screen = Screen(sys.stdout)
    with _dies_at_once(), _progress(screen) as say:
        if options.search:
            plan = search(config, topology, name=name, most=options.most_compiled, say=say)
        else:
            plan = make_plan(config, topology, name=name, say=say)
    screen.say(describe(plan))
    if options.traffic and plan.sources:
        screen.say("\n" + sources_table(list(plan.sources), options.traffic))
    if options.save is not None:
        plan.save(options.save)
    if not plan.fits:
        raise Failure(verdict(plan))


@contextlib.contextmanager
def _dies_at_once() -> Iterator[None]:
    """Lets Ctrl-C end the process in the middle of a compilation, which Python would wait for; nothing is lost."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _progress(screen: Screen) -> Iterator[Callable[[str], None]]:
    """Gives a function that shows each part of the work and the seconds before it; a long part repeats its line."""
    current, start = "starting", time.monotonic()

    def say(line: str) -> None:
        nonlocal current
        current = line
        screen.say(f"{time.monotonic() - start:6.1f} s  {line}")

    with show_progress(lambda seconds: f"{seconds:6.1f} s  ... {current}"):
        yield say


def _options(mixers: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The options besides the config's fields."""
    parser = ArgumentParser(
        prog=PROGRAM, description=DESCRIPTION, epilog=EXAMPLES, add_help=False, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add_config_options(parser, mixers)
    topologies = "what to compile for: v5e:16x16, v6e:2x4, v5p:2x2x2 (chips of a slice), h100:8 (GPUs of a host)"
    add = parser.add_argument
    add("--topology", metavar="NAME", help=topologies)
    searched = "try meshes and remat policies, the most promising first, and plan with the fastest that fits"
    add("--search", action="store_true", help=searched)
    most = "largest number of programs that --search compiles; default: 4"
    add("--most-compiled", type=positive, default=4, metavar="N", help=most)
    moved = "also print which source files move most of the memory traffic, by pass; default of N: 20"
    add("--traffic", type=positive, nargs="?", const=20, metavar="N", help=moved)
    add("--save", type=Path, metavar="FILE", help="write the plan there as JSON")
    add("--table", nargs="+", metavar="FILE", help="print saved plans side by side, and nothing else")
    return parser
