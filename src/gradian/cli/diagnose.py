"""`gradian diagnose`."""

import sys
from typing import Annotated, Literal

from cyclopts import Parameter

from gradian.cli.console import ConsoleListener
from gradian.cli.flags import ConfigFile, Json, Quiet, format_of, settings_of, write_resolved, write_text
from gradian.config import DiagnoseSettings

Format = Literal["text", "json", "jsonl", "sarif", "github", "markdown"]


def diagnose(
    *,
    flags: Annotated[DiagnoseSettings, Parameter(name="*")] = DiagnoseSettings(),  # noqa: B008 - frozen
    config: ConfigFile = None,
    format: Annotated[Format, Parameter(help="What to print on stdout.")] = "text",
    json: Json = False,
    output: Annotated[
        str | None, Parameter(name=["--output", "-o"], help="Write to this file instead of stdout.")
    ] = None,
    fail_on: Annotated[
        Literal["error", "warning", "info", "never"],
        Parameter(help="Exit with 1 when there is a finding of this severity or worse."),
    ] = "error",
    exit_zero: Annotated[bool, Parameter(negative="", help="Short for --fail-on never.")] = False,
    baseline: Annotated[
        str | None, Parameter(help="Leave out the findings that this file lists (--write-baseline).")
    ] = None,
    write_baseline: Annotated[
        str | None, Parameter(name="--write-baseline", help="Write all findings of this run to this file.")
    ] = None,
    emit_fixes: Annotated[
        str | None,
        Parameter(help="Write a config patch, a cleaned copy of the rows and the list of removed rows here."),
    ] = None,
    list_checks: Annotated[bool, Parameter(negative="", help="List every check and stop.")] = False,
    quiet: Quiet = False,
) -> int:
    """Find every mechanical cause that shows without loading weights: in rows, template, config, logs, adapter file.

    Each finding comes with its evidence and the change that mends it. Nothing is printed about what is in order.
    """
    from gradian.audit.baseline import apply_baseline
    from gradian.audit.baseline import write_baseline as keep_baseline
    from gradian.audit.context import AuditInputs
    from gradian.audit.explain import list_checks as listing
    from gradian.audit.fixes import emit_fixes as write_fixes
    from gradian.audit.output.render import render
    from gradian.audit.redact import redacted_result
    from gradian.audit.runner import exit_code, run_audit

    if list_checks:
        print(listing())
        return 0
    settings = settings_of(DiagnoseSettings, flags, config)
    with ConsoleListener(quiet) as listener:
        result = run_audit(
            AuditInputs(
                dataset=settings.dataset,
                run=settings.run,
                base_model=settings.base_model,
                eval_dataset=settings.eval_dataset,
                trainer=settings.trainer,
                revision=settings.revision,
                response_marker=settings.response_marker,
            ),
            select=settings.select,
            ignore=settings.ignore,
            thresholds=settings.thresholds,
            progress=listener.rows_read,
        )
        fixable = result
        if settings.redact:
            result = redacted_result(result)
        if write_baseline:
            keep_baseline(result, write_baseline)
            listener.say(f"wrote {len(result.findings)} findings to {write_baseline}")
        if baseline:
            result = apply_baseline(result, baseline)
        if emit_fixes:  # the cleaned copy holds rows, and a patch has to hold its values
            for path in write_fixes(fixable, emit_fixes):
                listener.say(f"wrote {path}")
        if settings.out:
            write_resolved(settings, settings.out)
        to_terminal = output is None and sys.stdout.isatty()
        text = render(result, format_of(format, json), width=listener.width_of_stdout(), color=to_terminal)
    text = text if text.endswith("\n") or not text else text + "\n"
    if output:
        write_text(output, text)
    else:
        sys.stdout.write(text)
    return exit_code(result, "never" if exit_zero else fail_on)
