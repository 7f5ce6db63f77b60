"""Work that is killed at each file that it writes, and started again."""

import subprocess
import sys
from pathlib import Path

_PROGRAM = """
import os, signal, sys
from pathlib import Path
{imports}

out, call = Path(sys.argv[1]), lambda out: {call}
replace = os.replace

def killed_at(step, when):
    def replace_or_die(*paths):
        nonlocal step
        step -= 1
        if step < 0 and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        replace(*paths)
        if step < 0:
            os.kill(os.getpid(), signal.SIGKILL)
    return replace_or_die

step, died = 0, True
while died:
    for when in {when}:
        here = out / f"{{step}}-{{when}}"
        child = os.fork()
        if child == 0:
            os.replace = killed_at(step, when)
            call(here)
            os._exit(0)
        died = os.WIFSIGNALED(os.waitpid(child, 0)[1])
        call(here)
    step += 1
print(step - 1)
"""


def killed_everywhere(
    out: Path, *, imports: str, call: str, when: tuple[str, ...] = ("before", "after")
) -> tuple[int, list[Path]]:
    """Runs the work once per file that it writes: each run is killed at that file, and another process continues.

    Args:
      out: where the results' directories go.
      imports: Python lines.
      call: Python expression that makes the result in the path `out`.
      when: to kill: before or after a file is renamed.

    Returns:
      How many files one result takes, and the results.
    """
    program = _PROGRAM.format(imports=imports, call=call, when=when)
    words = [sys.executable, "-W", "ignore:.*fork:DeprecationWarning", "-c", program, str(out)]
    done = subprocess.run(words, check=False, timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    n_files, results = int(done.stdout), sorted(out.iterdir())
    assert len(results) == len(when) * (n_files + 1)
    return n_files, results


def content(directory: Path) -> dict[str, bytes]:
    """All files below a directory."""
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}
