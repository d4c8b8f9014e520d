"""`gradian attribute`."""

import sys
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from gradian.cli.console import ConsoleListener
from gradian.cli.flags import ConfigFile, Json, Quiet, format_of, settings_of, write_resolved
from gradian.config import Config

if TYPE_CHECKING:
    from gradian.report.model import Report

DEFAULT_FOLDER = "reports"
FILES = ("json", "markdown", "html")


def attribute(
    *,
    flags: Annotated[Config, Parameter(name="*")] = Config(),  # noqa: B008 - frozen, and cyclopts needs the value
    config: ConfigFile = None,
    format: Annotated[
        Literal["text", "markdown", "json", "html"], Parameter(help="What to print on stdout.")
    ] = "text",
    json: Json = False,
    fail_on: Annotated[
        Literal["never", "regression", "error", "warning"],
        Parameter(help="Exit with 1 on a regression, or also on audit findings of this severity."),
    ] = "never",
    quiet: Quiet = False,
) -> int:
    """Say what broke a fine-tune: measure the regression, audit the run, attribute it to rows, report.

    The first run computes the gradient of every row and keeps it; the same question again is answered from disk.
    """
    from gradian.report.render import render, write_report
    from gradian.verbs.attribute import attribute as carry_out

    settings = settings_of(Config, flags, config)
    with ConsoleListener(quiet) as listener:
        report = carry_out(settings, listener)
        folder = settings.out or DEFAULT_FOLDER
        written = write_report(report, folder, FILES, redact=settings.redact)
        written.append(write_resolved(settings.model_copy(update={"out": folder}), folder))
        color = sys.stdout.isatty()
        text = render(
            report,
            format_of(format, json),
            redact=settings.redact,
            width=listener.width_of_stdout(),
            color=color,
        )
        listener.say("wrote " + ", ".join(str(path) for path in written))
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    return 1 if _fails(report, fail_on) else 0


def _fails(report: "Report", fail_on: str) -> bool:
    if fail_on == "never":
        return False
    ranks = {"error": 0, "warning": 1}
    if fail_on in ranks and any(finding.severity.rank <= ranks[fail_on] for finding in report.findings):
        return True
    return bool(report.verdict.outcome.value == "regression")
