"""Stand-ins for Slurm's commands: jobs are processes of this machine, one of which waits for a node for ever."""

import stat
import sys
from pathlib import Path

COMMON = """#!{python}
import os, pathlib, re, signal, subprocess, sys
HOME = pathlib.Path({home!r})
"""

SBATCH = """
script = pathlib.Path(sys.argv[1]).read_text()
number = len(list(HOME.glob("*.sh"))) + 1
(HOME / f"{number}.sh").write_text(script)
if number not in WAITING:
    out = open(HOME / f"{number}.out", "w")
    env = os.environ | {"SLURM_JOB_ID": str(number)}
    command = f"bash {HOME}/{number}.sh; echo $? > {HOME}/{number}.status"
    job = subprocess.Popen(["bash", "-c", command], stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env,
                           start_new_session=True)
    (HOME / f"{number}.pid").write_text(str(job.pid))
print("Submitted batch job", number)
"""

SRUN = """
job, words = os.environ["SLURM_JOB_ID"], sys.argv[1:]
assert words.pop(0) == "--unbuffered"
for number, option in ((1, "--output"), (2, "--error")):
    assert words.pop(0) == option
    stream = os.open(words.pop(0).replace("%j", job).replace("%t", "0"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(stream, number)
os.execvp(words[0], words)
"""

SACCT = """
print("JobID|State|NodeList")
for script in HOME.glob("*.sh"):
    status = script.with_suffix(".status")
    if status.exists():
        word = status.read_text().strip()
        state = {"0": "COMPLETED", "143": "CANCELLED by 1000"}.get(word, "FAILED")
    else:
        state = "RUNNING" if script.with_suffix(".pid").exists() else "PENDING"
    print(f"{script.stem}|{state}|node1")
"""

SCANCEL = """
number = sys.argv[1]
(HOME / f"{number}.cancelled").touch()
pid = HOME / f"{number}.pid"
if pid.exists() and not (HOME / f"{number}.status").exists():
    os.killpg(int(pid.read_text()), signal.SIGTERM)
(HOME / f"{number}.status").write_text("143")
"""


def install(folder: Path, *, waiting: list[int]) -> Path:
    """Writes the commands; returns the folder that `PATH` needs. The jobs of these numbers never get a node.

    Beside the commands lie `<number>.sh`, `<number>.pid`, `<number>.status` and `<number>.cancelled` of the jobs.
    """
    folder.mkdir()
    head = COMMON.format(python=sys.executable, home=str(folder)) + f"WAITING = {waiting!r}\n"
    for name, body in {"sbatch": SBATCH, "srun": SRUN, "sacct": SACCT, "scancel": SCANCEL}.items():
        file = folder / name
        file.write_text(head + body)
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return folder
