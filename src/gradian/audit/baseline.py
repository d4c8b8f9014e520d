"""Findings that are known already: a file of fingerprints, so that a later audit only reports what is new."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradian.audit.finding import Finding, Severity
from gradian.errors import InputError
from gradian.version import __version__

if TYPE_CHECKING:
    from gradian.audit.runner import AuditResult

SCHEMA_VERSION = 1


def write_baseline(result: AuditResult, path: str | Path) -> None:
    """Write every finding of a result as known. Replaces an older baseline in one step.

    Raises:
        InputError: the file cannot be written.
    """
    entries = [
        {
            "fingerprint": f.fingerprint,
            "id": f.id,
            "severity": f.severity.value,
            "count": f.count,
            "title": f.title,
        }
        for f in (*result.findings, *result.known)
    ]
    entries.sort(key=lambda entry: (str(entry["id"]), str(entry["fingerprint"])))
    content = {"schema_version": SCHEMA_VERSION, "tool": f"gradian {__version__}", "findings": entries}
    write_atomically(Path(path), json.dumps(content, indent=2, ensure_ascii=True).encode() + b"\n")


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file beside its place and move it there.

    Raises:
        InputError: the folder does not exist, the disk is full, or writing is not allowed.
    """
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as opened:
            temporary = opened.name
            opened.write(data)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
        raise InputError(
            "the file cannot be written", where=str(path), why=error.strerror or str(error)
        ) from None


def apply_baseline(result: AuditResult, path: str | Path) -> AuditResult:
    """The result without what the baseline knows.

    A finding is known when its fingerprint is in the file and it has not grown: neither more is affected nor
        is it
    more severe than it was.

    Raises:
        InputError: the file is missing or is no baseline.
    """
    known = _read(Path(path))
    kept: list[Finding] = []
    left: list[Finding] = []
    for finding in result.findings:
        entry = known.get((finding.id, finding.fingerprint))
        if entry is not None and not _grown(finding, entry):
            left.append(finding)
            continue
        if entry is not None:
            note = f"The baseline knows {entry['count']:,} of these {finding.count:,}."
            finding = finding.model_copy(update={"message": f"{finding.message} {note}".strip()})
        kept.append(finding)
    ids = {finding.id for finding in kept}
    findings = [
        finding.model_copy(
            update={
                "consequences": tuple(id for id in finding.consequences if id in ids),
                "follows_from": finding.follows_from if finding.follows_from in ids else None,
            }
        )
        for finding in kept
    ]
    return replace(result, findings=tuple(findings), known=tuple(left))


def _grown(finding: Finding, entry: Mapping[str, Any]) -> bool:
    return finding.count > entry["count"] or finding.severity.rank < Severity(entry["severity"]).rank


def _read(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InputError(
            "the baseline cannot be read",
            where=str(path),
            why=error.strerror,
            fix="write one with --write-baseline FILE",
        ) from None
    except ValueError as error:
        raise InputError("the baseline is no JSON", where=str(path), why=str(error)) from None
    version = content.get("schema_version") if isinstance(content, dict) else None
    if version != SCHEMA_VERSION:
        raise InputError(
            "the file is no baseline of this version",
            where=str(path),
            why=f"schema_version is {version!r}, and {SCHEMA_VERSION} is read",
            fix="write it again with --write-baseline FILE",
        )
    try:
        return {
            (str(entry["id"]), str(entry["fingerprint"])): {
                "count": int(entry["count"]),
                "severity": Severity(entry["severity"]).value,
            }
            for entry in content["findings"]
        }
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            "the baseline is damaged", where=str(path), why=f"{type(error).__name__}: {error}"
        ) from None
