"""Reports written by hand, one for each thing that a verdict can say. No number is of a real run."""

from __future__ import annotations

from gradian.audit.finding import Finding, Fix, Severity
from gradian.report.model import (
    Agreement,
    ArmCounts,
    Cause,
    Confidence,
    Evaluation,
    Group,
    GroupFinding,
    ItemResult,
    Outcome,
    Provenance,
    Report,
    RowScore,
    Timings,
    Verdict,
)

CUT = "data.answer_cut_off"


def evaluation(**changes: object) -> Evaluation:
    fields: dict[str, object] = {
        "capability": "JSON extraction",
        "metric": "json_valid",
        "items": 120,
        "base": 0.958,
        "tuned": 0.283,
        "delta": -0.675,
        "ci": (-0.758, -0.583),
        "kept": 33,
        "lost": 82,
        "gained": 1,
        "both_wrong": 4,
        "mcnemar_p": 3.5e-23,
        "minimum_detectable_effect": 0.213,
        "equivalence_margin": 0.05,
        "base_nll": 6.417,
        "tuned_nll": 9.873,
        "base_margin": 6.79,
        "tuned_margin": -3.11,
        "base_counts": ArmCounts(empty=0, hit_token_limit=2, not_extracted=5),
        "tuned_counts": ArmCounts(empty=1, hit_token_limit=71, not_extracted=86),
        "notes": (
            "The rise in answers that hit the token limit (2 to 71) is a finding in itself: "
            "look at the ends first.",
        ),
    }
    return Evaluation.model_validate(fields | changes)


FINDINGS = (
    Finding(
        id="run.pad_is_eos",
        severity=Severity.WARNING,
        title="The pad token is the end-of-sequence token",
        message="The collator hides the pad token from the loss, so the model is never taught to stop.",
        values={"pad_token_id": 2, "eos_token_id": 2},
        assumes="the collator of TRL 1.16.0",
        fix=Fix(text="Set `pad_token` to a token of its own, for example `<|pad|>`."),
    ),
    Finding(
        id=CUT,
        severity=Severity.ERROR,
        title="Answers stop in the middle",
        message="The JSON of these answers does not close.",
        rows=tuple(range(362, 402)),
        locations=tuple(f"train.jsonl:{line}" for line in range(363, 371)),
        count=40,
        of=402,
        values={"share": 0.0995, "threshold": 0.01, "longest": [255, 256]},
        consequences=("data.no_end",),
        fix=Fix(
            text="Export the field again without its limit of 96 characters.", file="train.jsonl", safe=False
        ),
        row_level=True,
    ),
    Finding(id="run.no_packing", severity=Severity.INFO, title="Rows were not packed"),
)

ITEMS = tuple(
    ItemResult(
        item=index,
        file="eval.jsonl",
        line=index + 1,
        outcome="lost" if index % 3 else "kept",
        prompt=f"Extract name, age and city as JSON.\n{name} is {age} and lives in {city}.",
        wanted=f'{{"name": "{name}", "age": {age}, "city": "{city}"}}',
        base_said=f'{{"name": "{name}", "age": {age}, "city": "{city}"}}',
        tuned_said=f'{{"name": "{name}", "age": {age}, "ci' if index % 3 else f'{{"name": "{name}"}}',
        base_score=1.0,
        tuned_score=0.0 if index % 3 else 1.0,
    )
    for index, (name, age, city) in enumerate(
        [
            ("Anna Keller", 34, "Graz"),
            ("Bo Lindqvist", 51, "Umeå"),
            ("Chiara Russo", 28, "Bari"),
            ("Dmitri Volkov", 45, "Riga"),
            ("Emeka Obi", 39, "Enugu"),
            ("Fatima Zahra", 23, "Fès"),
            ("Goro Tanaka", 62, "大阪"),
            ("Hana Novák", 31, "Brno"),
            ("Ilse Vos", 44, "Gent"),
            ("João Prado", 57, "Natal"),
            ("Kim Ji-woo", 26, "대구"),
            ("Liam Byrne", 48, "Cork"),
        ]
    )
)

