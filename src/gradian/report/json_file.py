"""`report.json`: the report for programs, and the way back.

The bytes depend on the report alone: fields in the order of the model, `timings` last, two spaces of indent.
What JSON has no number for is written as `"NaN"`, `"Infinity"` and `"-Infinity"`; `load_report` reads them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from gradian.errors import InputError
from gradian.report.model import SCHEMA_VERSION, Report
from gradian.report.text import one_line

MAKE_AGAIN = "give the report.json that `gradian attribute` wrote, or run it again"
LONE_SURROGATES = {code: f"\\u{code:04x}" for code in range(0xD800, 0xE000)}


def to_json(report: Report) -> bytes:
    """The report as UTF-8 JSON with a line break at the end; equal reports give equal bytes."""
    fields = _representable(report.model_dump(by_alias=True))
    fields["timings"] = fields.pop("timings")
    text = json.dumps(fields, ensure_ascii=False, indent=2, allow_nan=False)
    return text.encode("utf-8") + b"\n"


def _representable(value: Any) -> Any:
    """The value in the types of JSON.

    Lone surrogates are spelled out and non-finite numbers become text. The values of findings and of the
    configuration may be of any type: numpy's scalars become numbers, everything else (paths, dates) its text.
    """
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str):
        return value.translate(LONE_SURROGATES)
    if isinstance(value, np.generic):
        return _representable(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else _not_finite(value)
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, Mapping):
        return {_representable(str(key)): _representable(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_representable(entry) for entry in value]
    return _representable(str(value))


def _not_finite(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def load_report(path: str | Path) -> Report:
    """The report in a file that `to_json` wrote.

    Raises:
        InputError: the file cannot be read, is not JSON, is not a report, or is of a newer Gradian; the
            message names the first field that is wrong.
    """
    fields = _object(Path(path))
    where = str(path)
    version = fields.get("schema_version")
    if "verdict" not in fields:
        kind = "it looks like the output of `gradian diagnose`" if "checks" in fields else "it has no verdict"
        raise InputError("this is not a report", where=where, why=kind, fix=MAKE_AGAIN)
    if isinstance(version, bool) or not isinstance(version, int):
        why = f"schema_version is {one_line(json.dumps(version), 40)}, not a whole number"
        raise InputError("the report does not say its version", where=where, why=why, fix=MAKE_AGAIN)
    if version > SCHEMA_VERSION:
        why = f"it has schema_version {version}; this Gradian reads up to {SCHEMA_VERSION}"
        raise InputError(
            "the report was made by a newer Gradian", where=where, why=why, fix="upgrade Gradian"
        )
    try:
        return Report.model_validate(fields)
    except ValidationError as error:
        raise _field_error(error, where) from None


def _object(path: Path) -> dict[str, Any]:
    where = str(path)
    if path.is_dir():
        raise InputError(
            "this is a folder", where=where, why="a report is one file", fix=f"give {path / 'report.json'}"
        )
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise InputError("there is no such file", where=where, fix=MAKE_AGAIN) from None
    except (OSError, ValueError) as error:
        why = one_line(str(getattr(error, "strerror", None) or error))
        raise InputError("the report cannot be read", where=where, why=why) from None
    if not data.strip():
        raise InputError("the file is empty", where=where, fix=MAKE_AGAIN)
    try:
        fields = json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        why = f"byte {error.start:,} is not UTF-8"
        raise InputError("the report is not text", where=where, why=why, fix=MAKE_AGAIN) from None
    except json.JSONDecodeError as error:
        where = f"{path}:{error.lineno}"
        raise InputError("the report is not JSON", where=where, why=error.msg, fix=MAKE_AGAIN) from None
    except (RecursionError, ValueError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InputError(
            "the report is not JSON that can be read", where=where, why=why, fix=MAKE_AGAIN
        ) from None
    if not isinstance(fields, dict):
        why = f"it holds a {type(fields).__name__} where a report is an object"
        raise InputError("this is not a report", where=where, why=why, fix=MAKE_AGAIN)
    return fields


def _field_error(error: ValidationError, where: str) -> InputError:
    """One message for the first wrong field, with how many others there are."""
    details = error.errors(include_url=False, include_input=False, include_context=False)
    field = _field_name(details[0]["loc"])
    more = f" ({len(details) - 1} more)" if len(details) > 1 else ""
    if details[0]["type"] == "extra_forbidden":
        return InputError(
            f"the field {field} is not known", where=where,
            why=f"the file was edited, or written by a newer Gradian{more}", fix="upgrade Gradian",
        )  # fmt: skip
    what = f"the field {field} cannot be used"
    return InputError(what, where=where, why=f"{one_line(details[0]['msg'], 200)}{more}", fix=MAKE_AGAIN)


def _field_name(parts: tuple[int | str, ...]) -> str:
    """`groups[3].share`."""
    name = ""
    for part in parts:
        name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else part
    return one_line(name, 120) or "(the whole report)"
