"""Every metric by a table of answers, with the traps that other tools fell into."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gradian.errors import ConfigError, MissingDependencyError
from gradian.evaluation.json_metrics import field_share, json_equal
from gradian.evaluation.metrics import METRIC_NAMES, get_metric
from gradian.evaluation.normalise import find_whole, normalise, words
from gradian.evaluation.score import Score
from gradian.evaluation.text_metrics import longest_common_subsequence

WANTED = '{"name": "Ada", "age": 36, "city": "Oslo"}'
TEXT_METRICS = ("exact", "normalized", "contains", "numeric", "f1", "rouge_l", "json_valid", "json_fields")


@pytest.mark.parametrize(
    ("name", "said", "wanted", "value"),
    [
        ("exact", " Paris\n", "Paris", 1),
        ("exact", "paris", "Paris", 0),
        (
            "exact",
            'Here: {"city":"Oslo","age":36.0,"name":"Ada"}.',
            WANTED,
            1,
        ),  # key order, white space, prose
        ("exact", WANTED.replace("36", "37"), WANTED, 0),
        ("exact", WANTED.replace("36", '"36"'), WANTED, 0),
        ("exact", '{"a": true}', '{"a": 1}', 0),
        ("exact", '{"a": 1, "b": 2}', '{"a": 1}', 0),
        ("exact", "{not json}", "{not json}", 1),  # wanted is no JSON: texts are compared
        ("normalized", "The  Eiffel-Tower!", "the eiffel tower", 1),
        ("normalized", "ＰＡＲＩＳ", "paris", 1),
        ("normalized", "3.5", "35", 0),
        ("normalized", "-5", "5", 0),
        ("normalized", "60%", "60", 0),
        ("normalized", "don't", "dont", 1),
        ("contains", "It is PARIS, France", "paris", 1),
        ("contains", "25", "5", 0),
        ("contains", "5.3", "5", 0),
        ("contains", "1,500", "500", 0),
        ("contains", "-5", "5", 0),
        ("contains", "it is 5.", "5", 1),
        ("contains", "parisian", "paris", 0),
        ("contains", "答案是北京市", "北京", 1),  # no spaces between words
        ("numeric", "so it is 25", "5", 0),
        ("numeric", "first 5 then 25.0", "25", 1),
        ("numeric", "12345678901234567", "12345678901234568", 0),  # equal as floats
        ("numeric", "1,000", "1000", 1),
        ("numeric", "60%", "60", 0),
        ("f1", "the cat sat", "the cat", 0.8),
        ("f1", "a a a", "a", 0.5),  # multisets: one of three
        ("f1", "dog", "cat", 0),
        ("rouge_l", "the cat sat on the mat", "the cat on mat", 0.8),
        ("rouge_l", "b a", "a b", 0.5),
        ("json_valid", "```json\n[1, 2]\n```", WANTED, 1),
        ("json_valid", '{"a": 1', WANTED, 0),
        ("json_valid", '{"a": NaN}', WANTED, 0),
        ("json_fields", WANTED, WANTED, 1),
        ("json_fields", '{"name": "Ada", "age": 36}', WANTED, 2 / 3),
        ("json_fields", '{"name": "Ada", "age": 35, "city": "Oslo", "x": 1}', WANTED, 2 / 3),
        ("json_fields", "[1]", WANTED, 0),
        ("json_fields", '{"a": {"b": 1, "c": 3}, "d": 4}', '{"a": {"b": 1, "c": 2}, "d": 4}', 0.75),
        ("json_fields", '{"a": [1, 2, 3]}', '{"a": [1, 2]}', 2 / 3),
    ],
)
def test_scores(name: str, said: str, wanted: str, value: float) -> None:
    score = get_metric(name)(said, wanted)
    assert score.value == pytest.approx(value)
    assert score.extracted is not None or value == 0


@pytest.mark.parametrize("name", TEXT_METRICS)
@pytest.mark.parametrize("said", ["", "  \n\t "])
def test_an_empty_answer_is_an_outcome_of_its_own(name: str, said: str) -> None:
    assert get_metric(name)(said, WANTED) == Score(0.0, None, "the answer is empty")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("numeric", "none"),
        ("json_valid", "none"),
        ("json_fields", '{"a": '),
        ("exact", '{"name": "Ada", "age"'),
        ("f1", "!!!"),
        ("rouge_l", "…"),
        ("normalized", "?!"),
    ],
)
def test_nothing_extracted(name: str, said: str) -> None:
    score = get_metric(name)(said, WANTED)
    assert (score.value, score.extracted) == (0.0, None)


@pytest.mark.parametrize("name", TEXT_METRICS)
@given(st.text(max_size=80), st.sampled_from([WANTED, "Paris 5", '{"a": [1, {"b": null}]} 7 word']))
def test_any_answer_gets_a_score(name: str, said: str, wanted: str) -> None:
    metric = get_metric(name)
    assume(metric.refuses(wanted) is None)
    score = metric(said, wanted)
    assert 0 <= score.value <= 1
    assert score.reason


@pytest.mark.parametrize("name", TEXT_METRICS)
def test_the_wanted_answer_itself_is_right(name: str) -> None:
    assert get_metric(name)(WANTED, WANTED).value == 1


@pytest.mark.parametrize(
    ("name", "wanted", "why"),
    [
        ("numeric", "no number", "number"),
        ("json_fields", "no json", "no JSON"),
        ("json_fields", '{"a": 1', "never closed"),
        ("f1", "!?", "no word"),
        ("rouge_l", "...", "no word"),
    ],
)
def test_wanted_answers_that_cannot_be_scored(name: str, wanted: str, why: str) -> None:
    assert why in (get_metric(name).refuses(wanted) or "")
    assert get_metric(name).refuses(WANTED) is None


def test_which_metrics_are_graded_or_need_no_generation() -> None:
    made = {
        name: get_metric(name, **{"regex": {"pattern": "x"}}.get(name, {}))
        for name in METRIC_NAMES
        if name != "json_schema"
    }
    assert {name for name, metric in made.items() if metric.graded} == {"f1", "rouge_l", "json_fields", "nll"}
    assert {name for name, metric in made.items() if not metric.needs_generation} == {"nll"}


class TestRegex:
    def test_a_group_is_compared(self) -> None:
        metric = get_metric("regex", pattern=r"Answer: (\w+)")
        assert metric("Answer: A. No, Answer: B", "B").value == 1
        assert metric("Answer: A", "B").value == 0
        assert metric("B", "B").extracted is None

    def test_the_first_match_on_request(self) -> None:
        assert get_metric("regex", pattern=r"(\d)", take="first")("1 2", "1").value == 1

    def test_the_pattern_reads_the_wanted_text_too(self) -> None:
        assert get_metric("regex", pattern=r"#### (\d+)")("so #### 42", "6 * 7\n#### 42").value == 1

    def test_without_a_group_a_match_is_enough(self) -> None:
        metric = get_metric("regex", pattern="(?i)yes")
        assert metric("Oh YES", "whatever").value == 1
        assert metric("no", "yes").extracted is None

    def test_an_alternative_group(self) -> None:
        assert get_metric("regex", pattern=r"is (\d+)|=(\d+)")("x =7", "7").value == 1

    @pytest.mark.parametrize(
        "options", [{}, {"pattern": ""}, {"pattern": "("}, {"pattern": 3}, {"pattern": "a", "take": "middle"}]
    )
    def test_bad_options(self, options: dict[str, object]) -> None:
        with pytest.raises(ConfigError):
            get_metric("regex", **options)


class TestNumeric:
    def test_tolerances(self) -> None:
        assert get_metric("numeric", tolerance=0.01)("3.149", "3.14").value == 1
        assert get_metric("numeric", tolerance=0.01)("3.151", "3.14").value == 0
        assert get_metric("numeric", relative_tolerance=0.1)("109", "100").value == 1
        assert get_metric("numeric", relative_tolerance=0.1)("111", "100").value == 0

    @pytest.mark.parametrize("tolerance", [-1, math.nan, math.inf, "0.1", True])
    def test_bad_tolerance(self, tolerance: object) -> None:
        with pytest.raises(ConfigError, match="tolerance"):
            get_metric("numeric", tolerance=tolerance)


class TestJsonFields:
    def test_the_case_of_values_matters_only_on_request(self) -> None:
        said, wanted = '{"job": "Pilot", "tags": ["A", 1]}', '{"job": "pilot", "tags": ["a", 1]}'
        assert get_metric("json_fields")(said, wanted).value == 1
        assert get_metric("json_fields", ignore_case=False)(said, wanted).value == 0.25
        assert get_metric("exact")(said, wanted).value == 0

    def test_the_case_of_keys_always_matters(self) -> None:
        assert get_metric("json_fields")('{"Job": "pilot"}', '{"job": "pilot"}').value == 0

    def test_bad_option(self) -> None:
        with pytest.raises(ConfigError, match="ignore_case"):
            get_metric("json_fields", ignore_case="yes")


class TestNames:
    @pytest.mark.parametrize(
        ("typo", "near"), [("exat", "exact"), ("json-fields", "json_fields"), ("ROUGE_L", "rouge_l")]
    )
    def test_the_nearest_name_is_offered(self, typo: str, near: str) -> None:
        with pytest.raises(ConfigError, match=f"did you mean {near}"):
            get_metric(typo)

    def test_an_option_that_the_metric_does_not_take(self) -> None:
        with pytest.raises(ConfigError, match="did you mean tolerance"):
            get_metric("numeric", tolerence=1)
        with pytest.raises(ConfigError, match="takes none"):
            get_metric("exact", tolerance=1)


class TestCustom:
    @pytest.fixture(autouse=True)
    def here(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "my_metric_of_tests.py").write_text(
            "from gradian.evaluation.score import Score\n"
            "def same(said, wanted, item):\n    return said == wanted and item['level'] == 2\n"
            "def graded(said, wanted, item):\n    return Score(0.5, said, 'half')\n"
            "def fails(said, wanted, item):\n    return 1 / 0\n"
            "def too_much(said, wanted, item):\n    return 2\n"
            "def nothing(said, wanted, item):\n    return None\n"
            "def nan(said, wanted, item):\n    return float('nan')\n"
            "text = 'no function'\n"
        )
        (tmp_path / "broken_metric_of_tests.py").write_text("import a_module_that_does_not_exist\n")
        sys.modules.pop("my_metric_of_tests", None)

    def test_a_function_of_the_working_directory(self) -> None:
        metric = get_metric("my_metric_of_tests:same")
        assert metric("a", "a", {"level": 2}).value == 1
        assert metric("a", "b", {"level": 2}).value == 0
        assert get_metric("my_metric_of_tests:graded")("a", "b").value == 0.5

    def test_the_import_path_is_left_as_it_was(self) -> None:
        before = list(sys.path)
        get_metric("my_metric_of_tests:same")
        assert sys.path == before

    @pytest.mark.parametrize(
        ("reference", "why"),
        [
            ("my_metric_of_tests:", "incomplete"),
            (":same", "incomplete"),
            ("my_metric_of_tests:missing", "no function"),
            ("my_metric_of_tests:text", "no function"),
            ("no_such_module_of_tests:same", "cannot be imported"),
            ("broken_metric_of_tests:same", "a_module_that_does_not_exist"),
        ],
    )
    def test_what_cannot_be_imported(self, reference: str, why: str) -> None:
        with pytest.raises(ConfigError, match=why):
            get_metric(reference)

    @pytest.mark.parametrize(
        ("function", "why"),
        [
            ("fails", "ZeroDivisionError"),
            ("too_much", "returned 2"),
            ("nothing", "returned None"),
            ("nan", "nan"),
        ],
    )
    def test_what_it_must_not_do(self, function: str, why: str) -> None:
        with pytest.raises(ConfigError, match=why):
            get_metric(f"my_metric_of_tests:{function}")("a", "b")


class TestJsonSchema:
    def test_the_missing_package_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "jsonschema", None)
        with pytest.raises(MissingDependencyError, match="pip install"):
            get_metric("json_schema", schema={})

    def test_scores(self) -> None:
        pytest.importorskip("jsonschema")
        schema = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}
        metric = get_metric("json_schema", schema=schema)
        assert metric('ok: {"a": 1}', "").value == 1
        assert metric('{"a": "1"}', "").value == 0
        assert "'1' is not of type" in metric('{"a": "1"}', "").reason
        assert metric("none", "").extracted is None

    def test_schemas_that_cannot_be_used(self, tmp_path: Path) -> None:
        pytest.importorskip("jsonschema")
        (tmp_path / "list.json").write_text("[]")
        for schema in (
            3,
            "",
            str(tmp_path),
            str(tmp_path / "list.json"),
            str(tmp_path / "no"),
            {"type": "objct"},
        ):
            with pytest.raises(ConfigError):
                get_metric("json_schema", schema=schema)

    def test_nothing_is_fetched(self) -> None:
        pytest.importorskip("jsonschema")
        metric = get_metric("json_schema", schema={"$ref": "http://127.0.0.1:9/x.json"})
        with pytest.raises(ConfigError, match="not fetched"):
            metric("{}", "")


class TestJsonValues:
    @pytest.mark.parametrize(
        ("left", "right", "same"),
        [
            (1, 1.0, True),
            (True, 1, False),
            (None, False, False),
            ("1", 1, False),
            ([], {}, False),
            ([1], [1.0], True),
        ],
    )
    def test_equality(self, left: object, right: object, same: bool) -> None:
        assert json_equal(left, right) is json_equal(right, left) is same

    @given(st.dictionaries(st.text(max_size=3), st.integers(), min_size=1))
    def test_share_is_one_for_itself_in_any_order(self, value: dict[str, int]) -> None:
        assert field_share(dict(reversed(value.items())), value) == 1

    def test_empty_values(self) -> None:
        assert field_share({}, {}) == 1
        assert field_share({"a": 1}, {}) == 0
        assert field_share([], [1]) == 0


class TestWords:
    def test_normalise(self) -> None:
        assert normalise("  Hello,\tWORLD—again! ") == "hello world again"
        assert normalise("3.5 -5 60% 1,000 12:30") == "3.5 -5 60% 1,000 12:30"

    def test_scripts_without_spaces(self) -> None:
        assert words("北京 is 5km") == ["北", "京", "is", "5km"]

    @given(st.text(max_size=40))
    def test_normalise_is_idempotent_on_words(self, text: str) -> None:
        assert words(" ".join(words(text))) == words(text)

    @given(st.text(max_size=20), st.text(min_size=1, max_size=5))
    def test_find_whole_finds_only_what_is_there(self, text: str, part: str) -> None:
        at = find_whole(text, part)
        assert at == -1 or text[at : at + len(part)] == part
        assert find_whole(f"{text} {part} {text}", part) >= 0 or not part.strip()

    @given(st.lists(st.sampled_from("abc"), max_size=12), st.lists(st.sampled_from("abc"), max_size=12))
    def test_subsequence_against_the_table(self, left: list[str], right: list[str]) -> None:
        table = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
        for i, a in enumerate(left):
            for j, b in enumerate(right):
                table[i + 1][j + 1] = table[i][j] + 1 if a == b else max(table[i][j + 1], table[i + 1][j])
        assert longest_common_subsequence(left, right) == table[-1][-1]


@pytest.mark.parametrize(("value", "extracted"), [(1.5, "x"), (-0.1, "x"), (math.nan, "x"), (0.5, None)])
def test_a_score_that_makes_no_sense(value: float, extracted: str | None) -> None:
    with pytest.raises(ValueError, match="score"):
        Score(value, extracted, "")
