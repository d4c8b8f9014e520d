"""The report on a terminal: plain lines of `rich.text.Text`, never markup, never wider than the console."""

from __future__ import annotations

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from gradian.report import content
from gradian.report.content import Block, Bullets, Comparisons, Facts, Notes, Prose, Section, Steps, Table
from gradian.report.model import Report
from gradian.report.sections import sections
from gradian.report.terminal_table import STYLES, fit_label, fit_table, fit_text
from gradian.report.text import code_spans, encodable, one_line, visible

SEVERITIES = {
    "error": ("✗ error", "bold red"),
    "warning": ("! warning", "bold yellow"),
    "info": ("· info", "dim"),
}
CODE = "cyan"
WIDEST_NAME = 24  # cells for the names of facts, or a third of the line where that is more


def render_terminal(report: Report, console: Console) -> None:
    """Prints the report. Colour and width are the console's; rich itself honours `NO_COLOR`."""
    page = _Page(console)
    page.line(Text.assemble(("Gradian", "bold"), "  ", one_line(report.title, 200)))
    for section in sections(report, content.TERMINAL):
        page.section(section)
    page.say_hidden()


class _Page:
    """Writes blocks to one console."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.width = console.width
        self.hidden: list[str] = []

    def line(self, text: Text, indent: int = 0) -> None:
        """One paragraph, wrapped at words, long words folded."""
        self.hanging(("", ""), text, indent)

    def hanging(self, marker: tuple[str, str], text: Text, indent: int = 0) -> None:
        """`text` after a marker (and its style), its further lines under its first."""
        mark, style = marker
        plain = encodable(text.plain, self.console.encoding)
        safe = text if plain == text.plain else Text(plain)
        mark = encodable(mark, self.console.encoding)
        room = max(8, self.width - indent - cell_len(mark))
        for index, line in enumerate(safe.wrap(self.console, room, overflow="fold")):
            line.rstrip()
            lead = (mark, style) if index == 0 else " " * cell_len(mark)
            self.console.print(Text.assemble(" " * indent, lead, line), no_wrap=True, overflow="crop")

    def section(self, section: Section) -> None:
        self.console.print()
        if section.id != "verdict":
            self.line(Text(section.title, "bold underline"))
        for block in section.blocks:
            self.block(block)

    def block(self, block: Block) -> None:
        if isinstance(block, Prose):
            self.prose(block)
        elif isinstance(block, Bullets):
            self.bullets(block)
        elif isinstance(block, Facts):
            self.facts(block)
        elif isinstance(block, Table):
            self.table(block)
        elif isinstance(block, Notes):
            self.notes(block)
        elif isinstance(block, Comparisons):
            self.comparisons(block)
        else:
            self.steps(block)

    def prose(self, block: Prose) -> None:
        for line in visible(block.text).split("\n"):
            self.line(Text(line, "bold") if block.lead else _prose(line, STYLES[block.tone]))

    def bullets(self, block: Bullets) -> None:
        if block.compact:
            self.hanging((f"{block.heading}: ", "bold"), _prose("; ".join(block.entries)))
            return
        self.heading(block.heading)
        for number, entry in enumerate(block.entries, start=1):
            self.hanging((f"{number}. " if block.numbered else "- ", ""), _prose(entry), 2)

    def facts(self, block: Facts) -> None:
        if block.compact:
            self.compact_facts(block)
            return
        self.heading(block.heading)
        longest = max(cell_len(one_line(fact.name)) for fact in block.facts)
        width = min(longest, max(WIDEST_NAME, self.width // 3))
        for fact in block.facts:
            name = fit_label(fact.name, width)
            blank = " " * (width - cell_len(name) + 2)
            note = ("  " + " ".join(visible(fact.note).split()), "dim") if fact.note else ""
            self.hanging(
                (name + blank, "dim"), Text.assemble((one_line(fact.value), STYLES[fact.tone]), note), 2
            )

    def compact_facts(self, block: Facts) -> None:
        text = Text()
        for index, fact in enumerate(block.facts):
            text.append("  ·  " if index else "", "dim")
            text.append(f"{one_line(fact.name)} ", "dim")
            text.append(one_line(fact.value), STYLES[fact.tone])
            text.append(f" ({one_line(fact.note)})" if fact.note else "", "dim")
        self.hanging((f"{block.heading}: ", "bold") if block.heading else ("", ""), text)

    def notes(self, block: Notes) -> None:
        for note in block.notes:
            word, style = SEVERITIES[note.severity]
            title = Text.assemble((one_line(note.title), "bold"), (f"  {one_line(note.id)}", "dim"))
            self.hanging((f"{word} ", style), title)
            if note.evidence:
                self.hanging(("", ""), _prose(note.evidence), 2)
            if note.fix:
                self.hanging(("fix: ", "green"), _prose(note.fix), 2)
        self.rest(block.left_out)

    def comparisons(self, block: Comparisons) -> None:
        for entry in block.comparisons:
            where = fit_text(entry.where, max(8, self.width // 2))
            room = self.width - cell_len(f"{where}  {entry.scores}  ")
            prompt = fit_text(entry.prompt, max(0, room))
            self.line(Text.assemble((where, CODE), f"  {entry.scores}  ", (prompt, "dim")))
            if entry.base_said.strip() == entry.wanted.strip():
                self.answer("wanted = base", entry.wanted, "green")
            else:
                self.answer("wanted", entry.wanted, "green")
                self.answer("base said", entry.base_said, "")
            self.answer("tuned said", entry.tuned_said, "red")
        self.rest(block.left_out)

    def answer(self, name: str, text: str, style: str) -> None:
        shown = fit_text(text, max(8, self.width - 17)) or "(empty)"
        self.line(Text.assemble((f"{name:<15}", "dim"), (shown, style)), 2)

    def steps(self, block: Steps) -> None:
        for number, step in enumerate(block.steps, start=1):
            self.hanging((f"{number}. ", "bold"), _prose(step.text))
            for command in step.commands:
                self.line(Text(one_line(command), CODE), 3)

    def table(self, block: Table) -> None:
        """The columns that fit, then how many rows there are beside these."""
        if not block.small:
            self.line(Text(block.caption, "dim"))
        fitted = fit_table(block, max(8, self.width - 2))
        for line in fitted.lines():
            self.line(line, 2)
        self.rest(block.left_out)
        if fitted.hidden:
            self.hidden.append(f"{block.name}: {', '.join(fitted.hidden)}")

    def say_hidden(self) -> None:
        """What the width of the terminal left out of the tables."""
        if self.hidden:
            columns = "; ".join(self.hidden)
            self.console.print()
            self.line(Text(f"Left out at {self.width} columns, and in report.json: {columns}.", "dim"))

    def heading(self, text: str) -> None:
        if text:
            self.line(Text(text, "bold"))

    def rest(self, text: str) -> None:
        if text:
            self.line(Text(text, "dim"), 2)


def _prose(text: str, style: str = "") -> Text:
    """One line; back-ticked pieces are code."""
    result = Text(style=style)
    for code, piece in code_spans(" ".join(visible(text).split())):
        result.append(piece, CODE if code else None)
    return result
