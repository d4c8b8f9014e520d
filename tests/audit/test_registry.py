"""The table of checks: complete, selectable, explained."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from gradian.audit.causes import CONSEQUENCES, SAME_ROWS, attach_consequences
from gradian.audit.finding import Finding, Severity
from gradian.audit.registry import FAMILIES, Need, all_checks, checked_thresholds, find_check, selected_checks
from gradian.errors import ConfigError

MINE = ("data.", "template.", "token.", "eval.")


def test_ids_are_sorted_unique_and_of_a_family() -> None:
    ids = [check.id for check in all_checks()]
    assert ids == sorted(set(ids))
    assert all(re.fullmatch(r"[a-z]+\.[a-z0-9_]+", id) for id in ids)
    assert {check.family for check in all_checks()} <= set(FAMILIES)
    assert sum(id.startswith(MINE) for id in ids) >= 45


@pytest.mark.parametrize("check", all_checks(), ids=lambda check: check.id)
def test_every_check_explains_itself(check: object) -> None:
    entry = find_check(getattr(check, "id"))  # noqa: B009
    assert len(entry.explain) > 120, "an explanation says what it means and why it hurts"
    assert entry.title
    assert not entry.title.endswith(".")
    assert entry.function.__name__ != "<lambda>"
    if entry.scan is not None:
        assert Need.ROWS in entry.needs or Need.TOKENS in entry.needs, "a scan needs rows"


def test_aliases_select_and_explain() -> None:
    assert find_check("template.run_base_mismatch").id == "run.chat_template_mismatch"
    assert [check.id for check in selected_checks(["template.run_base_mismatch"])] == [
        "run.chat_template_mismatch"
    ]


def test_selection_by_prefix() -> None:
    chosen = [check.id for check in selected_checks(["data.json", "token."], ["token.pad"])]
    assert "data.json_unparseable" in chosen
    assert "token.missing_eos" in chosen
    assert not [id for id in chosen if id.startswith("token.pad")]
    assert len(selected_checks()) == len(all_checks())


@pytest.mark.parametrize(
    ("wrong", "near"),
    [("data.truncated_completon", "data.truncated_completion"), ("missing_eos", "token.missing_eos")],
)
def test_unknown_ids_are_errors_with_the_nearest(wrong: str, near: str) -> None:
    for act in (
        lambda: selected_checks([wrong]),
        lambda: selected_checks([], [wrong]),
        lambda: find_check(wrong),
    ):
        with pytest.raises(ConfigError) as error:
            act()
        assert near in str(error.value)


def test_an_empty_prefix_selects_nothing() -> None:
    with pytest.raises(ConfigError):
        selected_checks([""])


def test_thresholds_are_checked() -> None:
    known = checked_thresholds({"data.truncated_completion.error_share": 0.5})
    assert known["data.truncated_completion.error_share"] == 0.5
    assert known["data.duplicate_rows.error_share"] == 0.2
    with pytest.raises(ConfigError, match=r"data\.truncated_completion\.error_share"):
        checked_thresholds({"data.truncated_completion.eror_share": 0.5})
    for wrong in (True, "0.5", float("nan")):
        with pytest.raises(ConfigError, match="must be a number"):
            checked_thresholds({"data.truncated_completion.error_share": wrong})  # type: ignore[dict-item]


def test_the_table_of_causes_names_checks() -> None:
    known = {check.id for check in all_checks()}
    named = set(CONSEQUENCES) | {id for ids in CONSEQUENCES.values() for id in ids} | SAME_ROWS
    assert named <= known, f"no check has these ids: {sorted(named - known)}"
    for cause, consequences in CONSEQUENCES.items():
        assert cause not in consequences


def _finding(id: str, rows: tuple[int, ...] = (), *, count: int = 9, of: int = 10) -> Finding:
    return Finding(id=id, severity=Severity.ERROR, title=id, rows=rows, count=count, of=of)


def test_chains_end_at_their_first_cause() -> None:
    found = attach_consequences(
        [_finding("adapter.zero_b"), _finding("logs.loss_zero"), _finding("data.no_trainable_tokens")]
    )
    assert [finding.follows_from for finding in found] == ["data.no_trainable_tokens"] * 2 + [None]
    assert found[2].consequences == ("adapter.zero_b", "logs.loss_zero")


def test_a_few_rows_do_not_explain_what_happens_to_the_whole_run() -> None:
    few = _finding("data.no_trainable_tokens", (3,), count=1, of=1000)
    found = attach_consequences([few, _finding("adapter.zero_b"), _finding("logs.loss_zero")])
    assert [finding.follows_from for finding in found] == [None, "logs.loss_zero", None]


def test_consequences_about_other_rows_stand_alone() -> None:
    cause = _finding("data.role_order", (1, 2, 3))
    assert (
        attach_consequences([cause, _finding("data.last_turn_not_assistant", (2, 3))])[1].follows_from
        == cause.id
    )
    assert (
        attach_consequences([cause, _finding("data.last_turn_not_assistant", (3, 4))])[1].follows_from is None
    )


def test_the_audit_imports_no_torch() -> None:
    code = (
        "import sys; from gradian.audit.registry import all_checks; import gradian.audit.diagnosis, "
        "gradian.audit.output, gradian.audit.collect; all_checks(); "
        "print([name for name in ('torch', 'transformers', 'sklearn', 'pyarrow', 'scipy') if name in "
        "sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"
