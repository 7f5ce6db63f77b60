"""A sweep as a piece of `benchmarks.on_device`: it trains for some minutes, and a later call continues.

`python -m benchmarks.sweep_piece --experiment FILE --scale device --state DIR --minutes 8 --out RESULT`

The sweep is in DIR/sweeps. RESULT gets its `sweep.json` and all finished rows, from which `benchmarks.queue_pictures`
makes the report. Exit status: 0 once all runs have a result, `UNFINISHED` before.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from jaxzoo.cli.sweep_options import open_sweep
from jaxzoo.utils.whole_files import write_json

UNFINISHED = 75
"""Exit status of a piece that a later call continues (EX_TEMPFAIL)."""
TEXT = "inputs/text"
"""Folder of text below the state (`python -m benchmarks.linearization pack`), for experiments that read files."""
GRACE, REPORT = 40, 20
"""Seconds for workers to save when the time is over, and for the results."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.sweep_piece", description=__doc__)
    add = parser.add_argument
    add("--experiment", required=True, metavar="FILE", help="as of jaxzoo sweep")
    add("--scale", required=True, help="as of jaxzoo sweep")
    add("--workers", default="1", help="processes that share the device; default: 1")
    add("--state", type=Path, required=True, metavar="DIR", help="where a later call finds the runs")
    add("--minutes", type=float, required=True, help="time of this call")
    add("--out", type=Path, required=True, metavar="FILE", help="results, JSON")
    command = parser.parse_args(argv)
    os.environ.setdefault("TEXT_TABLES", str((command.state / TEXT).absolute()))
    place = command.state / "sweeps" / f"{Path(command.experiment).stem}-{command.scale}"
    train(command, place)
    sweep = open_sweep(Path(command.experiment), command.scale, place)
    rows = sweep.rows() if place.exists() else []
    about = sweep.about(command.experiment, command.scale)
    write_json(command.out, {"sweep": about._asdict(), "rows": rows})
    left = sweep.n_runs - len(rows)
    print(f"{len(rows)} of {sweep.n_runs} points have a result")
    return UNFINISHED if left else 0


def train(command: argparse.Namespace, place: Path) -> None:
    """Runs the sweep until it ends or the time is over; then its workers save and stop."""
    words = ["sweep", "--experiment", command.experiment, "--scale", command.scale]
    words += ["--out", str(place), "--workers", command.workers]
    with subprocess.Popen([sys.executable, "-m", "jaxzoo", *words]) as process:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(60 * command.minutes - GRACE - REPORT, 1))
            return
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
            return
        process.kill()


if __name__ == "__main__":
    raise SystemExit(main())
