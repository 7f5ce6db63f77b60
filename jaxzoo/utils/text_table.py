"""Text for the terminal: tables whose columns line up, durations."""

from collections.abc import Iterable, Sequence

from jaxzoo.utils.screen import printable


def padded(rows: Sequence[Sequence[str]], left: int = 1) -> Iterable[list[str]]:
    """Rows of cells as wide as their columns; text of the first `left` columns to the left, of the others to the
    right."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        places = enumerate(zip(row, widths, strict=True))
        yield [cell.ljust(width) if i < left else cell.rjust(width) for i, (cell, width) in places]


def text_table(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Rows of cells as lines of text, columns two spaces apart."""
    return "\n".join("  ".join(row).rstrip() for row in padded(rows, left))


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns line up, numbers to the right; its first row is the heading."""
    heading, *body = padded([[cell.replace("|", "\\|") for cell in row] for row in rows])
    first, *others = ("-" * len(cell) for cell in heading)
    rule = [first, *(f"{dashes[1:]}:" for dashes in others)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (heading, rule, *body))


def duration(seconds: float) -> str:
    """`45s`, `3m20s`, `2h05m`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"
