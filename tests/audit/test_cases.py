"""The reproduction cases: what must be raised, and what must not, as each EXPECT.md says."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gradian.audit.context import AuditInputs
from gradian.audit.diagnosis import diagnose
from gradian.audit.finding import Finding
from gradian.audit.runner import AuditResult, exit_code
from support.auditing import FIXTURES

CASES = FIXTURES / "cases"


@dataclass(frozen=True)
class Raised:
    """A finding that must be there: its severity, pieces of its text, and its rows."""

    severity: str
    says: tuple[str, ...] = ()
    rows: tuple[int, ...] | None = None
    count: int | None = None


@dataclass(frozen=True)
class Case:
    """One command of a case. `absent` are ids or prefixes that must not be raised, `not_above` id ->
    severity."""

    folder: str
    base: str = "../_tokenizers/chatml"
    run: str = "run"
    dataset: str = "train.jsonl"
    eval_dataset: str | None = None
    raised: dict[str, Raised] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    not_above: dict[str, str] = field(default_factory=dict)
    headline: str | None = None


ALL = (
    Case(
        "01-truncated-completion",
        raised={
            "data.truncated_completion": Raised(
                "error", ("12 of 96", "256 -> 1024", "589"), rows=tuple(range(3, 96, 8)), count=12
            )
        },
        absent=("data.no_trainable_tokens", "data.rows_dropped_too_long", "token.missing_eos"),
        headline="data.truncated_completion",
    ),
    Case(
        "02-all-labels-masked-loss-zero",
        raised={
            "data.no_trainable_tokens": Raised("error", ("48 of 48", "128 -> 256"), rows=tuple(range(48))),
            "logs.loss_zero": Raised("error", ("18 of 18",)),
            "adapter.zero_b": Raised("error"),
        },
        absent=("logs.memorised", "logs.loss_collapse", "logs.not_learning", "data.truncated_completion"),
        not_above={"data.duplicate_rows": "info", "data.near_duplicate_rows": "info"},
        headline="data.no_trainable_tokens",
    ),
    Case(
        "04-pad-equals-eos-old-trl",
        base="../_tokenizers/base-padeos",
        raised={
            "token.pad_masks_eos": Raised(
                "error", ("256", "0.9.6", "64 of 64", "a distinct token", "TRL 0.9.6 -> >= 0.16.1"), count=64
            )
        },
        absent=("token.missing_eos",),
    ),
    Case(
        "04-pad-equals-eos-old-trl",
        base="../_tokenizers/base-padeos",
        run="run_new_trl",
        absent=("token.missing_eos",),
        not_above={"token.pad_masks_eos": "info"},
    ),
    Case(
        "05-no-eos-unsloth-text",
        base="../_tokenizers/base-padeos",
        run="run_unsloth",
        raised={
            "token.missing_eos": Raised(
                "error", ("64 of 64", "<|endoftext|>", "tokenizer.eos_token"), count=64
            )
        },
    ),
    Case(
        "05-no-eos-unsloth-text",
        base="../_tokenizers/base-padeos",
        run="run_trl",
        absent=("token.missing_eos",),
    ),
    Case(
        "07-assistant-loss-no-generation-markers",
        raised={"template.no_generation_markers": Raised("error", ("assistant_only_loss",))},
        absent=("template.loss_on_prompt", "logs.", "adapter."),
        headline="template.no_generation_markers",
    ),
    Case(
        "08-template-drops-content",
        base="../_tokenizers/thinkstrip",
        raised={
            "template.content_dropped": Raised(
                "warning", ("30 of 30", "message index 1", "Recall rule 0", "split conversations"), count=30
            )
        },
        absent=("data.truncated_completion", "template.render_error"),
    ),
    Case(
        "10-sharegpt-role-order",
        raised={
            "data.role_order": Raised(
                "error",
                ("20 of 50", "10 start with an assistant turn (rows 0, 5", "user turns (rows 1, 6", "skips"),
                rows=tuple(row for row in range(50) if row % 5 < 2),
            )
        },
        absent=("data.duplicate_rows", "config.lr_full_finetune"),
    ),
    Case(
        "11-lr-left-at-full-finetune-default",
        raised={"config.lr_full_finetune": Raised("warning", ("1e-05", "90"))},
        absent=("config.lr_too_high",),
        not_above={"logs.not_learning": "warning"},
    ),
    Case(
        "13-adapter-never-trained",
        raised={"adapter.zero_b": Raised("error", ("14 of 14",))},
    ),
    Case("13-adapter-never-trained", run="run_pissa", absent=("adapter.zero_b",)),
    Case(
        "14-adapter-file-empty",
        raised={"adapter.no_tensors": Raised("error", ("0 tensors", "48"))},
        absent=("adapter.zero_b",),
    ),
    Case(
        "16-new-tokens-not-trained",
        raised={"adapter.new_tokens_untrained": Raised("error", ("<plan>", "48 of 48", "259", "260"))},
        absent=("run.tokenizer_mismatch", "run.base_model_mismatch"),
    ),
    Case("16-new-tokens-not-trained", run="run_ok", absent=("adapter.new_tokens_untrained",)),
    Case(
        "17-base-model-mismatch",
        raised={
            "run.base_model_mismatch": Raised("error", ("acme/tiny-8b", "261", "259")),
            "run.chat_template_mismatch": Raised("warning"),
        },
        absent=("adapter.new_tokens_untrained",),
    ),
    Case(
        "19-max-steps-cuts-the-epoch",
        raised={"config.max_steps_override": Raised("warning", ("160 of 400", "max_steps 20 -> -1", "150"))},
        absent=("logs.run_incomplete",),
    ),
    Case(
        "21-epoch-boundary-drop",
        raised={
            "logs.epoch_step_drop": Raised("warning", ("45", "67")),
            "eval.none": Raised("info", ("No eval metric",)),
        },
        absent=("logs.loss_spike", "logs.not_learning"),
    ),
    Case(
        "23-train-eval-overlap",
        eval_dataset="eval.jsonl",
        raised={
            "eval.contamination_exact": Raised("error", ("4 of 15", "train row 33"), rows=(0, 1, 2, 3)),
            "eval.contamination_near": Raised("warning", ("eval row 4 ~ train row 120 (0.90",), rows=(4,)),
        },
        not_above={"data.near_duplicate_rows": "info"},
    ),
    Case(
        "25-moe-experts-not-adapted",
        base="base",
        raised={"adapter.targets_unmatched": Raised("warning", ("gate_proj", "mlp.experts.gate_up_proj"))},
        absent=("adapter.attention_only",),
    ),
    Case(
        "26-prompt-boundary-token-merge",
        base="../_tokenizers/merge-space",
        raised={
            "token.prompt_boundary_mismatch": Raised(
                "warning", ("40 of 40", "move the trailing space from the prompt to the completion"), count=40
            )
        },
        absent=("token.missing_eos",),
        headline="token.prompt_boundary_mismatch",
    ),
    Case("28-hostile-training-args", raised={"run.unsafe_pickle": Raised("warning")}),
    Case(
        "29-data-hygiene",
        raised={
            "data.empty_completion": Raised("error", rows=(5, 6)),
            "data.duplicate_rows": Raised("warning", ("2 too many",), rows=(9, 10, 11)),
            "data.conflicting_answers": Raised("warning", rows=(19, 20)),
            "data.mojibake": Raised("warning", ("The café is open and it’s warm.",), rows=(30, 31)),
            "data.refusal_boilerplate": Raised("info", ("1 of 60",), rows=(40,)),
        },
        absent=("data.json_unparseable",),
        not_above={"data.near_duplicate_rows": "info"},
    ),
    Case(
        "29-data-hygiene",
        dataset="train_json.jsonl",
        raised={"data.json_unparseable": Raised("error", ("2 of 30",), rows=(3, 8))},
        absent=("data.unfinished_completion",),
    ),
)

RANK = {"error": 0, "warning": 1, "info": 2}


def run_case(case: Case, monkeypatch: pytest.MonkeyPatch) -> AuditResult:
    monkeypatch.chdir(CASES / case.folder)
    return diagnose(
        AuditInputs(dataset=case.dataset, run=case.run, base_model=case.base, eval_dataset=case.eval_dataset)
    )


def text_of(finding: Finding) -> str:
    return "\n".join(
        [finding.title, finding.message, finding.fix.text if finding.fix else "", str(finding.values)]
    )


@pytest.mark.parametrize("case", ALL, ids=lambda case: f"{case.folder[:2]}-{case.run}-{case.dataset}")
def test_case(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run_case(case, monkeypatch)
    found = {finding.id: finding for finding in result.findings}
    for id, wanted in case.raised.items():
        assert id in found, f"{id} is missing; found {sorted(found)}"
        assert found[id].severity.value == wanted.severity, id
        for piece in wanted.says:
            assert piece in text_of(found[id]), f"{piece!r} is not in {text_of(found[id])}"
        if wanted.rows is not None:
            assert found[id].rows == wanted.rows
        if wanted.count is not None:
            assert found[id].count == wanted.count
    for prefix in case.absent:
        assert not [id for id in found if id.startswith(prefix)], prefix
    for id, severity in case.not_above.items():
        assert id not in found or RANK[found[id].severity.value] >= RANK[severity], id
    if case.headline is not None:
        assert result.headlines[0].id == case.headline


def test_consequences_are_raised_and_attached(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run_case(Case("02-all-labels-masked-loss-zero"), monkeypatch)
    cause = result.headlines[0]
    assert cause.id == "data.no_trainable_tokens"
    assert {"logs.loss_zero", "adapter.zero_b"} <= set(cause.consequences)
    assert all(f.follows_from == cause.id for f in result.findings if f.id in cause.consequences)
    assert not {"logs.loss_zero", "adapter.zero_b"} & {finding.id for finding in result.headlines}


def test_train_rows_of_contaminated_items_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run_case(Case("23-train-eval-overlap", eval_dataset="eval.jsonl"), monkeypatch)
    found = next(finding for finding in result.findings if finding.id == "eval.contamination_exact")
    assert found.values["train_rows"] == [4, 17, 33, 50]
    assert found.of_eval
    assert found.fix is not None
    assert found.fix.remove_rows == (4, 17, 33, 50)


def test_clean_control_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run_case(Case("30-clean-trl", eval_dataset="eval.jsonl"), monkeypatch)
    assert [f.id for f in result.findings if f.severity.value != "info"] == []
    assert exit_code(result) == 0
    assert exit_code(result, "warning") == 0


def test_a_hostile_pickle_is_never_executed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    monkeypatch.setenv("GRADIAN_CANARY_DIR", str(canary))
    run_case(Case("28-hostile-training-args"), monkeypatch)
    assert not canary.exists()


def test_unfinished_json_in_mixed_rows_is_found_and_nothing_else() -> None:
    folder = FIXTURES / "json_formatting"
    planted = tuple(json.loads((folder / "planted_rows.json").read_text()))
    result = diagnose(AuditInputs(dataset=str(folder / "train.jsonl")), select=["data."])
    found = next(finding for finding in result.findings if finding.id == "data.unfinished_completion")
    assert found.rows == planted
    assert found.severity.value == "error"
    assert found.row_level
    assert result.headlines[0].id == "data.unfinished_completion"
    assert [f.id for f in result.headlines if f.severity.value != "info"] == ["data.unfinished_completion"]


def test_the_same_rows_without_the_planted_ones_are_silent() -> None:
    result = diagnose(AuditInputs(dataset=str(FIXTURES / "json_formatting" / "control.jsonl")))
    assert [f.id for f in result.findings if f.severity.value != "info"] == []
    assert "data.unfinished_completion" not in {finding.id for finding in result.findings}