GROUPS = (
    Group(
        id="4",
        label="invoice, total, currency",
        size=40,
        rows=tuple(range(362, 402)),
        share=0.622,
        share_ci=(0.551, 0.702),
        row_share=0.0995,
        token_share=0.081,
        first_order_effect=-0.482,
        removal_effect=-6.713,
        removal_effects={"0.1": -7.204, "1": -6.713, "10": -1.041},
        explained=0.678,
        p_value=0.000999,
        accused=True,
        representative_rows=(371, 388, 394),
        findings=(
            GroupFinding(
                id=CUT,
                title="Answers stop in the middle",
                rows_with=40,
                rows_elsewhere=0,
                p_value=2.1e-57,
                fix="Export the field again without its limit of 96 characters.",
            ),
        ),
    ),
    Group(
        id="1",
        label="headline, news, topic",
        size=121,
        rows=tuple(range(121)),
        share=0.171,
        share_ci=(0.098, 0.243),
        row_share=0.301,
        token_share=0.322,
        first_order_effect=-0.0913,
        removal_effect=-0.417,
        removal_effects={"0.1": -0.522, "1": -0.417, "10": -0.118},
        explained=0.042,
        p_value=0.274,
        representative_rows=(3, 17, 88),
    ),
    Group(
        id="unclustered",
        label="unclustered",
        size=73,
        rows=tuple(range(200, 273)),
        share=0.134,
        row_share=0.1816,
        token_share=0.1511,
        first_order_effect=-0.0711,
        removal_effect=-0.263,
        removal_effects={"1": -0.263},
        p_value=0.481,
    ),
    Group(
        id="2",
        label="dialogue, summary, person",
        size=80,
        rows=tuple(range(121, 200)),
        share=0.0731,
        row_share=0.199,
        token_share=0.286,
        first_order_effect=0.012,
        removal_effect=0.0002,
        p_value=1.0,
    ),
    Group(
        id="invoices-sound",
        label="invoices-sound",
        size=12,
        rows=tuple(range(350, 362)),
        share=0.0,
        row_share=0.02985,
        token_share=0.0247,
        first_order_effect=0.0305,
        removal_effect=0.388,
        removal_effects={"1": 0.388},
        p_value=1.0,
    ),
)


def row_scores(harmful: int = 30, helpful: int = 8) -> tuple[RowScore, ...]:
    worst = [
        RowScore(
            row=362 + index,
            file="train.jsonl",
            line=363 + index,
            score=-9.31e3 / (1 + index / 4),
            share=-0.081 / (1 + index / 4),
            removal_effect=-0.0931 / (1 + index / 4),
            group="4",
            tokens=88 + index,
            loss=0.413 + index / 1000,
            findings=(CUT,),
            prompt=f"Extract the invoice as JSON: No. {1000 + index}, total 12.50 EUR",
            answer=f'{{"invoice": {1000 + index}, "total": 12.5, "curr',
        )
        for index in range(harmful)
    ]
    best = [
        RowScore(
            row=350 + index,
            file="train.jsonl",
            line=351 + index,
            score=250.5 * (index + 1),
            share=0.021 * (index + 1),
            removal_effect=0.0125 * (index + 1),
            group="invoices-sound",
            tokens=101 + index,
            loss=0.207 + index / 1000,
            prompt=f"Extract the invoice as JSON: No. {2000 + index}",
            answer=f'{{"invoice": {2000 + index}, "total": 8.0, "currency": "EUR"}}',
        )
        for index in range(helpful)
    ]
    return (*worst, *best)


PROVENANCE = Provenance(
    index_id="3f9c2a71d0b4",
    evaluation_id="a71be02c",
    base_model="HuggingFaceTB/SmolLM2-135M-Instruct",
    revision="12fd25f7",
    adapter="runs/json/checkpoint-102",
    adapter_sha256="9b1f" * 16,
    dataset_sha256="04ce" * 16,
    eval_dataset_sha256="77aa" * 16,
    rows=402,
    rows_left_out=("train.jsonl:17 is not JSON",),
    profile="TRL 1.16.0: loss on the completion, rows cut at 256 tokens",
    profile_assumed=("packing = off",),
    dtype="float32",
    device="cpu",
    engine="datainf",
    group_engine="fisher",
    damping=1.0,
    projection=64,
    sites=210,
    not_attributed=("lm_head: not a LoRA site",),
    config={"metric": "json_valid", "max_new_tokens": 48, "stop": None},
    versions={"gradian": "0.1.0", "torch": "2.13.0", "peft": "0.21.2"},
    seeds={"bootstrap": 0, "clusters": 7},
)

AGREEMENT = Agreement(
    engines=("datainf", "gradcos"),
    rank_correlation=0.713,
    top_overlap=0.84,
    top_k=50,
    same_top_group=True,
    length_correlation=-0.127,
    text="Both put the same group first.",
)

