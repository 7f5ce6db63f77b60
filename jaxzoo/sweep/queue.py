"""Queue of the runs of a sweep: `jaxzoo.utils.work_queue` with a limit of attempts per run."""

from jaxzoo.sweep.directory import SweepDirectory
from jaxzoo.utils.work_queue import WorkQueue

MOST_ATTEMPTS = 3
"""Number of killed workers after which a run is not tried again, since it may be the cause."""


class RunQueue(WorkQueue):
    """The runs that the worker of this name holds, until the end of the `with` block."""

    def __init__(self, directory: SweepDirectory, worker: str):
        super().__init__(directory.running_folder, worker)
        self._directory = directory

    def take(self, job: str) -> int:
        """Takes a run, unless it has a result or a failure, or another worker holds it."""
        attempt = super().take(job)
        if attempt > MOST_ATTEMPTS and not self._directory.is_settled(job):
            error = f"its worker was killed {MOST_ATTEMPTS} times, perhaps because memory ran out"
            self._directory.write_failure(job, {"error": error})
        if attempt and self._directory.is_settled(job):  # perhaps by a worker that has just ended
            self.release(job)
            return 0
        return attempt
