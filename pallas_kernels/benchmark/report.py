"""Results as JSON, as Markdown tables and as progress lines.

A result is one JSON object, `<op>-<device>-<date>.json`, with the entries `REQUIRED`: bandwidth and FLOP/s are measured
ceilings, notes name missing peers. A row is a workload with an implementation:

    status    "ok", "wrong", "refused", "out of memory" or "failed"; reason, where there is one
    floor_ms, bound ("memory" or "compute"), flops, bytes     of the workload
    error, errors                                             relative L2: the largest; of every output
    ms, ms_p10, ms_p90, share_of_floor, calls (in a batch)    if "ok"
    kernels_us                                                microseconds of a call by kernel, with --trace
    seconds                                                   duration of truth, check and timing
"""

import json
from pathlib import Path

from pallas_kernels import pages

KIND = {"forward": "forward", "forward_backward": "forward + backward", "step": "step"}
REQUIRED = ("op", "device", "platform", "date", "commit", "versions", "settings", "ceilings", "notes", "rows")
COLUMNS = ("shape", "kind", "implementation", "ms:", "p10 to p90:", "of floor:", "temp MiB:", "error:")


def load(path: Path) -> dict:
    """Reads a result; raises ValueError for other files."""
    try:
        result = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not a result: {error}") from None
    missing = [name for name in REQUIRED if name not in result]
    if missing:
        raise ValueError(f"{path}: not a result: without {missing}")
    return result


def groups(result: dict) -> list[str]:
    """Groups with rows, in order."""
    return list(dict.fromkeys(group for row in result["rows"] for group in row["groups"]))


def markdown(result: dict) -> str:
    """Page of a result: device and versions, and one table per group."""
    c = result["ceilings"]
    parts = [
        f"`{result['op']}` on {result['device']}, {result['date']}, commit {result['commit']}; "
        f"{pages.named(result['versions'])}.\n"
        f"Ceilings: {c['bandwidth'] / 1e9:.4g} GB/s, {c['flops'] / 1e12:.4g} TFLOP/s ({c['matmul']}).",
        *(f"- {note}" for note in result["notes"]),
    ]
    for group in groups(result):
        rows = (_cells(row) for row in result["rows"] if group in row["groups"])
        parts.append("\n".join([f"### {group}", "", *pages.table(COLUMNS, rows)]))
    return "\n\n".join(parts) + "\n"


def progress(row: dict) -> str:
    """Progress line of a row."""
    head = f"{row['name']} {KIND[row['kind']]}, {row['implementation']}:"
    if row["status"] != "ok":
        return f"{head} {row['status']}: {row['reason']}"
    share = row.get("share_of_floor")
    rest = f", {100 * share:.3g} % of floor" if share is not None else ""
    note = f" ({row['reason']})" if row["reason"] else ""
    return f"{head} {row['ms']:.4g} ms{rest}, error {row['error']:.1e}{note}"


def _cells(row: dict) -> list[str]:
    share, temp, error = (row.get(name) for name in ("share_of_floor", "temp_bytes", "error"))
    times = [f"{row['status']}: {row['reason']}", ""]
    if row["status"] == "ok":
        times = [f"{row['ms']:.4g}", f"{row['ms_p10']:.4g} to {row['ms_p90']:.4g}"]
    return [
        *(row["name"], KIND[row["kind"]], row["implementation"], *times),
        "" if share is None else f"{100 * share:.3g} %",
        "" if temp is None else f"{temp / 2**20:.4g}",
        "" if error is None else f"{error:.1e}",
    ]
