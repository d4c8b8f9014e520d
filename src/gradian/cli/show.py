"""`gradian show`."""

import sys
from typing import Annotated, Literal

from cyclopts import Parameter

from gradian.cli.console import ConsoleListener
from gradian.cli.flags import Json, format_of, write_text


def show(
    report: Annotated[str, Parameter(help="A report.json.")],
    *,
    format: Annotated[
        Literal["text", "markdown", "json", "html"], Parameter(help="How to show it.")
    ] = "text",
    json: Json = False,
    redact: Annotated[bool, Parameter(negative="", help="Leave out the text of rows and items.")] = False,
    output: Annotated[str | None, Parameter(name=["--output", "-o"], help="Write to this file.")] = None,
) -> int:
    """Show a report again, in any format. Needs no model and no torch."""
    from gradian.report.json_file import load_report
    from gradian.report.render import render

    loaded = load_report(report)
    color = output is None and sys.stdout.isatty()
    width = ConsoleListener(quiet=True).width_of_stdout() if output is None else None
    text = render(loaded, format_of(format, json), redact=redact, width=width, color=color)
    if output is not None:
        write_text(output, text)
    else:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
    return 0
