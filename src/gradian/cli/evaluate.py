"""`gradian evaluate`."""

import json as json_module
import sys
from typing import Annotated, Literal

from cyclopts import Parameter

from gradian.cli.console import ConsoleListener
from gradian.cli.flags import ConfigFile, Json, Quiet, format_of, settings_of, write_resolved
from gradian.config import EvaluateSettings


def evaluate(
    *,
    flags: Annotated[EvaluateSettings, Parameter(name="*")] = EvaluateSettings(),  # noqa: B008 - frozen
    config: ConfigFile = None,
    format: Annotated[
        Literal["text", "markdown", "json", "html"], Parameter(help="What to print on stdout.")
    ] = "text",
    json: Json = False,
    fail_on: Annotated[
        Literal["never", "regression"], Parameter(help="Exit with 1 on a regression.")
    ] = "never",
    quiet: Quiet = False,
) -> int:
    """Measure base against tuned on the same items: did the capability get worse, on which items, beyond noise?"""
    from gradian.evaluation.redact import redacted_result
    from gradian.report.render import render, write_report
    from gradian.verbs.evaluate import evaluate as carry_out
    from gradian.verbs.evaluate import report_of

    settings = settings_of(EvaluateSettings, flags, config)
    with ConsoleListener(quiet) as listener:
        evaluated = carry_out(settings, listener)
        report = report_of(settings, evaluated)
        if settings.out:
            written = write_report(report, settings.out, ("json", "markdown", "html"), redact=settings.redact)
            written.append(write_resolved(settings, settings.out))
            listener.say("wrote " + ", ".join(str(path) for path in written))
        shown = format_of(format, json)
        if shown == "json":
            result = redacted_result(evaluated.result) if settings.redact else evaluated.result
            text = json_module.dumps(result.model_dump(mode="json"), ensure_ascii=True, indent=2)
        else:
            text = render(
                report,
                shown,
                redact=settings.redact,
                width=listener.width_of_stdout(),
                color=sys.stdout.isatty(),
            )
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    regressed = evaluated.result.comparison.outcome == "regression"
    return 1 if regressed and fail_on == "regression" else 0
