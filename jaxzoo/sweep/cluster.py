"""Workers as jobs of a cluster, through submitit: of Slurm, of a plugin of submitit's, or processes of this machine.

A job is one worker, which finds its device on the node. It goes on when the process that asked for it is gone. What
ends it is a note in the sweep's directory (`queue.tell_to_stop`), or the signals that a scheduler sends some time
before it kills; the worker saves and ends, and whoever oversees the sweep asks for another job.
"""

import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxzoo.claims import LEASE_SECONDS, has_begun, living, tell_to_stop
from jaxzoo.sweep.directory import SweepDirectory
from jaxzoo.sweep.launch import worker_name

SHARED = ("name", "timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node", "tasks_per_node")
"""Options that submitit knows for every cluster; a name that is none of these gets the cluster's before it."""
ONE = ("nodes", "tasks_per_node")
"""Options that make several processes of a job, of which a worker is one."""
TIMEOUT_MINUTES = 60
"""Of a job that was not given another: it saves before, and another one goes on."""
STOPPING = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""What schedulers send to a job that will soon be killed; submitit asks Slurm for the last."""
INTERRUPTED = 130
"""Exit status of a worker that was told to end before it took a run."""

Program = Callable[[Sequence[str]], int]
"""A command: takes the words of its command line, returns its exit status."""


class Cluster:
    """Where jobs go.

    Args:
      name: `slurm`, `local` for processes of this machine, or another that submitit knows.
      options: of `submitit.AutoExecutor.update_parameters`; those of this cluster alone without its name before them.
      folder: for the files of the jobs, which all nodes see.
      job_name: what the cluster calls them.

    Raises:
      ValueError: submitit is missing, or refuses the cluster or an option.
    """

    def __init__(self, name: str, options: Mapping[str, Any], folder: Path, job_name: str):
        try:
            import submitit
        except ImportError:
            raise ValueError("--cluster needs submitit, which is missing: pip install 'jaxzoo[cluster]'") from None
        logging.getLogger("submitit").setLevel(logging.CRITICAL)  # we tell what matters, the workers' last words
        self.name = name
        # A scheduler binds a job to its cores; here each job would have all of them.
        self._threads = options.get("cpus_per_task", 1 if name == "local" else None)
        try:
            self._executor = submitit.AutoExecutor(folder=folder, cluster=name)
        except (ValueError, RuntimeError) as error:
            raise ValueError(f"--cluster {name}: {error}") from error
        try:
            self._executor.update_parameters(**_parameters(name, options, job_name))
        except (NameError, ValueError, AssertionError, TypeError) as error:
            raise ValueError(f"--cluster-options: {str(error).splitlines()[0]}") from error

    def submit(self, program: Program, words: Sequence[str]) -> Any:
        """Asks for a job that runs a command; returns submitit's `Job`.

        Raises:
          RuntimeError: the cluster refuses it.
          OSError: its commands are missing.
        """
        with _ctrl_c_waits():
            return self._executor.submit(run_in_job, program, words, self._threads)


class ClusterWorker:
    """A job that is a worker (a `Worker`).

    Args:
      cluster: where it goes.
      program: the worker's command, a function of a module.
      words: its command line but for its name.
      number: of the worker, from 0 on.
      directory: the sweep's.
    """

    def __init__(
        self, cluster: Cluster, program: Program, words: Sequence[str], number: int, directory: SweepDirectory
    ):
        self.name = worker_name(number)
        self._directory = directory
        self._refused: str | None = None
        self._cancelled = False
        self._looked = time.monotonic()
        try:
            self._job = cluster.submit(program, [*words, "--name", self.name])
        except (RuntimeError, OSError) as error:  # submitit's own errors are RuntimeErrors
            self._refused = f"{cluster.name} takes no job: {' '.join(str(error).split())}"

    def ended(self) -> bool:
        """Whether it runs no more, nor waits for a node. One that is silent is lost, whatever the scheduler thinks."""
        if self._refused or self._cancelled or self._job.done():
            return True
        if self._silent():
            self._cancel()
        return self._cancelled

    def last_words(self) -> str | None:
        """The last line that it printed where it failed, or what the cluster says of it; None: it did not fail."""
        if self._refused or not self._job.paths.result_pickle.exists():
            return self._refused or self._lost()
        if self._job.exception() is None and self._job.result() in (0, INTERRUPTED):
            return None
        return self._last_line() or f"exit status {self._job.result()}"

    def stop(self) -> None:
        """Tells it to save and end; where it has not begun, it never will."""
        if self._refused:
            return
        tell_to_stop(self._directory, self.name)
        if not has_begun(self._directory, self.name):
            self._cancel()

    def kill(self) -> None:
        """Has the cluster end it."""
        if not self._refused:
            self._cancel()

    def _cancel(self) -> None:
        self._cancelled = True
        with contextlib.suppress(OSError):
            self._job.cancel(check=False)

    def _silent(self) -> bool:
        """Whether it has begun, and gives no sign of life: its node may be lost. Looks now and then."""
        if time.monotonic() - self._looked < LEASE_SECONDS / 3:
            return False
        self._looked = time.monotonic()
        begun = has_begun(self._directory, self.name)
        # The second look: it may have ended in good order in between.
        return begun and self.name not in living(self._directory) and has_begun(self._directory, self.name)

    def _lost(self) -> str:
        line = self._last_line()
        return f"job {self._job.job_id} is gone without a word, state {self._job.state}{f': {line}' if line else ''}"

    def _last_line(self) -> str:
        return next(reversed((self._job.stderr() or "").strip().splitlines()), "")


def run_in_job(program: Program, words: Sequence[str], threads: int | None) -> int:
    """What a job does: runs a command in this process, where the scheduler's signals reach it.

    They interrupt it, in place of what submitit does with them: it would have the job start again, or ignore them.

    Args:
      program: the command.
      words: its command line.
      threads: of XLA on a CPU; None: one a core that the job may use.
    """
    if threads is not None:
        os.environ["NPROC"] = str(threads)
    logging.getLogger("submitit").setLevel(logging.WARNING)  # the last line of the log is the program's
    for number in STOPPING:
        signal.signal(number, signal.default_int_handler)
    return program(words)


def _parameters(cluster: str, options: Mapping[str, Any], job_name: str) -> dict[str, Any]:
    """What `update_parameters` takes."""
    for option in ONE:
        if options.get(option, 1) != 1:
            raise ValueError(f"{option} must be 1: a job is one worker; ask for more with --workers")
    chosen: dict[str, Any] = {"name": job_name, "timeout_min": TIMEOUT_MINUTES}
    if cluster == "slurm":  # a job that is started again would be a second worker of the same name
        chosen["slurm_additional_parameters"] = {"no-requeue": True}
    for option, value in options.items():
        whole = option in SHARED or option.startswith(f"{cluster}_")
        chosen[option if whole else f"{cluster}_{option}"] = value
    return chosen


@contextlib.contextmanager
def _ctrl_c_waits() -> Iterator[None]:
    """Keeps Ctrl-C at bay, for processes that are started here too: it is for us, who tell the workers."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
