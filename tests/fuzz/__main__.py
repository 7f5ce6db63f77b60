"""`python -m tests.fuzz [--only PATTERN] [--trials 40] [--minutes 10]`: damages files, runs commands, counts ends."""

import argparse
import collections
import os
import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from tests.fuzz.damage import damages
from tests.fuzz.trial import trials
from tests.fuzz.world import cases, make_world

BAD = ("SILENT", "WROTE", "BROKEN")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the cases; 1 if an outcome is bad."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="regular expression of the names of cases")
    parser.add_argument("--trials", type=int, default=40, help="damages of each file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=600.0, help="begins no case after them")
    options = parser.parse_args(argv)
    counts: collections.Counter[str] = collections.Counter()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        pristine = Path(folder, "pristine")
        make_world(pristine)
        for case in cases(pristine):
            if not re.search(options.only, case.name) or time.monotonic() - began > 60 * options.minutes:
                continue
            content = (pristine / case.file).read_bytes()
            told: collections.Counter[str] = collections.Counter()
            for name, verdict, found in trials(
                pristine, Path(folder, "world"), case, damages(content, f"{options.seed}/{case.name}", options.trials)
            ):
                told[verdict] += 1
                if verdict in BAD:
                    print(f"  {verdict} {name}: {found.status} {found.error[-1500:]}", flush=True)
            counts += told
            print(f"{case.name}: {dict(told)}", flush=True)
    print(f"{counts.total()} trials: {dict(counts)}")
    return int(any(counts[verdict] for verdict in BAD))


if __name__ == "__main__":
    raise SystemExit(main())
