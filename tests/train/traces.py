"""Reader of profiler traces."""

import gzip
import json
from pathlib import Path


def steps_of_trace(file: Path) -> list[int]:
    """Step numbers in a Perfetto file."""
    with gzip.open(file, "rt") as text:
        events = json.load(text)["traceEvents"]
    return sorted(int(event["args"]["step_num"]) for event in events if event.get("name") == "train")
