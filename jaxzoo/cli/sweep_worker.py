"""`python -m jaxzoo.cli.sweep_worker DIR --experiment FILE ...`: one worker of a sweep; `jaxzoo.sweep` starts it.

A local worker stops when its standard input ends, which the process that started it closes. A job of a cluster stops
by the signals of the scheduler.
"""

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from jaxzoo.cli.flags import ArgumentParser
from jaxzoo.cli.runner import run, use_compilation_cache

GRACE_SECONDS = 120.0
"""Time to save after a request to stop."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (None: the process's own); returns the exit status."""
    return run(_work, argv)


def _work(argv: Sequence[str]) -> None:
    options = _options().parse_args(argv)
    if not options.job and not sys.stdin.closed and not os.isatty(sys.stdin.fileno()):
        threading.Thread(target=_follow_parent, daemon=True).start()
    use_compilation_cache()

    import jax

    from jaxzoo.cli.sweep_experiment import open_sweep
    from jaxzoo.sweep.cluster import STOPPING
    from jaxzoo.sweep.launch import as_one_program
    from jaxzoo.sweep.queue import Queue
    from jaxzoo.sweep.work import work
    from jaxzoo.train.host_memory import keep_freed_memory, share_one_arena
    from jaxzoo.train.loop import StopSignals

    if share_one_arena():  # before JAX starts its threads
        keep_freed_memory()
    sweep = open_sweep(options.experiment, options.scale, options.directory)
    stops = StopSignals(STOPPING, patient=True) if options.job else StopSignals()
    with stops as stop, Queue(sweep.directory, options.name) as queue:
        work(
            sweep,
            queue,
            workers=options.workers,
            vectorized=as_one_program(options.parallel, jax.default_backend()),
            stop=stop,
            keep_checkpoints=options.keep_checkpoints,
        )


def _follow_parent() -> None:
    """Waits for the end of standard input, then lets this worker save and end, and ends it after a grace period."""
    while sys.stdin.buffer.read(1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os._exit(1)


def _options() -> argparse.ArgumentParser:
    parser = ArgumentParser(prog="python -m jaxzoo.cli.sweep_worker", allow_abbrev=False)
    parser.add_argument("directory", type=Path, help="of the sweep")
    parser.add_argument("--experiment", type=Path, required=True, help="its file")
    parser.add_argument("--scale", required=True, help="its scale")
    parser.add_argument("--name", required=True, help="of this worker, which no other has")
    parser.add_argument("--workers", type=int, default=1, help="how many there are")
    parser.add_argument("--parallel", default="auto", help="of runs that share a program, as in jaxzoo.sweep")
    parser.add_argument("--job", action="store_true", help="this is a job of a cluster, told to end by notes")
    parser.add_argument("--keep-checkpoints", action="store_true", help="keep the last checkpoint of every run")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
