"""`python -m tests.mutants [WORD ...]`: plants bugs in a copy of the repository and reports those that survive.

With words, only the bugs whose names or paths contain one of them. Exit status 1 if a bug survives the core and full
tests of its entry.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.mutants.mutant import MUTANTS, ROOT, Mutant

TIMEOUT_S = 900
TIERS = "not slow and not parity and not gpu and not tpu"


def copy_repository(target: Path) -> None:
    """Copies what the tests need."""
    ignored = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "runs", "sweeps", "corpora")
    shutil.copytree(ROOT, target, ignore=ignored)


def is_killed(mutant: Mutant, root: Path) -> bool:
    """Whether a test fails with the bug in `root`, which is restored afterwards."""
    file = root / mutant.path
    original = file.read_text()
    file.write_text(mutant.mutate(root))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", TIERS, *mutant.tests]
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        run = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return True  # a test that hangs is noticed
    finally:
        file.write_text(original)
    if run.returncode not in (0, 1) or not run.stdout:  # without pytest the interpreter ends with 1 too
        text = (run.stdout + run.stderr)[-2000:]
        raise RuntimeError(f"pytest ended with status {run.returncode}, not with a verdict:\n{text}")
    return run.returncode == 1


def main(words: list[str]) -> int:
    if "--help" in words:
        print(__doc__)
        return 0
    chosen = [m for m in MUTANTS if not words or any(word in f"{m.name} {m.path}" for word in words)]
    if not chosen:
        print(f"tests.mutants: no name or path contains {' or '.join(words)}; all of them: python -m tests.mutants")
        return 2
    survivors = []
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "repository"
        copy_repository(root)
        for i, mutant in enumerate(chosen, 1):
            start = time.monotonic()
            killed = is_killed(mutant, root)
            survivors += [] if killed else [mutant]
            verdict = "killed  " if killed else "SURVIVED"
            print(
                f"{i:3d}/{len(chosen)} {verdict} {time.monotonic() - start:4.0f} s  {mutant.path}: {mutant.name}",
                flush=True,
            )
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants killed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
