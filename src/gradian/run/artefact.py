"""Files of a run folder, opened with care: a size cap, one clause that says why a file cannot be used.

Knows nothing of what is in them. Everything in a run folder is untrusted: it may be huge, broken or hostile.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

#: Largest text artefact that is read. A trainer_state.json of a million logged steps is about 200 MB;
#: those in the wild are below 10 MB.
MAX_TEXT_BYTES = 256 * 1024 * 1024
#: Longest YAML text that is parsed, in characters: the parser is slow, and a configuration is a few kB.
MAX_YAML_CHARACTERS = 256 * 1024
MAX_MERGED_KEYS = 1000  # of one mapping, after its merge keys (`<<`) were followed
#: Largest configuration file that is read: a trainer's configuration is a few kB.
MAX_CONFIG_BYTES = 4 * 1024 * 1024


class ArtefactError(Exception):
    """A file of the run folder cannot be used; the message is one clause that says why."""


@dataclass(frozen=True, slots=True)
class RunProblem:
    """An artefact that could not be used, or only in part.

    Attributes:
        path: relative to the run folder.
        why: one clause, for the report.
        kind: `unreadable` (damaged, wrong format, too large, no permission), `unsafe_pickle` (refers to code
            outside the known set; nothing was executed and its values are not used) or `not_read`
            (left unopened on purpose).
    """

    path: str
    why: str
    kind: Literal["unreadable", "unsafe_pickle", "not_read"] = "unreadable"


def read_bytes(path: Path, limit: int) -> bytes:
    """The bytes of a regular file of at most `limit` bytes. Raises ArtefactError."""
    try:
        if not path.is_file():
            raise ArtefactError("is not a regular file")
        with path.open("rb") as stream:
            data = stream.read(limit + 1)
    except OSError as error:
        raise ArtefactError(f"cannot be opened ({error.strerror or error})") from None
    if len(data) > limit:
        raise ArtefactError(f"is larger than {limit // (1024 * 1024)} MB, which no trainer writes")
    return data


def read_text(path: Path, limit: int = MAX_TEXT_BYTES) -> str:
    """The text of a UTF-8 file, byte-order mark removed. Raises ArtefactError."""
    data = read_bytes(path, limit)
    if not data.strip():
        raise ArtefactError("is empty")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ArtefactError(f"is not UTF-8 (byte {error.start})") from None


def parse_json(text: str) -> Any:
    """JSON as trainers write it: bare NaN and Infinity are values. Raises ArtefactError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ArtefactError("is nested too deeply to be a trainer's file") from None
    except ValueError as error:
        raise ArtefactError(f"is not JSON ({error})") from None


def read_json_object(path: Path, limit: int = MAX_TEXT_BYTES) -> dict[str, Any]:
    """The JSON object in a file. Raises ArtefactError."""
    value = parse_json(read_text(path, limit))
    if not isinstance(value, dict):
        raise ArtefactError(f"holds a JSON {type(value).__name__}, not an object")
    return value


class ConfigLoader(yaml.SafeLoader):
    """PyYAML's safe loader, bounded: before 6.0.4 merge keys of merge keys multiply their pairs without end."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        before = len(node.value)
        super().flatten_mapping(node)
        if before < len(node.value) > MAX_MERGED_KEYS:
            raise yaml.constructor.ConstructorError(
                None, None, "merge keys make a mapping too large", node.start_mark
            )


def parse_yaml_object(text: str) -> dict[str, Any]:
    """The mapping in a YAML text, without building any object. Raises ArtefactError."""
    if len(text) > MAX_YAML_CHARACTERS:
        raise ArtefactError(
            f"is longer than {MAX_YAML_CHARACTERS // 1024} kB, which no trainer's configuration is"
        )
    try:
        value = yaml.load(text, Loader=ConfigLoader)  # noqa: S506 - a SafeLoader
    except RecursionError:
        raise ArtefactError("is nested too deeply to be a trainer's configuration") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}" if mark is not None else ""
        raise ArtefactError(
            f"is not YAML ({getattr(error, 'problem', None) or 'parse error'}{place})"
        ) from None
    except ValueError as error:  # a date such as 2024-99-99
        raise ArtefactError(f"is not YAML ({error})") from None
    if not isinstance(value, dict):
        raise ArtefactError(f"holds a YAML {type(value).__name__}, not a mapping")
    return {str(key): item for key, item in value.items()}
