"""The printer of parallel texts. Kills: texts that mix on the screen."""

import io

from jaxzoo.cli.generate import Printer


def test_the_first_open_text_streams_and_the_others_wait():
    """Kills: texts interleaved on the screen, a text that waits although its turn has come."""
    stream = io.StringIO()
    printer = Printer(stream, ["A", "B", "C"])
    shown = "==> prompt 1 <==\nA"
    assert stream.getvalue() == shown
    printer.write(1, "b1")
    printer.write(0, "a1")
    assert stream.getvalue() == (shown := shown + "a1")
    printer.end(2, "c")
    printer.write(1, "b2")
    assert stream.getvalue() == shown
    printer.end(0, "a2")
    assert stream.getvalue() == (shown := shown + "a2\n\n==> prompt 2 <==\nBb1b2")
    printer.end(0)
    printer.write(1, "b3")
    assert stream.getvalue() == (shown := shown + "b3")
    printer.end(1)
    assert stream.getvalue() == shown + "\n\n==> prompt 3 <==\nCc\n"
