"""Groups of rows: the user's own, or clusters that do not depend on the order of the file."""

from __future__ import annotations

import numpy as np
import pytest

from gradian.attribution.groups import UNCLUSTERED, group_rows

ANIMALS = ["cat", "dog", "horse", "cow", "pig", "sheep", "goat", "duck", "hen", "fox", "wolf", "bear"]
CITIES = ["Oslo", "Rome", "Lima", "Cork", "Bonn", "Kyiv", "Graz", "Nice", "Delhi", "Quito"]


def texts(seed: int = 0) -> list[str]:
    generator = np.random.default_rng(seed)
    rows = []
    for _ in range(40):
        city, number = generator.choice(CITIES), generator.integers(10, 99)
        rows.append(f"Extract the invoice total for {city}: invoice total currency {number} euro")
        rows.append(
            f"Translate the animal {generator.choice(ANIMALS)} into French: the animal word is {number}"
        )
        rows.append(f"Review of a film in {city}: was the film good? The reviewer liked film number {number}")
    return rows


def test_kinds_of_row_become_clusters_with_telling_labels() -> None:
    rows = texts()
    grouping = group_rows(rows, [None] * len(rows))
    kinds = [{row % 3 for row in group.rows} for group in grouping.groups if group.id != UNCLUSTERED]
    assert all(len(kind) == 1 for kind in kinds)
    invoices = next(group for group in grouping.groups if 0 in group.rows)
    assert {"invoice", "currency", "euro"} & set(invoices.label.split(", "))
    assert set(invoices.representatives) <= set(invoices.rows)
    assert sorted(row for group in grouping.groups for row in group.rows) == list(range(len(rows)))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_order_of_the_file_changes_nothing(seed: int) -> None:
    rows = texts()
    order = np.random.default_rng(seed).permutation(len(rows))
    straight = group_rows(rows, [None] * len(rows))
    shuffled = group_rows([rows[i] for i in order], [None] * len(rows))

    def as_text(grouping, names):
        return {(g.id, g.label, tuple(sorted(names[row] for row in g.rows))) for g in grouping.groups}

    assert as_text(straight, rows) == as_text(shuffled, [rows[i] for i in order])


def test_the_users_own_groups_win_and_rows_without_one_stay_visible() -> None:
    rows = texts()
    own = ["billing" if index % 3 == 0 else None for index in range(len(rows))]
    grouping = group_rows(rows, own)
    assert [group.id for group in grouping.groups] == ["billing", UNCLUSTERED]
    assert "80 rows without one" in grouping.source
    assert grouping.group_of(len(rows))[:2] == ["billing", UNCLUSTERED]


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([f"row {index} about topic" for index in range(29)], "too few"),
        ([f"word{index}" for index in range(40)], "share no words"),
    ],
)
def test_no_clusters_is_an_answer(rows: list[str], why: str) -> None:
    grouping = group_rows(rows, [None] * len(rows))
    assert [group.id for group in grouping.groups] == [UNCLUSTERED]
    assert why in grouping.source


def test_equal_rows_and_hostile_text_do_not_break_it() -> None:
    rows = ["same text here"] * 35 + ["\x00\ud800 [/] </script>"] * 5 + [""] * 5
    grouping = group_rows(rows, [None] * len(rows))
    assert sum(len(group.rows) for group in grouping.groups) == 45
