"""Where the files of a run lie: the folder itself, its adapter subfolders, its checkpoints, the run around
it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from gradian.run.adapter import has_adapter
from gradian.run.artefact import RunProblem

CHECKPOINT = re.compile(r"^(?:checkpoint|epoch|step)[-_](\d+)$")
MAX_ENTRIES = 2000  # of a folder listing; a run folder has dozens
OUTSIDE = ".."


@dataclass(frozen=True, slots=True)
class Place:
    """A folder that may hold files of the run; `name` is relative to the run folder.

    `step` is set for checkpoints. `around` is True for the run folder around a checkpoint or an adapter that
    was
    given by itself: its log and its adapter belong to the whole run, not to the folder given.
    """

    path: Path
    name: str
    step: int | None = None

    @property
    def around(self) -> bool:
        return self.name == OUTSIDE


@dataclass(frozen=True)
class Places:
    """The places of a run, the most telling first, and the names at the top of the folder, sorted."""

    all: tuple[Place, ...]
    entries: tuple[str, ...]
    problems: tuple[RunProblem, ...] = field(default=())

    @property
    def checkpoints(self) -> tuple[Place, ...]:
        """The checkpoints, by step."""
        found = [place for place in self.all if place.step is not None and place.name != "."]
        return tuple(sorted(found, key=lambda place: (place.step or 0, place.name)))


def find_places(folder: Path) -> Places:
    """The folder, subfolders with an adapter, the checkpoints from the last to the first, the run around
    it.
    """
    entries, problems = _entries(folder)
    subfolders: list[Place] = []
    checkpoints: list[Place] = []
    for name in entries:
        path = folder / name
        match = CHECKPOINT.match(name)
        if match and path.is_dir():
            checkpoints.append(Place(path, name, int(match[1])))
        elif path.is_dir() and has_adapter(path):
            subfolders.append(Place(path, name))
    checkpoints.sort(key=lambda place: (-(place.step or 0), place.name))
    own = CHECKPOINT.match(folder.resolve().name)
    places = [Place(folder, ".", int(own[1]) if own else None), *subfolders, *checkpoints]
    if _is_part_of_run(folder):
        places.append(Place(folder.resolve().parent, OUTSIDE))
    return Places(tuple(places), tuple(entries), tuple(problems))


def _entries(folder: Path) -> tuple[list[str], list[RunProblem]]:
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        return [], [RunProblem(".", f"cannot be listed ({error.strerror or error})")]
    if len(names) <= MAX_ENTRIES:
        return names, []
    why = f"holds {len(names)} entries, only the first {MAX_ENTRIES} by name were looked at"
    return names[:MAX_ENTRIES], [RunProblem(".", why, "not_read")]


def _is_part_of_run(folder: Path) -> bool:
    """True for a checkpoint, and for an adapter folder beside a trainer's state or checkpoints."""
    resolved = folder.resolve()
    if CHECKPOINT.match(resolved.name):
        return True
    if not has_adapter(folder) or (folder / "trainer_state.json").exists():
        return False
    if (resolved.parent / "trainer_state.json").is_file():
        return True
    siblings, _ = _entries(resolved.parent)
    return any(CHECKPOINT.match(name) for name in siblings)
