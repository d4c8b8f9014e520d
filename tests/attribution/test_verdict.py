"""Accusation, join and words, on evidence made by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradian.attribution.accuse import Accusation, accuse, find_suspect
from gradian.attribution.agreement import EngineAgreement, compare_engines, most_concentrated
from gradian.attribution.cause import Cause, Confidence
from gradian.attribution.effects import (
    GroupEffect,
    affordable_permutations,
    group_effects,
    negative_shares,
    permutation_p_values,
    share_intervals,
)
from gradian.attribution.groups import RowGroup
from gradian.attribution.join import findings_shared_by
from gradian.attribution.verdict import Evidence, JudgedGroup, judge
from gradian.audit.finding import Finding, Fix, Severity
from gradian.engines.fisher import solve
from gradian.evaluation.compare import compare


def effect(removal: float, p: float | None = 0.005, share: float = 0.1, **sweep: float) -> GroupEffect:
    values = {0.1: 4 * removal, 1.0: removal, 10.0: removal / 4, 100.0: removal / 20}
    return GroupEffect(share, (share / 2, share * 1.5), removal / 10, removal, values, p)


def judged(name: str, size: int, result: GroupEffect, shared=(), total: int = 400) -> JudgedGroup:
    return JudgedGroup(
        RowGroup(name, "invoice, total", tuple(range(size)), (0,)), result, size / total, tuple(shared)
    )


def comparison(lost: int = 54, gained: int = 0, items: int = 200, right: int = 182):
    base = np.array([1.0] * right + [0.0] * (items - right))
    tuned = base.copy()
    tuned[:lost] = 0
    tuned[items - gained :] = 1
    return compare(base, tuned, graded=False, rng=np.random.default_rng(0), margin=0.05)


def unfinished(rows: range) -> Finding:
    return Finding(
        id="data.unfinished_completion",
        severity=Severity.ERROR,
        title="answers stop in the middle",
        rows=tuple(rows),
        count=len(rows),
        of=400,
        fix=Fix(text="export the answers again"),
        row_level=True,
    )


AGREES = EngineAgreement("datainf", "gradcos", 0.7, 0.5, 20, 1, 1, 0.1)


class TestAccusation:
    def test_a_group_that_stands_out_is_accused(self) -> None:
        effects = [effect(-0.2, p=0.9), effect(-6.7), effect(-0.9, p=0.3), effect(2.0, p=1.0)]
        assert accuse(effects, 9.9) == Accusation((1,))

    def test_two_equal_culprits_are_both_accused(self) -> None:
        assert accuse([effect(-5.0), effect(-0.3, p=0.8), effect(-4.8)], 12.0).groups == (0, 2)

    @pytest.mark.parametrize(
        ("effects", "regression", "why"),
        [
            ([effect(0.5), effect(0.1)], 9.0, "no group would help"),
            ([effect(-0.3, p=0.81), effect(-0.2, p=0.9)], 9.0, "random groups"),
            ([effect(-0.5, p=0.01), effect(-0.01, p=0.9)], 9.0, "too little"),
            ([effect(-2.0), effect(-1.9), effect(-1.8), effect(-1.7), effect(-1.6)], 9.0, "stands apart"),
            ([effect(-5.0, p=None)], 9.0, "no groups"),
            ([], 9.0, "no groups"),
        ],
    )
    def test_each_condition_can_refuse(self, effects: list[GroupEffect], regression: float, why: str) -> None:
        accusation = accuse(effects, regression)
        assert accusation.groups == ()
        assert why in str(accusation.why_none)

    def test_a_sign_that_depends_on_the_damping_accuses_nobody(self) -> None:
        turning = dataclasses.replace(effect(-5.0), sweep={0.1: -20.0, 1.0: -5.0, 10.0: 0.3, 100.0: 0.1})
        assert accuse([turning, effect(-0.1, p=0.9)], 9.0).groups == ()

    def test_unclustered_rows_are_never_accused(self) -> None:
        assert accuse([effect(-9.0, p=None), effect(-0.2, p=0.7)], 9.9).groups == ()

    def test_without_a_base_arm_the_explained_part_is_not_asked(self) -> None:
        assert accuse([effect(-0.5), effect(-0.01, p=0.9)], None).groups == (0,)

    def test_a_suspect_needs_most_of_the_harm_and_more_than_its_part_of_the_rows(self) -> None:
        assert find_suspect([effect(1.0, share=0.9), effect(0.1, share=0.1)], [0.25, 0.75]) == 0
        assert find_suspect([effect(1.0, share=0.9), effect(0.1, share=0.1)], [0.6, 0.4]) is None
        assert find_suspect([effect(1.0, share=0.4), effect(0.1, share=0.3)], [0.05, 0.05]) is None
        assert find_suspect([], []) is None


class TestJoin:
    def test_an_enriched_finding_is_listed_with_fishers_p(self) -> None:
        (shared,) = findings_shared_by(range(10), [unfinished(range(8))], range(100))
        assert (shared.inside, shared.outside, shared.size) == (8, 0, 10)
        # all 8 of 100 marked rows among 10 drawn: C(92,2)/C(100,10) ways
        assert shared.p_value == pytest.approx(4186 / 17310309456440, rel=1e-9)
        assert shared.mechanical

    def test_a_finding_spread_over_all_rows_is_not(self) -> None:
        assert findings_shared_by(range(10), [unfinished(range(0, 100, 2))], range(100)) == []

    def test_rows_that_were_not_learnt_from_do_not_count(self) -> None:
        assert findings_shared_by(range(10), [unfinished(range(8))], range(9, 100)) == []

    def test_findings_about_the_eval_set_or_the_run_are_not_joined(self) -> None:
        about_eval = unfinished(range(8)).model_copy(update={"of_eval": True})
        about_run = unfinished(range(8)).model_copy(update={"row_level": False})
        assert findings_shared_by(range(10), [about_eval, about_run], range(100)) == []

    def test_what_rows_say_is_no_mechanical_fault(self) -> None:
        refusals = unfinished(range(8)).model_copy(update={"id": "data.refusal_boilerplate"})
        (shared,) = findings_shared_by(range(10), [refusals], range(100))
        assert not shared.mechanical


class TestWords:
    def evidence(self, **changes) -> Evidence:
        rows = range(40)
        (shared,) = findings_shared_by(rows, [unfinished(range(34))], range(1000))
        culprit = judged("7", 40, effect(-6.7, share=0.62), [shared], total=1000)
        fields = {
            "capability": "json_formatting",
            "comparison": comparison(),
            "findings": [unfinished(range(34))],
            "groups": [judged("1", 300, effect(-0.4, p=0.5), total=1000), culprit],
            "accusation": Accusation((1,)),
            "agreement": AGREES,
            "regression_nats": 9.9,
            "base_margin": 7.0,
            "items_explained": 54,
        }
        return Evidence(**{**fields, **changes})

    def test_the_first_paragraph_of_a_mechanical_cause(self) -> None:
        judgement = judge(self.evidence())
        assert judgement.cause is Cause.MECHANICAL
        assert judgement.confidence is Confidence.HIGH
        opening, rest = judgement.text.split(" over 200 items. ")
        assert opening.startswith("json_formatting regressed 0.910 to 0.640 (-0.270, 95% CI [-0.3")
        assert rest == (
            "54 items flipped from right to wrong. Cluster 7 (invoice, total) accounts for 62% of "
            "the negative influence "
            "with 4% of the rows; removing it is predicted to win back 6.7 nats an item of the 9.9 that were lost. "
            "34 of its 40 rows have truncated completions, which points to a mechanical cause rather than a content "
            "problem. Fix: export the answers again."
        )

    def test_no_shared_fault_makes_it_content(self) -> None:
        groups = [judged("tone", 40, effect(-6.7, share=0.62), total=1000)]
        judgement = judge(
            self.evidence(
                groups=groups, accusation=Accusation((0,)), agreement=dataclasses.replace(AGREES, check_top=0)
            )
        )
        assert judgement.cause is Cause.CONTENT
        assert "Group tone" in judgement.text
        assert judgement.confidence is Confidence.MEDIUM

    def test_disagreement_is_low_confidence(self) -> None:
        differs = dataclasses.replace(AGREES, main_top=0, check_top=0)  # they agree, but on another group
        judgement = judge(self.evidence(agreement=differs))
        assert judgement.confidence is Confidence.LOW
        assert "does not concentrate the harm on the accused rows" in judgement.reasons[0]

    def test_nobody_accused_is_diffuse_and_says_what_helps(self) -> None:
        judgement = judge(self.evidence(accusation=Accusation((), "random groups are as bad")))
        assert judgement.cause is Cause.DIFFUSE
        assert "random groups are as bad" in judgement.text
        assert "fewer steps" in judgement.text
        assert any("general" in fix for fix in judgement.fixes)

    def test_a_set_up_fault_is_named_when_no_group_is(self) -> None:
        rate = Finding(
            id="config.lr_too_high",
            severity=Severity.WARNING,
            title="learning rate 0.02 is too high",
            fix=Fix(text="learning_rate 0.02 -> 0.0002"),
        )
        judgement = judge(self.evidence(accusation=Accusation((), "nothing stands out"), findings=[rate]))
        assert judgement.cause is Cause.SETUP
        assert "learning rate 0.02" in judgement.text
        assert judgement.fixes == ("learning_rate 0.02 -> 0.0002",)

    def test_a_thin_base_margin_blames_the_base(self) -> None:
        nobody = Accusation((), "nothing stands out")
        judgement = judge(self.evidence(accusation=nobody, base_margin=0.4, findings=[]))
        assert judgement.cause is Cause.BASE_MODEL

    def test_a_suspect_with_a_shared_fault_is_named_with_low_confidence(self) -> None:
        judgement = judge(self.evidence(accusation=Accusation((), "removing no group would help", suspect=1)))
        assert judgement.cause is Cause.MECHANICAL
        assert judgement.confidence is Confidence.LOW
        assert "does not confirm it" in judgement.text
        assert judgement.accused == ()

    def test_noise_is_explicitly_not_diagnosed(self) -> None:
        judgement = judge(Evidence("math", comparison(lost=9, gained=3)))
        assert judgement.cause is Cause.NONE
        assert "not diagnosed" in judgement.text
        assert "power" in judgement.fixes[0]

    def test_an_improvement_is_called_one(self) -> None:
        judgement = judge(Evidence("math", comparison(lost=0, gained=18)))
        assert judgement.text.startswith("math improved")

    def test_without_items_it_is_a_smoke_test(self) -> None:
        assert judge(Evidence("math", None)).text.startswith("Smoke test")

    def test_force_is_stamped(self) -> None:
        evidence = self.evidence(comparison=comparison(lost=9, gained=3), forced=True)
        judgement = judge(evidence)
        assert judgement.text.startswith("FORCED")
        assert judgement.confidence is Confidence.LOW


class TestEffects:
    def system(self, rows: int = 60, seed: int = 0):
        generator = np.random.default_rng(seed)
        g = generator.standard_normal((rows, 300))
        fault = generator.standard_normal(300) * 2
        g[:12] += fault
        queries = -fault + 0.5 * generator.standard_normal((9, 300))
        return g @ g.T, g @ queries.T

    def test_shares_by_hand(self) -> None:
        scores = np.array([-3.0, 1.0, -1.0, -4.0])
        assert negative_shares(scores, [[0, 1], [2], [3]]) == [0.375, 0.125, 0.5]
        assert negative_shares(np.ones(3), [[0], [1, 2]]) == [0.0, 0.0]

    def test_intervals_hold_the_share_and_are_seeded(self) -> None:
        _, dots = self.system()
        groups = [list(range(12)), list(range(12, 60))]
        one = share_intervals(dots, groups, np.random.default_rng(1))
        two = share_intervals(dots, groups, np.random.default_rng(1))
        assert one == two
        for (low, high), share in zip(one, negative_shares(dots.mean(1), groups), strict=True):
            assert low <= share <= high
        assert share_intervals(dots[:, :1], groups, np.random.default_rng(1)) == [None, None]

    def test_a_planted_group_has_the_smallest_p_and_random_ones_do_not(self) -> None:
        gram, dots = self.system()
        solution = solve(gram, dots.mean(1, keepdims=True), 1.0)
        planted = permutation_p_values(
            solution, [range(12), range(12, 36), range(36, 60)], np.random.default_rng(0), 99
        )
        assert planted[0] == 0.01
        assert min(planted[1:]) > 0.05
        mixed = [range(0, 60, 3), range(1, 60, 3), range(2, 60, 3)]
        assert min(permutation_p_values(solution, mixed, np.random.default_rng(0), 99)) > 0.05

    def test_rows_in_no_cluster_have_an_effect_but_no_p(self) -> None:
        gram, dots = self.system()
        effects, alone = group_effects(
            dots,
            gram,
            dots,
            [range(12), range(12, 60)],
            [True, False],
            np.random.default_rng(0),
            permutations=19,
        )
        assert effects[0].p_value is not None
        assert effects[1].p_value is None
        assert effects[0].removal < 0
        solution = solve(gram, dots.mean(1, keepdims=True), 1.0)
        assert alone[3] == pytest.approx(solution.removal_effect([3])[0], rel=1e-9)

    def test_fewer_permutations_where_groups_are_huge_but_never_too_few(self) -> None:
        assert affordable_permutations(199, [range(50)] * 8) == 199
        assert affordable_permutations(199, [range(5000)] * 3) < 199
        assert affordable_permutations(199, [range(100_000)]) == 19


class TestAgreement:
    def test_an_engine_agrees_with_itself(self) -> None:
        scores = np.random.default_rng(0).standard_normal(100)
        halves = [range(50), range(50, 100)]
        found = compare_engines(("a", scores), ("b", 2 * scores), halves, [True, True], [1] * 100)
        assert (found.rank_correlation, found.top_overlap) == (pytest.approx(1.0), 1.0)
        assert found.supports(())
        assert found.length_correlation == 0.0

    def test_opposite_scores_disagree(self) -> None:
        scores = np.concatenate([-np.ones(50), np.ones(50)]) * np.arange(1, 101)
        halves = [range(50), range(50, 100)]
        found = compare_engines(("a", scores), ("b", -scores), halves, [True, True], range(100))
        assert found.rank_correlation == pytest.approx(-1.0)
        assert not found.supports(())
        assert found.supports((1,))
        assert not found.supports((0,))

    def test_a_tiny_group_does_not_win_by_ratio(self) -> None:
        scores = np.zeros(100)
        scores[:40] = -1.0
        scores[40:42] = -2.0
        groups = [range(40), range(40, 42), range(42, 100)]
        assert most_concentrated(scores, groups, [True] * 3) == 0

    def test_rows_in_no_cluster_are_no_group(self) -> None:
        scores = np.array([-9.0, -9.0, -1.0, 0.0])
        assert most_concentrated(scores, [[0, 1], [2], [3]], [False, True, True]) == 1
        assert most_concentrated(scores, [[0, 1, 2, 3]], [False]) is None

    @given(st.permutations(range(8)))
    def test_ties_are_broken_by_position(self, order: list[int]) -> None:
        assert most_concentrated(np.full(8, -1.0), [[i] for i in order], [True] * 8) == 0
