"""Progress and remarks on stderr; results are for stdout alone."""

from __future__ import annotations

import shutil
import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from gradian.safe_text import one_line


class ConsoleListener:
    """A listener for people: a live bar on a terminal, a line now and then in a log. Silent with `quiet`."""

    #: Seconds between two lines of the same stage where there is no terminal.
    LINE_EVERY = 15.0

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._console = Console(stderr=True, highlight=False)
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._said_at: dict[str, float] = {}
        self._started: dict[str, tuple[float, int]] = {}

    def __enter__(self) -> ConsoleListener:
        if not self._quiet and sys.stderr.isatty():
            self._progress = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TimeRemainingColumn(compact=True),
                console=self._console,
                transient=True,
            )
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    @staticmethod
    def width_of_stdout() -> int:
        """Columns that a report may use: the terminal's, at most 120; 100 where there is none."""
        return min(120, shutil.get_terminal_size((100, 24)).columns) if sys.stdout.isatty() else 100

    def say(self, sentence: str) -> None:
        """One line."""
        if not self._quiet:
            self._console.print(one_line(sentence), markup=False, soft_wrap=True)

    def rows_read(self, file: str, rows: int) -> None:
        """How far a file has been read; how many rows it has is not known before its end."""
        if self._quiet:
            return
        if self._progress is not None:
            if file not in self._tasks:
                self._tasks[file] = self._progress.add_task(f"reading {one_line(file)}", total=None)
            self._progress.update(self._tasks[file], completed=rows)

    def progress(self, stage: str, done: int, total: int) -> None:
        """Move the stage's bar, or print a line when it is time for one."""
        if self._quiet:
            return
        stage = one_line(stage)
        if self._progress is not None:
            if stage not in self._tasks:
                self._tasks[stage] = self._progress.add_task(stage, total=total, completed=done)
            self._progress.update(self._tasks[stage], completed=done, total=total)
            return
        now = time.monotonic()
        begun, first = self._started.setdefault(stage, (now, done))
        finished = done >= total
        if finished and stage not in self._said_at and now - begun < 1:
            return  # too short to speak of
        if finished or now - self._said_at.get(stage, begun) >= self.LINE_EVERY or stage not in self._said_at:
            self._said_at[stage] = now
            left = ""
            if done > first and not finished:
                seconds = (now - begun) / (done - first) * (total - done)
                left = (
                    f", about {seconds / 60:.0f} min left"
                    if seconds >= 90
                    else f", about {seconds:.0f} s left"
                )
            self._console.print(f"{stage}: {done:,} of {total:,}{left}", markup=False, soft_wrap=True)
