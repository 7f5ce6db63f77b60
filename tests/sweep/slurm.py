"""Stand-ins for Slurm's commands; jobs are local processes."""

import stat
import sys
from pathlib import Path

COMMON = """#!{python}
import os, pathlib, re, signal, subprocess, sys
HOME = pathlib.Path({home!r})
"""

SBATCH = """
script = pathlib.Path(sys.argv[1]).read_text()
number = len(list(HOME.glob("*.sbatch"))) + 1
(HOME / f"{number}.sbatch").write_text(script)
array = re.search(r"^#SBATCH --array=0-(\\d+)", script, re.MULTILINE)
for task in range(int(array[1]) + 1) if array else [None]:
    name = str(number) if task is None else f"{number}_{task}"
    (HOME / f"{name}.sh").write_text(script)
    if name not in WAITING:
        out = open(HOME / f"{name}.out", "w")
        env = os.environ | {"SLURM_JOB_ID": str(number)}
        if task is not None:
            env |= {"SLURM_ARRAY_JOB_ID": str(number), "SLURM_ARRAY_TASK_ID": str(task)}
        command = f"bash {HOME}/{name}.sh; echo $? > {HOME}/{name}.status"
        job = subprocess.Popen(["bash", "-c", command], stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env,
                               start_new_session=True)
        (HOME / f"{name}.pid").write_text(str(job.pid))
print("Submitted batch job", number)
"""

SRUN = """
words = sys.argv[1:]
names = {"%j": "SLURM_JOB_ID", "%A": "SLURM_ARRAY_JOB_ID", "%a": "SLURM_ARRAY_TASK_ID"}
assert words.pop(0) == "--unbuffered"
for number, option in ((1, "--output"), (2, "--error")):
    assert words.pop(0) == option
    place = words.pop(0).replace("%t", "0")
    for pattern, name in names.items():
        place = place.replace(pattern, os.environ.get(name, pattern))
    os.dup2(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
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


def install(folder: Path, *, waiting: list[str]) -> Path:
    """Writes the commands; returns the folder that `PATH` needs. The jobs of these names never get a node.

    Next to the commands lie `<name>.sh`, `<name>.pid`, `<name>.status` and `<name>.cancelled` of each job. The name is
    a number, or `<number>_<task>` for a task of an array.
    """
    folder.mkdir()
    head = COMMON.format(python=sys.executable, home=str(folder)) + f"WAITING = {waiting!r}\n"
    for name, body in {"sbatch": SBATCH, "srun": SRUN, "sacct": SACCT, "scancel": SCANCEL}.items():
        file = folder / name
        file.write_text(head + body)
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return folder
