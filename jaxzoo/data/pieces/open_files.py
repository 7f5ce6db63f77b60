"""The limit of open files: a memory-mapped array holds one of them for as long as it lives."""

import resource

OTHERS = 512
"""Files other than the arrays: libraries, checkpoints, logs."""


def allow_open_files(arrays: int) -> None:
    """Raises this process's own limit, often 1024, so far that it can map so many arrays.

    Raises:
      ValueError: the limit that the system sets is lower.
    """
    needed = arrays + OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft == unlimited or soft >= needed:
        return
    if hard != unlimited and hard < needed:
        raise ValueError(
            f"{arrays:,} arrays of token shards need {needed:,} open files, but the system allows {hard:,}; raise its "
            "hard limit (ulimit -Hn), or tokenize into fewer shards"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
