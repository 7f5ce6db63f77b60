"""Entry point of a command from its module: Ctrl-C during an import gives one line, not a traceback."""

import importlib
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130


def enter(module: str) -> NoReturn:
    """Imports `jaxzoo.cli.<module>`, runs its `main` on the process's command line and ends the process."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where a shell has us ignore it
        signal.signal(signal.SIGINT, _interrupt)
    try:
        status = importlib.import_module(f"jaxzoo.cli.{module}").main()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        status = INTERRUPTED
    raise SystemExit(status)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raises KeyboardInterrupt, but ends the process at once during an import, before anything was written.

    An import may swallow the exception: numpy's C code prints it and raises ImportError, which jaxlib replaces again.
    """
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os.write(2, b"interrupted\n")
            os._exit(INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt
