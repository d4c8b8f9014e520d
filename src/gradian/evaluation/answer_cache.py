"""Generated answers on disk, batch by batch, so that a killed evaluation goes on where it stopped.

JSON lines: a header with the digest of everything that decides an answer, then one line a batch. A file of
another header is started anew; a damaged last line, as a kill leaves it, is cut off.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradian.errors import InputError
from gradian.evaluation.generation import Generation

_FORMAT = 1


def header_of(prompts: Sequence[Sequence[int]], **decides: Any) -> str:
    """Digest of the prompts and of everything else that decides what a model says to them."""
    document = {"format": _FORMAT, "prompts": [list(prompt) for prompt in prompts], **decides}
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


class AnswerCache:
    """The answers of both arms.

    Raises:
        InputError: the file cannot be read or written.
    """

    def __init__(self, path: str | Path, header: str) -> None:
        self._path = Path(path)
        self._answers: dict[str, dict[int, Generation]] = {}
        try:
            whole = self._read(header)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # Written back as far as it is whole: a new line must not be glued to half of an old one.
            if not whole:
                self._path.write_text(json.dumps({"header": header}) + "\n", encoding="ascii")
            elif whole < self._path.stat().st_size:
                with self._path.open("r+b") as file:
                    file.truncate(whole)
        except OSError as error:
            raise self._failure("used", error) from None

    def answers(self, arm: str) -> Mapping[int, Generation]:
        """The known answers of an arm, by item."""
        return self._answers.get(arm, {})

    def add(self, arm: str, answers: Mapping[int, Generation]) -> None:
        """Keep the answers of one batch."""
        entries = [[item, list(answer.ids), answer.stop_id] for item, answer in sorted(answers.items())]
        try:
            with self._path.open("a", encoding="ascii") as file:
                file.write(json.dumps({"arm": arm, "answers": entries}) + "\n")
        except OSError as error:
            raise self._failure("written", error) from None

    def _read(self, header: str) -> int:
        """Take in every whole line; the bytes that they fill, 0 when the file is of other inputs."""
        if not self._path.exists():
            return 0
        whole = 0
        with self._path.open("rb") as file:
            for number, line in enumerate(file):
                if not self._take_in(line, header if number == 0 else None):
                    break
                whole += len(line)
        return whole

    def _take_in(self, line: bytes, header: str | None) -> bool:
        """False for a line that is damaged or does not belong to this evaluation."""
        if not line.endswith(b"\n"):
            return False
        try:
            entry = json.loads(line)
            if header is not None:
                return bool(entry["header"] == header)
            arm = self._answers.setdefault(str(entry["arm"]), {})
            fresh = {
                int(item): Generation(tuple(map(int, ids)), None if stop is None else int(stop))
                for item, ids, stop in entry["answers"]
            }
        except (ValueError, KeyError, TypeError, RecursionError):
            return False
        arm.update(fresh)
        return True

    def _failure(self, verb: str, error: OSError) -> InputError:
        return InputError(
            f"the cache of answers cannot be {verb}",
            where=str(self._path),
            why=error.strerror or str(error),
            fix="give a place that can be written, with room on the disk",
        )