MECHANICAL = Report(
    title="JSON extraction after tuning on summaries and invoices",
    verdict=Verdict(
        outcome=Outcome.REGRESSION,
        cause=Cause.MECHANICAL,
        confidence=Confidence.HIGH,
        text="JSON extraction fell from 0.958 to 0.283 (-0.675, 95% interval [-0.758, -0.583], json_valid on "
        "120 items). The 40 rows of `invoice, total, currency` did most of it: 10.0% of the rows, 62.2% of "
        "the harm, and removing them takes back 6.713 nats (p < 0.001). All 40 of their answers stop in the "
        "middle. Export that field again and retrain.",
        reasons=(
            "Two engines put the same group first.",
            "The effect keeps its sign at every damping.",
            "No random grouping of the same sizes did as much (p < 0.001).",
        ),
        fixes=(
            "Export the field `total` again without its limit of 96 characters.",
            "Set `pad_token` to a token of its own.",
        ),
    ),
    evaluation=evaluation(),
    findings=FINDINGS,
    items=ITEMS,
    groups=GROUPS,
    rows=row_scores(),
    rows_total=402,
    agreement=AGREEMENT,
    next_steps=(
        "Retrain without the accused rows, then measure again:\n"
        "  gradian export --without-group 4 --output train.fixed.jsonl\n"
        "  gradian attribute --run runs/json-fixed --dataset train.fixed.jsonl --eval-dataset eval.jsonl",
        "Keep it from coming back: run `gradian diagnose --fail-on error` before training.",
    ),
    limits=(
        "Attribution explains the loss of the wanted answers, not the metric itself.",
        "These are candidate causes; retraining without the rows is the only proof.",
        "The part of the loss that no group explains (32.2%) may come from narrowing on short answers.",
    ),
    provenance=PROVENANCE,
    timings=Timings(
        seconds={"evaluate": 84.2, "build index": 3723.0, "attribute": 2.94},
        reused=("evaluation a71be02c",),
    ),
)


def changed(report: Report, outcome: str, cause: str, confidence: str, text: str, **fields: object) -> Report:
    verdict = Verdict.model_validate(
        {"outcome": outcome, "cause": cause, "confidence": confidence, "text": text}
        | fields.pop("verdict", {})
    )  # type: ignore[operator]
    return report.model_copy(update={"verdict": verdict, **fields})


ATTRIBUTION: dict[str, object] = {"groups": (), "rows": (), "rows_total": 0, "agreement": None}
BLAMELESS = tuple(group.model_copy(update={"accused": False, "findings": ()}) for group in GROUPS[1:])

REPORTS: dict[str, Report] = {
    "mechanical": MECHANICAL,
    "content": changed(
        MECHANICAL,
        "regression",
        "content",
        "medium",
        "The rows of `headline, news, topic` did most of it.",
        groups=(GROUPS[1].model_copy(update={"accused": True}), *GROUPS[2:]),
        findings=(),
    ),
    "setup": changed(
        MECHANICAL,
        "regression",
        "setup",
        "low",
        "No group stands out, and the learning rate is ten times too high.",
        groups=BLAMELESS,
        verdict={"reasons": ("No group of rows is worse than a random one (p = 0.274).",)},
    ),
    "diffuse": changed(
        MECHANICAL,
        "regression",
        "diffuse",
        "low",
        "The capability fell, and no group of rows stands out.",
        groups=BLAMELESS,
        findings=(),
    ),
    "base_model": changed(
        MECHANICAL,
        "no_target",
        "base_model",
        "medium",
        "The base model could not do this either: 0.042 of 120 items.",
        evaluation=evaluation(
            base=0.042,
            tuned=0.033,
            delta=-0.0083,
            ci=(-0.042, 0.025),
            kept=3,
            lost=2,
            gained=1,
            both_wrong=114,
            mcnemar_p=1.0,
        ),
        **ATTRIBUTION,
    ),
    "equivalent": changed(
        MECHANICAL,
        "equivalent",
        "none",
        "none",
        "No change larger than 0.050 in either direction.",
        evaluation=evaluation(
            tuned=0.95,
            delta=-0.0083,
            ci=(-0.033, 0.017),
            kept=113,
            lost=2,
            gained=1,
            mcnemar_p=1.0,
            minimum_detectable_effect=0.04,
        ),
        items=(),
        **ATTRIBUTION,
    ),
    "inconclusive": changed(
        MECHANICAL,
        "inconclusive",
        "none",
        "none",
        "The change could be noise: about 800 items would settle it.",
        evaluation=evaluation(
            metric="json_fields",
            items=40,
            tuned=0.908,
            delta=-0.05,
            ci=(-0.125, 0.025),
            kept=36,
            lost=3,
            gained=1,
            both_wrong=0,
            mcnemar_p=None,
            partial=True,
        ),
        verdict={"forced": True},
        groups=BLAMELESS,
    ),
    "smoke_test": Report(
        title="Smoke test",
        smoke_test=True,
        verdict=Verdict(
            outcome=Outcome.NO_TARGET,
            cause=Cause.NONE,
            confidence=Confidence.NONE,
            text="Nothing was evaluated: the run has no eval file.",
        ),
    ),
}
