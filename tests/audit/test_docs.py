"""The pages of the audit are current: the checks from the registry, the report from a run."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from gradian.audit.context import AuditInputs
from gradian.audit.diagnosis import diagnose
from gradian.audit.explain import explain_check, list_checks
from gradian.audit.output import render
from gradian.audit.registry import all_checks
from gradian.errors import ConfigError
from support.auditing import FIXTURES

ROOT = Path(__file__).parents[2]


def page_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "make_checks_page", ROOT / "scripts" / "make_checks_page.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_checks_page_is_current() -> None:
    written = (ROOT / "docs" / "checks.md").read_text("utf-8")
    assert written == page_script().page(), "run: python scripts/make_checks_page.py"


def test_the_report_in_the_docs_is_a_real_one(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "audit.md").read_text("utf-8")
    (found,) = re.findall(r"<!-- output of case ([\w-]+) -->\n```text\n(.*?)```", text, re.DOTALL)
    folder, shown = found
    monkeypatch.chdir(FIXTURES / "cases" / folder)
    result = diagnose(AuditInputs(dataset="train.jsonl", run="run", base_model="../_tokenizers/chatml"))
    assert shown == render(result)


def test_ids_in_the_docs_exist() -> None:
    known = {check.id for check in all_checks()}
    families = "|".join(sorted({check.family for check in all_checks()}))
    for word in re.findall(rf"`((?:{families})\.[a-z_]+)`", (ROOT / "docs" / "audit.md").read_text("utf-8")):
        assert word in known, word


def test_explanations_and_lists_come_from_the_registry() -> None:
    text = explain_check("data.truncated_completion")
    assert text.startswith("# data.truncated_completion\n")
    assert "`data.truncated_completion.error_share`: 0.01" in text
    assert "unslothai/unsloth#2904" in text
    assert "template.run_base_mismatch" in explain_check("template.run_base_mismatch")
    with pytest.raises(ConfigError):
        explain_check("data.nothing")
    assert len(list_checks().splitlines()) == len(all_checks())
