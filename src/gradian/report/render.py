"""One table of formats: a report to text, and to files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable
from io import StringIO
from pathlib import Path

from rich.console import Console

from gradian.errors import ConfigError, InputError
from gradian.report.html import render_html
from gradian.report.json_file import to_json
from gradian.report.markdown import render_markdown
from gradian.report.model import Report
from gradian.report.redact import redacted
from gradian.report.terminal import render_terminal

DEFAULT_WIDTH = 100
FILE_NAMES = {"text": "report.txt", "markdown": "report.md", "json": "report.json", "html": "report.html"}


def _text(report: Report, width: int, color: bool) -> str:
    page = StringIO()
    console = Console(
        file=page, width=width, force_terminal=color, color_system="standard" if color else None,
        no_color=not color, legacy_windows=False, force_jupyter=False, _environ={},
    )  # fmt: skip
    render_terminal(report, console)
    return page.getvalue()


RENDERERS: dict[str, Callable[[Report, int, bool], str]] = {
    "text": _text,
    "markdown": lambda report, width, color: render_markdown(report),
    "json": lambda report, width, color: to_json(report).decode("utf-8"),
    "html": lambda report, width, color: render_html(report),
}


def render(
    report: Report, format: str, *, redact: bool = False, width: int | None = None, color: bool = False
) -> str:
    """The report in one format: `text`, `markdown`, `json` or `html`.

    Args:
        redact: leave out the text of rows and items.
        width: cells of a terminal line (`text` only); 100 when not given.
        color: ANSI colour (`text` only); never when the environment has a non-empty `NO_COLOR`.

    Raises:
        ConfigError: there is no such format.
    """
    renderer = _renderer(format)
    colored = color and not os.environ.get("NO_COLOR")
    return renderer(
        redacted(report) if redact else report, DEFAULT_WIDTH if width is None else width, colored
    )


def write_report(
    report: Report, folder: str | Path, formats: Iterable[str], *, redact: bool = False
) -> list[Path]:
    """Writes `report.json`, `report.html`, ... into the folder, each file whole or not at all.

    Returns:
        the paths, in the order of `formats`; a format that is named twice is written once.

    Raises:
        ConfigError: there is no such format; nothing was written.
        InputError: a file cannot be written; the message names what was and what was not.
    """
    wanted = list(dict.fromkeys(formats))
    texts = {format: render(report, format, redact=redact) for format in wanted}
    written: list[Path] = []
    for format in wanted:
        path = Path(folder) / FILE_NAMES[format]
        try:
            _write_whole(path, texts[format].encode("utf-8"))
        except OSError as error:
            missing = [FILE_NAMES[name] for name in wanted[len(written) :]]
            done = f"; written: {', '.join(path.name for path in written)}" if written else ""
            raise InputError(
                "the report cannot be written",
                where=str(path),
                why=f"{error.strerror or error}; not written: {', '.join(missing)}{done}",
                fix="free space or choose another folder, then run the command again",
            ) from error
        written.append(path)
    return written


def _renderer(format: str) -> Callable[[Report, int, bool], str]:
    if format not in RENDERERS:
        known = ", ".join(RENDERERS)
        raise ConfigError(f"there is no format {format!r}", where="--format", fix=f"choose one of {known}")
    return RENDERERS[format]


def _write_whole(path: Path, data: bytes) -> None:
    """Through a temporary file beside it, so that a reader never sees half a report."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp makes it private; a report is like any other file
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
