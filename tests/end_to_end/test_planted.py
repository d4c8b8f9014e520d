"""The whole way on a fine-tune with a known cause, and on one where nothing is wrong."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import gradian
from gradian.attribution.cause import Cause, Confidence
from gradian.cli import main
from gradian.errors import ConfigError, GradianError
from gradian.report.json_file import to_json
from gradian.report.model import Outcome, Report
from support.planted import FineTuneFolder

INDEX_KEYS = ("base_model", "adapter", "dataset", "trainer", "index_dir")


def settings_of(folder: FineTuneFolder, state: Path, **changes: Any) -> dict[str, Any]:
    return {
        "base_model": str(folder.base),
        "adapter": str(folder.adapter),
        "dataset": str(folder.train),
        "eval_dataset": str(folder.evaluation),
        "trainer": "trl==1.16.0",
        "metric": "json_valid",
        "capability": "json",
        "index_dir": str(state),
        "permutations": 99,
        **changes,
    }


def flags_of(settings: dict[str, Any]) -> list[str]:
    return [part for key, value in settings.items() for part in (f"--{key.replace('_', '-')}", str(value))]


def without_timings(report: Report) -> dict[str, Any]:
    fields = json.loads(to_json(report))
    del fields["timings"]
    return fields


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def report(faulty: FineTuneFolder, state: Path) -> Report:
    return gradian.attribute(**settings_of(faulty, state))


def test_the_planted_rows_are_named_as_a_mechanical_cause(report: Report, faulty: FineTuneFolder) -> None:
    assert report.verdict.outcome is Outcome.REGRESSION
    assert report.verdict.cause is Cause.MECHANICAL
    assert report.verdict.confidence is Confidence.HIGH
    worst = report.groups[0]
    assert worst.accused
    assert set(worst.rows) == set(faulty.planted)
    assert worst.share > 2 * worst.row_share
    assert worst.findings[0].id == "data.unfinished_completion"
    assert f"{len(faulty.planted)} of its {len(faulty.planted)} rows" in report.verdict.text
    harmful = [row.row for row in report.rows[: len(faulty.planted)]]
    assert len(set(harmful) & set(faulty.planted)) >= 0.7 * len(faulty.planted)  # by chance a quarter


def test_every_score_belongs_to_its_row(report: Report, faulty: FineTuneFolder) -> None:
    lines = faulty.train.read_text().splitlines()
    assert sorted(row.row for row in report.rows) == list(range(len(lines)))
    for row in report.rows:
        assert row.line == row.row + 1
        if row.answer:
            assert json.loads(lines[row.row])["completion"][0]["content"] == row.answer
    assert [row.score for row in report.rows] == sorted(row.score for row in report.rows)


def test_the_second_answer_is_the_same_and_computes_nothing(
    report: Report, faulty: FineTuneFolder, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gradian.model.loaded as loaded

    def never(*arguments: object, **settings: object) -> None:
        raise AssertionError("the model was loaded again")

    monkeypatch.setattr(loaded, "load", never)
    again = gradian.attribute(**settings_of(faulty, state))
    assert without_timings(again) == without_timings(report)
    assert len(again.timings.reused) == 3


def test_another_metric_asks_again_without_new_row_gradients(
    report: Report, faulty: FineTuneFolder, state: Path
) -> None:
    other = gradian.attribute(**settings_of(faulty, state, metric="exact"))
    assert other.provenance.index_id == report.provenance.index_id
    assert any("the gradients of all" in reason for reason in other.timings.reused)
    assert other.verdict.cause is Cause.MECHANICAL


def test_nothing_wrong_is_not_diagnosed_and_no_gradient_is_computed(
    sound: FineTuneFolder, tmp_path: Path
) -> None:
    report = gradian.attribute(**settings_of(sound, tmp_path))
    assert report.verdict.outcome in (Outcome.EQUIVALENT, Outcome.INCONCLUSIVE)
    assert report.verdict.cause is Cause.NONE
    assert report.groups == ()
    assert report.rows == ()
    assert not (tmp_path / "index").exists()


def test_without_items_it_is_a_smoke_test(faulty: FineTuneFolder, tmp_path: Path) -> None:
    report = gradian.attribute(**settings_of(faulty, tmp_path, eval_dataset=None))
    assert report.smoke_test
    assert report.verdict.outcome is Outcome.NO_TARGET
    assert report.findings[0].id == "attribution.no_capability_target"
    assert report.rows
    assert "Smoke test" in report.verdict.text


def test_a_changed_scale_is_another_adapter(
    faulty: FineTuneFolder, report: Report, state: Path, tmp_path: Path
) -> None:
    adapter = tmp_path / "adapter"
    shutil.copytree(faulty.adapter, adapter)
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps({**config, "lora_alpha": 64}))
    other = gradian.evaluate(
        base_model=str(faulty.base),
        adapter=str(adapter),
        eval_dataset=str(faulty.evaluation),
        metric="json_valid",
        index_dir=str(state),
    )
    assert report.evaluation is not None
    assert other.tuned_nll != pytest.approx(report.evaluation.tuned_nll, rel=1e-3)


def test_text_rows_without_items_are_a_smoke_test_too(faulty: FineTuneFolder, tmp_path: Path) -> None:
    rows = tmp_path / "text.jsonl"
    rows.write_text(
        "".join(json.dumps({"text": f"say {word} and {word}"}) + "\n" for word in ("cat", "dog") * 20)
    )
    settings = settings_of(faulty, tmp_path / "state", eval_dataset=None, dataset=str(rows))
    assert gradian.attribute(**settings).smoke_test


def test_clusters_found_in_the_text_are_used_without_a_cluster_field(
    faulty: FineTuneFolder, state: Path, tmp_path: Path
) -> None:
    rows = [json.loads(line) for line in faulty.train.read_text().splitlines()]
    for row in rows:
        del row["cluster"]
    plain = tmp_path / "plain.jsonl"
    plain.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = gradian.attribute(**settings_of(faulty, state, dataset=str(plain)))
    assert {group.id for group in report.groups} != {"bills", "say", "spell"}
    assert sum(group.size for group in report.groups) == len(rows)
    # the same tokens: not one gradient is computed for the other file
    assert any("the gradients of all" in reason for reason in report.timings.reused)


def test_the_command_prints_the_report_and_writes_its_files(
    report: Report, faulty: FineTuneFolder, state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = flags_of(settings_of(faulty, state, out=tmp_path / "out"))
    assert main(["attribute", *flags]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert report.verdict.text in printed
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"report.json", "report.md", "report.html", "gradian.yaml"}
    first = json.loads((tmp_path / "out" / "report.json").read_bytes())
    replay = ["attribute", "--config", str(tmp_path / "out" / "gradian.yaml")]
    assert main([*replay, "--fail-on", "regression", "--json"]) == 1
    second = json.loads(capsys.readouterr().out)
    assert {k: v for k, v in first.items() if k != "timings"} == {
        k: v for k, v in second.items() if k != "timings"
    }
    assert main(["show", str(tmp_path / "out" / "report.json"), "--format", "markdown"]) == 0
    assert "json regressed" in capsys.readouterr().out


def test_the_index_can_be_built_and_shown_alone(
    faulty: FineTuneFolder, state: Path, report: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {key: value for key, value in settings_of(faulty, state).items() if key in INDEX_KEYS}
    assert main(["index", *flags_of(settings), "--json"]) == 0
    built = json.loads(capsys.readouterr().out)
    assert built["index_id"] == report.provenance.index_id
    assert (built["computed"], built["found"]) == (0, built["rows"])
    assert main(["show-index", built["folder"]]) == 0
    assert built["index_id"] in capsys.readouterr().out
    index = gradian.load_index(built["folder"])
    assert index.store.vectors([0]).shape == (1, index.store.layout.dimension)


def test_evaluate_alone(faulty: FineTuneFolder, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = ("base_model", "adapter", "eval_dataset", "metric", "capability", "index_dir")
    settings = {key: value for key, value in settings_of(faulty, state).items() if key in keys}
    result = gradian.evaluate(**settings)
    assert result.comparison.outcome == "regression"
    assert main(["evaluate", *flags_of(settings), "--fail-on", "regression"]) == 1
    assert "What caused it was not asked" in " ".join(capsys.readouterr().out.split())


def test_a_kill_in_the_middle_loses_nothing(faulty: FineTuneFolder, report: Report, tmp_path: Path) -> None:
    """SIGKILL once the first rows are stored; the same command then ends with the same answer."""
    settings = settings_of(faulty, tmp_path, tokens_per_batch=64)
    command = [sys.executable, "-m", "gradian", "attribute", "--json", "--out", str(tmp_path / "out")]
    victim = subprocess.Popen(
        [*command, *flags_of(settings)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not any(
        any(path.read_bytes()) for path in tmp_path.glob("index/*/state.bin")
    ):
        assert victim.poll() is None, "the run ended before it could be killed"
        time.sleep(0.002)
    victim.kill()
    victim.wait(timeout=60)
    assert not list(tmp_path.glob("index/*/manifest.json")), "the index was finished before the kill"
    stored = sum(byte > 0 for byte in next(tmp_path.glob("index/*/state.bin")).read_bytes())
    index = gradian.build_index(**{key: settings[key] for key in INDEX_KEYS}, tokens_per_batch=64)
    assert 0 < stored <= index.found < index.found + index.computed == len(report.rows)
    straight = gradian.build_index(
        **{key: settings[key] for key in INDEX_KEYS if key != "index_dir"},
        index_dir=str(tmp_path / "straight"),
        tokens_per_batch=64,
    )
    names = ("vectors.bin", "losses.npy", "state.bin", "rows.jsonl")
    assert [(index.folder / n).read_bytes() for n in names] == [
        (straight.folder / n).read_bytes() for n in names
    ]
    again = gradian.attribute(**settings)
    assert again.verdict.cause is Cause.MECHANICAL
    assert again.groups[0].rows == report.groups[0].rows


class TestWhatUsersDoWrong:
    def test_no_base_model(self, faulty: FineTuneFolder, state: Path) -> None:
        with pytest.raises(ConfigError, match="base-model is missing"):
            gradian.attribute(**settings_of(faulty, state, base_model=None))

    @pytest.mark.parametrize("key", ["base_model", "adapter", "dataset", "eval_dataset"])
    def test_a_path_that_is_not_there(
        self, key: str, faulty: FineTuneFolder, state: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        flags = flags_of(settings_of(faulty, state, **{key: "/no/such/place"}))
        assert main(["attribute", *flags]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.startswith("error: /no/such/place: ")
        assert "Traceback" not in printed.err

    def test_a_row_of_garbage_is_named_with_its_line(
        self, faulty: FineTuneFolder, state: Path, tmp_path: Path
    ) -> None:
        bad = tmp_path / "bad.jsonl"
        bad.write_text(faulty.train.read_text() + '{"prompt": [\n')
        with pytest.raises(GradianError) as caught:
            gradian.attribute(**settings_of(faulty, state, dataset=str(bad)))
        assert f"bad.jsonl:{len(faulty.train.read_text().splitlines()) + 1}" in str(caught.value)

    def test_an_empty_eval_file(self, faulty: FineTuneFolder, state: Path, tmp_path: Path) -> None:
        empty = tmp_path / "empty.jsonl"
        empty.write_text("")
        with pytest.raises(GradianError, match="empty"):
            gradian.attribute(**settings_of(faulty, state, eval_dataset=str(empty)))

    def test_an_unknown_metric_names_the_nearest(self, faulty: FineTuneFolder, state: Path) -> None:
        with pytest.raises(ConfigError, match="json_valid"):
            gradian.attribute(**settings_of(faulty, state, metric="json_vald"))
