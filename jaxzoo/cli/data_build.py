"""`jaxzoo data-build`: converts a corpus to a tensorflow-datasets directory."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from jaxzoo.cli.runner import GOES_ON, command_line, say
from jaxzoo.config.checked import PositiveInt
from jaxzoo.data.corpus.building import BuildConfig
from jaxzoo.data.corpus.fasta import FastaLayout
from jaxzoo.utils.progress import show_progress
from jaxzoo.utils.screen import printable

if TYPE_CHECKING:
    from jaxzoo.data.corpus.building import Built


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuildCommand(BuildConfig):
    """Makes a tensorflow-datasets directory with array_record shards (features text and subset) of a corpus on disk.

    The same command continues a build that was stopped or killed. Several of these commands, on machines that share the
    directory, share the work.
    """

    out: Path
    """Directory of the build."""
    workers: PositiveInt = 1
    """Processes on this machine; the output does not depend on their number."""
    skip_bad: bool = False
    """Leave out and count damaged lines, and the rest of a file whose compression is damaged."""
    allow_low_disk: bool = False
    """Start even if the disk seems too small."""


@command_line(interrupted=GOES_ON, out_of_memory="out of memory; take fewer --workers")
def main(command: BuildCommand) -> None:
    from jaxzoo.data.corpus.building import Build

    build = Build(command, command.out.expanduser())
    if not (command.allow_low_disk or build.is_finished):
        build.check_disk()

    def progress() -> tuple[str, int, int]:
        done = build.progress()
        return f"{done.documents:,} documents, {done.bytes / 1e9:,.3f} GB of text", done.files, build.n_files

    with show_progress("files", progress):
        built = build.run(workers=command.workers, skip_bad=command.skip_bad)
    _report(command, built)


def _report(config: BuildConfig, built: "Built") -> None:
    """Prints counts, and warnings about a missing split `valid` and missing sequences."""
    print(f"{built.directory}: {'built' if built.is_new else 'is finished already'}")
    for split, subsets in built.subsets.items():
        counts = f"{built.total(split, 'documents'):,} documents, {built.total(split, 'bytes'):,} bytes of text"
        print(f"  {split}: {counts}")
        for subset, held in subsets.items():
            if subset:
                print(f"    {printable(subset)}: {held['documents']:,} documents, {held['bytes']:,} bytes")
    left_out = built.skipped
    if left_out.empty:
        print(f"  left out: {left_out.empty:,} empty documents")
    if left_out.lines or left_out.files:
        print(f"  skipped: {left_out.lines:,} damaged lines, the rest of {left_out.files:,} damaged files, such as")
        for place in left_out.places:
            print(f"    {printable(place)}")
    if "valid" not in built.subsets and config.source != "labelled":  # classify takes a tenth of train then
        say("warning: no document is in the split valid; use --valid-fraction or --valid-paths")
    if isinstance(fields := config.fields, FastaLayout):
        missing = sorted(set(fields.intervals) - {name for found in built.subsets.values() for name in found})
        if missing:
            say(f"warning: no file has the sequence {missing[0]!r} ({len(missing)} of those named are missing)")
