"""The streaming pass: read the rows once, in batches, into `DatasetFacts`.

It follows the trainer profile through `rows.tokens` and judges nothing itself.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gradian.audit.batches import Batch, in_batches, tokenized_ahead, with_tokens
from gradian.audit.columns import Columns
from gradian.audit.facts import DROPPED, SHAPES, DatasetFacts, Failure, Hits, RowView, TextTable, TokenFacts
from gradian.audit.forms import FORM_CODE, form_of, normalised
from gradian.audit.registry import RowScan
from gradian.audit.row_keys import (
    SYSTEM_ROLES,
    hash_of,
    id_hash,
    opening_hash,
    prompt_and_answer,
    with_extras,
    without_system,
)
from gradian.audit.source import Source
from gradian.errors import InputError
from gradian.rows.profile import TrainerProfile
from gradian.rows.row import Conversation, Row, RowProblem, TokenizedRow
from gradian.rows.shapes import conversation_of

if TYPE_CHECKING:
    from gradian.rows.tokenizer import Tokenizer

BATCH = 1024
#: Characters of text kept in memory for the checks that compare rows; beyond it the rows are read again.
TEXT_BUDGET = 128_000_000
SYSTEM_TEXTS = 1_000
LABELS = 200
LABEL_CHARACTERS = 60
#: Rows kept whole for the checks that try out the template: the first ones, and as many spread over the set.
SAMPLE_FIRST = 100
SAMPLE_SPREAD = 200

_SHAPE_CODE = {shape: code for code, shape in enumerate(SHAPES)}
_DROPPED_CODE = {reason: code for code, reason in enumerate(DROPPED)}

_ROW_COLUMNS = {
    "readable": ("b", 0),
    "line": ("q", 0),
    "file": ("i", 0),
    "shape": ("b", -1),
    "turns": ("i", 0),
    "system": ("b", 0),
    "prompt_hash": ("Q", 0),
    "answer_hash": ("Q", 0),
    "pair_hash": ("Q", 0),
    "prompt_chars": ("i", 0),
    "answer_chars": ("i", 0),
    "assistant_chars": ("i", 0),
    "templated": ("b", 0),
    "group": ("i", -1),
    "opening_hash": ("Q", 0),
    "id_hash": ("Q", 0),
    "form": ("b", -1),
}
_TOKEN_COLUMNS = {
    "full": ("i", -1),
    "kept": ("i", -1),
    "full_loss": ("i", -1),
    "kept_loss": ("i", -1),
    "stop": ("b", 0),
    "dropped": ("b", 0),
    "ended": ("b", 0),
    "mismatch": ("b", 0),
    "leading_bos": ("b", 0),
    "unknown": ("i", 0),
    "pad_targets": ("i", 0),
}


def collect(
    source: Source,
    *,
    tokenizer: Tokenizer | None,
    profile: TrainerProfile,
    scans: Mapping[str, RowScan],
    tokenized: Sequence[TokenizedRow] | None = None,
    progress: Callable[[str, int], None] | None = None,
    batch: int = BATCH,
) -> DatasetFacts:
    """Read a data set into columns.

    Args:
        source: the records.
        tokenizer: None leaves the token counts out.
        profile: how the trainer turns rows into tokens.
        scans: check id -> a function of one row.
        tokenized: the rows' tokens where another lane has made them already, one for each record.
        batch: rows that are tokenised together; the result does not depend on it.

    Raises:
        InputError: the source is missing, empty or not readable.
    """
    collector = _Collector(source=source, tokenizer=tokenizer, scans=scans)
    if tokenized is None:
        batches = tokenized_ahead(in_batches(source.records(), batch), tokenizer, profile)
    else:
        batches = with_tokens(in_batches(source.records(), batch), tokenized)
    for current in batches:
        collector.add(current)
        if progress is not None:
            progress(source.path, collector.columns.rows)
    return collector.facts()


class _Collector:
    """Builds `DatasetFacts` batch by batch."""

    def __init__(self, *, source: Source, tokenizer: Tokenizer | None, scans: Mapping[str, RowScan]) -> None:
        self.source = source
        self.tokenizer = tokenizer
        # Checks that share a scan share its hits: it runs once for each row.
        self.scans = {scan: Hits() for scan in scans.values()}
        self.hits = {id: self.scans[scan] for id, scan in scans.items()}
        self.columns = Columns(_ROW_COLUMNS)
        self.tokens = Columns(_TOKEN_COLUMNS)
        self.any_tokens = tokenizer is not None
        self.files: dict[str, int] = {}
        self.groups: dict[str, int] = {}
        self.problems: list[RowProblem] = []
        self.unusable: dict[str, list[int]] = {}
        self.failures: dict[str, list[int]] = {}
        self.systems = TextTable(SYSTEM_TEXTS)
        self.answers = TextTable(LABELS)
        self.texts: list[tuple[int, str, str]] | None = []
        self.characters = 0
        self.first: list[RowView] = []
        self.spread: list[tuple[int, int, RowView]] = []

    def add(self, batch: Batch) -> None:
        for position, record in enumerate(batch.records):
            self.columns.append()
            self.tokens.append()
            file = self.files.setdefault(record.file, len(self.files))
            self.columns.set_last(line=record.line or 0, file=file)
            if isinstance(record, RowProblem):
                self.problems.append(record)
            elif position in batch.unusable:
                self.unusable.setdefault(batch.unusable[position], []).append(record.row)
            else:
                self._add_row(record, batch.conversations[position], batch.tokens.get(position))
                if position in batch.failures:
                    self.failures.setdefault(batch.failures[position], []).append(record.row)

    def _add_row(self, row: Row, conversation: Conversation, tokens: TokenizedRow | None) -> None:
        start, plain = conversation.answer_start, conversation.plain_text
        view = RowView(
            row=row,
            conversation=conversation,
            start=start,
            prompt="\n".join(turn.text for turn in conversation.turns[:start]),
            answer=plain
            if plain is not None
            else "\n".join(turn.text for turn in conversation.turns[start:]),
            tokens=tokens,
        )
        prompt, answer = with_extras(conversation, start, view.prompt, view.answer)
        has_system = bool(conversation.turns) and conversation.turns[0].role in SYSTEM_ROLES
        prompt_key, answer_key = normalised(prompt), normalised(answer)
        self.columns.set_last(
            readable=1,
            shape=_SHAPE_CODE[conversation.shape],
            turns=len(conversation.turns),
            system=has_system,
            prompt_hash=hash_of(prompt_key),
            answer_hash=hash_of(answer_key),
            pair_hash=hash_of(f"{prompt_key}\x00{answer_key}"),
            prompt_chars=len(prompt),
            answer_chars=len(answer),
            assistant_chars=sum(len(turn.text) for turn in conversation.turns if turn.role == "assistant"),
            templated=conversation.templated,
            group=-1 if row.group is None else self.groups.setdefault(row.group, len(self.groups)),
            opening_hash=opening_hash(conversation),
            id_hash=id_hash(row),
            form=FORM_CODE[form_of(view.answer)],
        )
        if has_system:
            self.systems.add(conversation.turns[0].text.strip(), row.row)
        if answer_key and len(answer_key) <= LABEL_CHARACTERS:
            self.answers.add(answer_key, row.row)
        if tokens is not None:
            self._add_tokens(tokens)
        for scan, hits in self.scans.items():
            hit = scan(view)
            if hit is not None:
                hits.add(row.row, hit)
        if has_system:
            prompt, _ = with_extras(conversation, start, without_system(conversation, start), answer)
        self._keep(view, prompt, answer)

    def _add_tokens(self, tokens: TokenizedRow) -> None:
        ids, tokenizer = tokens.ids, self.tokenizer
        self.any_tokens = True
        kept_loss = tokens.loss_tokens
        self.tokens.set_last(
            full=tokens.full_tokens,
            kept=len(ids),
            full_loss=tokens.full_loss_tokens,
            kept_loss=kept_loss,
            stop=tokens.ends_with_stop,
            dropped=_DROPPED_CODE.get(tokens.dropped or "", len(DROPPED) - 1),
            mismatch=tokens.boundary_mismatch,
        )
        if tokenizer is None or len(ids) < 2:
            return
        if int(ids[-1]) in tokenizer.stop_ids:
            self.tokens.set_last(ended=1)
        bos, unknown, pad = tokenizer.bos_token_id, tokenizer.unk_token_id, tokenizer.pad_token_id
        if bos is not None and ids[0] == bos:
            self.tokens.set_last(leading_bos=1 + int(ids[1] == bos))
        if unknown is not None:
            self.tokens.set_last(unknown=int(np.count_nonzero(ids == unknown)))
        # Trainers that find no pad token pad with EOS.
        pad = tokenizer.eos_token_id if pad is None else pad
        if pad is not None:
            self.tokens.set_last(pad_targets=int(np.count_nonzero(ids[tokens.loss_mask] == pad)))

    def _keep(self, view: RowView, prompt: str, answer: str) -> None:
        if self.texts is not None:
            self.characters += len(prompt) + len(answer)
            self.texts.append((view.row.row, prompt, answer))
            if self.characters > TEXT_BUDGET:
                self.texts = None
        if len(self.first) < SAMPLE_FIRST:
            self.first.append(view)
            return
        rank = -_scrambled(view.row.row)
        if len(self.spread) < SAMPLE_SPREAD:
            heapq.heappush(self.spread, (rank, view.row.row, view))
        elif rank > self.spread[0][0]:
            heapq.heapreplace(self.spread, (rank, view.row.row, view))

    def facts(self) -> DatasetFacts:
        if self.columns.rows == 0:
            raise InputError("there are no rows", where=self.source.path, fix="check the path")
        sha256, size = self.source.digest()
        column = self.columns.array
        spread = sorted((view for _, _, view in self.spread), key=lambda view: view.row.row)
        return DatasetFacts(
            path=self.source.path,
            rows=self.columns.rows,
            problems=tuple(self.problems),
            readable=column("readable").astype(bool),
            line=column("line"),
            file=column("file"),
            files=tuple(self.files),
            shape=column("shape"),
            turns=column("turns"),
            system=column("system").astype(bool),
            prompt_hash=column("prompt_hash"),
            answer_hash=column("answer_hash"),
            pair_hash=column("pair_hash"),
            prompt_chars=column("prompt_chars"),
            answer_chars=column("answer_chars"),
            assistant_chars=column("assistant_chars"),
            templated=column("templated").astype(bool),
            group=column("group"),
            groups=tuple(self.groups),
            opening_hash=column("opening_hash"),
            id_hash=column("id_hash"),
            form=column("form"),
            unusable=[Failure(message, rows) for message, rows in self.unusable.items()],
            render_failures=[Failure(message, rows) for message, rows in self.failures.items()],
            hits=self.hits,
            systems=self.systems,
            answers=self.answers,
            tokens=self._token_facts(),
            texts=self._reader(),
            conversations=lambda: _read_again(self.source),
            sample=(*self.first, *spread),
            sha256=sha256,
            bytes=size,
        )

    def _token_facts(self) -> TokenFacts | None:
        if not self.any_tokens:
            return None
        flags = {"stop", "ended", "mismatch"}
        arrays = {name: self.tokens.array(name) for name in _TOKEN_COLUMNS}
        return TokenFacts(
            **{name: arrays[name].astype(bool) if name in flags else arrays[name] for name in arrays}
        )

    def _reader(self) -> Callable[[], Iterator[tuple[int, str, str]]]:
        kept = self.texts
        if kept is not None:
            return lambda: iter(kept)
        return lambda: (
            (row, *prompt_and_answer(conversation)) for row, conversation in _read_again(self.source)
        )


def _read_again(source: Source) -> Iterator[tuple[int, Conversation]]:
    for record in source.records():
        if isinstance(record, Row):
            try:
                conversation = conversation_of(record)
            except InputError:
                continue  # counted in the first pass
            yield record.row, conversation


def _scrambled(row: int) -> int:
    """A fixed pseudo-random rank of a row number (the finaliser of splitmix64), so that the sample is spread
    over the whole set and is the same in every run."""
    value = (row + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return value ^ (value >> 31)
