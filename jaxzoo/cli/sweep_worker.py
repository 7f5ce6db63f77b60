"""`python -m jaxzoo.cli.sweep_worker NAME ...`: one worker, started by `jaxzoo.sweep` with its own options.

A local worker stops at the end of its standard input, which its parent process closes; a job of a cluster stops at a
signal of the scheduler.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence

from jaxzoo.cli.runner import prepare_jax, run
from jaxzoo.cli.sweep_options import open_sweep, parse

GRACE_SECONDS = 120.0
"""Time to save after a request to stop."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line (None: that of the process) and returns the exit status."""
    return run(_work, argv)


def _work(argv: Sequence[str]) -> None:
    name, *words = argv
    options = parse(words)
    assert options.out
    is_job = options.cluster is not None
    if not is_job and not sys.stdin.closed and not os.isatty(sys.stdin.fileno()):
        threading.Thread(target=_follow_parent, daemon=True).start()
    prepare_jax()

    import jax

    from jaxzoo.parallel.agreement import StopSignals
    from jaxzoo.sweep.cluster import STOPPING
    from jaxzoo.sweep.queue import RunQueue
    from jaxzoo.sweep.work import work
    from jaxzoo.sweep.workers import as_one_program

    sweep = open_sweep(options.file, options.scale, options.out)
    stops = StopSignals(STOPPING, patient=True) if is_job else StopSignals()
    with stops as stop, RunQueue(sweep.directory, name) as queue:
        work(
            sweep,
            queue,
            workers=options.workers or 1,
            vectorized=as_one_program(options.parallel, jax.default_backend()),
            stop=stop,
            keep_checkpoints=options.keep_checkpoints,
        )


def _follow_parent() -> None:
    """Waits for the end of standard input, then asks this worker to stop, and ends it after a grace period."""
    while sys.stdin.buffer.read(1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    raise SystemExit(main())
