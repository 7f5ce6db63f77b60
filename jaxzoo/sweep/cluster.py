"""Workers as jobs of a cluster, submitted by submitit: Slurm, a plugin of submitit, or local processes.

A job is one worker. It finds its device on its node and continues after the process that submitted it has ended. A
signal of the scheduler (before a time limit, or when the job is cancelled) makes the worker save and end; the scheduler
kills it some time later (Slurm: after `KillWait`, 30 seconds by default). The loop in `oversee.py` submits another job
while runs are left.
"""

import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from jaxzoo.sweep.directory import SweepDirectory
from jaxzoo.sweep.workers import Worker, worker_name
from jaxzoo.utils.extras import need

SHARED = ("name", "timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node", "tasks_per_node")
"""Options that submitit has for every cluster; other options get the cluster's name as prefix."""
TIMEOUT_MINUTES = 60
"""Default time limit of a job."""
STOPPING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1", "SIGUSR2") if hasattr(signal, name))
"""Signals of schedulers before they kill a job; submitit makes Slurm send the last. Windows has only the first."""
INTERRUPTED = 130
"""Exit status of a worker that was stopped before it took a run."""
GRACE_SECONDS = 120.0
"""Longest wait for cancelled workers to save their runs."""

Program = Callable[[Sequence[str]], int]
"""A command: takes a command line, returns the exit status."""


class ClusterWorkers:
    """Jobs of a cluster, each of which is one worker.

    Args:
      cluster: `slurm`, `local` (processes of this machine), or another cluster of submitit.
      options: options of `submitit.AutoExecutor.update_parameters`, without the prefix of the cluster.
      program: command of a worker, a function of a module.
      words: its command line after the name of the worker.

    Raises `ValueError` if submitit is missing, or refuses the cluster or an option.
    """

    def __init__(
        self,
        cluster: str,
        options: Mapping[str, Any],
        program: Program,
        words: Sequence[str],
        directory: SweepDirectory,
    ):
        need("submitit", "--cluster", "cluster")

        import submitit

        logging.getLogger("submitit").setLevel(logging.CRITICAL)  # only errors of workers are reported
        self._cluster = cluster
        self._program = program
        self._words = words
        self._directory = directory
        # A scheduler assigns cores to a job; without one, each job would use all cores.
        self._threads = options.get("cpus_per_task", 1 if cluster == "local" else None)
        self._jobs: dict[str, Any] = {}
        try:
            self._executor = submitit.AutoExecutor(folder=directory.workers / "jobs", cluster=cluster)
        except (ValueError, RuntimeError) as error:
            raise ValueError(f"--cluster {cluster}: {error}") from error
        try:
            self._executor.update_parameters(**_parameters(cluster, options, f"jaxzoo-{directory.path.name}"))
        except (NameError, ValueError, AssertionError, TypeError) as error:
            raise ValueError(f"--cluster-options: {str(error).splitlines()[0]}") from error

    def start(self, numbers: Sequence[int]) -> list[Worker]:
        """Submits an array of jobs, one per number. A pending job has not ended."""
        names = [worker_name(number) for number in numbers]
        words = [[name, *self._words] for name in names]
        n = len(names)
        try:
            # Ctrl-C is for this process, which stops the workers; processes that are started here inherit the mask.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                jobs = self._executor.map_array(run_in_job, [self._program] * n, words, [self._threads] * n)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        except (RuntimeError, OSError) as error:  # submitit's own errors are RuntimeErrors
            refused = f"{self._cluster} takes no job: {' '.join(str(error).split())}"
            return [Worker(name, lambda: True, lambda: refused) for name in names]
        self._jobs |= zip(names, jobs, strict=True)
        return [Worker(name, job.done, partial(_error_message, job)) for name, job in zip(names, jobs, strict=True)]

    def stop(self, *, finished: bool) -> None:
        """Cancels all jobs that have not ended, and waits until they have released their runs.

        With `finished` it cancels pending jobs only: running ones end by themselves.
        """
        for job in self._jobs.values():
            if not job.done() and not (finished and job.paths.stdout.exists()):
                with contextlib.suppress(OSError):
                    if self._cluster == "local":  # submitit would send SIGINT, which the job blocks
                        os.kill(int(job.job_id), signal.SIGTERM)
                    else:
                        job.cancel(check=False)
        queue = self._directory.queue()
        deadline = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < deadline:
            reports = queue.progress().items()
            if not any(told["worker"] in self._jobs and queue.is_held(run) for run, told in reports):
                return
            time.sleep(0.2)


def _error_message(job: Any) -> str | None:
    """Last line of a failed job's output, or its state in the cluster; None: it did not fail."""
    line = next(reversed((job.stderr() or "").strip().splitlines()), "")
    if not job.paths.result_pickle.exists():
        return f"job {job.job_id} ended without a result, state {job.state}{line and f': {line}'}"
    if job.exception() is None and job.result() in (0, INTERRUPTED):
        return None
    return line or f"exit status {job.result()}"


def run_in_job(program: Program, words: Sequence[str], threads: int | None) -> int:
    """Runs a command in the process of a job, which signals of the scheduler interrupt.

    (Handlers of submitit would submit the job again, or ignore the signals.) `threads`: number of XLA's threads on a
    CPU; None: one per core of the job.
    """
    if threads is not None:
        os.environ["NPROC"] = str(threads)
    logging.getLogger("submitit").setLevel(logging.WARNING)  # the log ends with a line of the program
    for number in STOPPING:
        signal.signal(number, signal.default_int_handler)
    return program(words)


def _parameters(cluster: str, options: Mapping[str, Any], job_name: str) -> dict[str, Any]:
    """Returns the arguments of `update_parameters`."""
    for option in ("nodes", "tasks_per_node"):
        if options.get(option, 1) != 1:
            raise ValueError(f"{option} must be 1: a job is one worker; ask for more with --workers")
    chosen: dict[str, Any] = {"name": job_name, "timeout_min": TIMEOUT_MINUTES}
    if cluster == "slurm":  # a requeued job would be a second worker of the same name
        chosen["slurm_additional_parameters"] = {"no-requeue": True}
    for option, value in options.items():
        whole = option in SHARED or option.startswith(f"{cluster}_")
        chosen[option if whole else f"{cluster}_{option}"] = value
    return chosen
