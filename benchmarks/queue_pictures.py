"""Pictures of the results of a queue: `python -m benchmarks.queue_pictures on_device.json ... --out DIR`.

Draws whatever exists: kernels (Based, Figures 5 to 7), generation (Figure 4), and reports of sweeps (figure and table).
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import kernel_plot
from benchmarks.generation import plot
from jaxzoo.cli.sweep_options import open_sweep
from jaxzoo.config.checked import nearest_path
from jaxzoo.sweep.directory import About
from jaxzoo.sweep.report_files import write_report


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.queue_pictures", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.json", help="results of benchmarks.on_device")
    parser.add_argument("--out", type=Path, default=Path("on_device"), metavar="DIR", help="default: on_device")
    command = parser.parse_args(argv)
    for file in command.files:
        if not file.exists():
            parser.error(f"{file} does not exist{nearest_path(file)}")
    command.out.mkdir(parents=True, exist_ok=True)
    for file in command.files:
        for name, row in json.loads(file.read_text()).items():
            stem = command.out / name.replace(": ", "-").replace(" ", "-")
            for picture in draw(row.get("result"), stem):
                print(picture)
    return 0


def draw(result: Any, stem: Path) -> list[Path]:
    """Draws a piece's result; returns the files, none for a result without a picture."""
    if not isinstance(result, dict):
        return []
    if "sweep" in result and result["rows"]:
        about = About(**{**result["sweep"], "missing": tuple(result["sweep"]["missing"])})
        sweep = open_sweep(Path(about.experiment), about.scale, stem)
        write_report(sweep.experiment, sweep.scale, about, result["rows"], stem)
        return [stem / "figure.png", stem / "table.md"]
    if "op" in result and result.get("rows"):
        return kernel_plot.draw(result, stem)
    if result.get("benchmark") == "generation":
        plot.draw(result, stem.with_suffix(".png"))
        return [stem.with_suffix(".png")]
    return []


if __name__ == "__main__":
    raise SystemExit(main())
