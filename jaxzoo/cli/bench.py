"""`jaxzoo bench --mixer FILE.py:NAME`: recall of a mixer at equal bytes of state."""

import dataclasses
from pathlib import Path
from typing import Annotated

from jaxzoo.cli import packaged
from jaxzoo.cli.flags import UsageError, flag
from jaxzoo.cli.runner import command_line, prepare_jax
from jaxzoo.cli.user_files import MIXER_FLAG, find_class
from jaxzoo.config.checked import Checked, PositiveInt


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchCommand(Checked):
    """Measures what a mixer recalls per byte of its state, and writes a page with all kept results next to it. The same
    command continues a stopped one."""

    mixer: Annotated[str | None, flag("NAME")] = None
    """Registered mixer, or FILE.py:NAME."""
    bytes: Annotated[PositiveInt | None, flag("N")] = None
    """One size of the state instead of those of the protocol; such a row cannot be kept."""
    list: bool = False
    """List the mixers with a kept row, and the others."""
    check: Annotated[Path | None, flag("FILE")] = None
    """Check that a row follows the protocol."""
    protocol: Annotated[str, flag("NAME")] = "v1"
    """Version of the protocol, or smoke: half a minute, only to see that a mixer runs."""
    rows: Annotated[Path | None, flag("DIR")] = None
    """Folder of kept rows; default: those of the package."""
    out: Annotated[Path | None, flag("DIR")] = None
    """Directory of runs, row and page; default: bench/<mixer>-<protocol>."""


@command_line(interrupted="interrupted; finished runs are kept: continue with the same command")
def main(command: BenchCommand) -> None:
    from jaxzoo.bench.page import write_page
    from jaxzoo.bench.protocol import find_protocol
    from jaxzoo.bench.rows import read_row, read_rows, write_row
    from jaxzoo.bench.sizes import check_sizes
    from jaxzoo.mixers import MIXERS, MixerConfig
    from jaxzoo.mixers.names import resolve_alias

    protocol = find_protocol(command.protocol)
    if command.check:
        row = read_row(command.check.expanduser())
        if row.name in MIXERS:
            check_sizes(row, type(MIXERS[row.name]()))
        print(f"{command.check}: {row.name} follows protocol {row.protocol}")
        return
    kept = read_rows((command.rows or packaged.folder("experiments") / "recall_per_byte/rows").expanduser(), protocol)
    names = [row.name for row in kept]
    not_run = sorted(MIXERS.keys() - set(names))
    if command.list:
        print(f"protocol {protocol.name}\nrows: {', '.join(names) or 'none'}\nnot run yet: {', '.join(not_run)}")
        return
    if not command.mixer:
        raise UsageError("--mixer NAME is required, such as --mixer gated_delta_net, or --list; see --help")
    given = resolve_alias(command.mixer)
    config = find_class(given, MixerConfig, MIXER_FLAG, MIXERS)()
    name = given.rpartition(":")[2]
    if command.bytes:
        changes = {"name": f"{protocol.name}-{command.bytes}", "sizes": (command.bytes,), "tuned_size": command.bytes}
        protocol = dataclasses.replace(protocol, **changes)
    out = (command.out or Path("bench", f"{name}-{protocol.name}")).expanduser()
    prepare_jax()

    import jax

    from jaxzoo.bench.train import train_row

    if command.protocol == "smoke":  # its time is compilation
        jax.config.update("jax_disable_most_optimizations", True)
    row = train_row(name, config, protocol, out, lambda line: print(line, flush=True))
    write_row(out / f"{name}.json", row)
    others = [other for other in kept if other.name != name]
    row = read_row(out / f"{name}.json", protocol)
    write_page([*others, row], protocol, out, own=name, not_run=[other for other in not_run if other != name])
    print(f"{out / f'{name}.json'}\n{out / 'page.md'}")
