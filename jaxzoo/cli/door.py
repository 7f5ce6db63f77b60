"""The way into a command from its module: Ctrl-C while it is still being imported is one line, not a traceback."""

import importlib
import sys
from typing import NoReturn


def enter(module: str) -> NoReturn:
    """Imports `jaxzoo.cli.<module>`, runs its `main` on the process's own words and ends the process."""
    try:
        status = importlib.import_module(f"jaxzoo.cli.{module}").main()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        status = 130
    raise SystemExit(status)
