"""`index`: every training row's gradient, once; `load_index`: what lies there."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradian.config import BuildIndexSettings, Config, require
from gradian.errors import GradianError, IndexStoreError, InputError
from gradian.rows.training_set import TrainingSet, read_training_set
from gradian.verbs.fine_tune import FineTune
from gradian.verbs.listener import Listener, Silent
from gradian.version import __version__

if TYPE_CHECKING:
    from gradian.gradients.capture import GradientCapture
    from gradian.gradients.layout import Layout
    from gradian.index.store import IndexStore


#: `auto` keeps the width of an existing index up to this many times the budget.
ROOM_TO_GROW = 1.5
#: Architectures whose positions are learnt embeddings although their config names no `n_positions`.
LEARNT_POSITIONS = frozenset({"opt", "gpt_neo", "gpt_bigcode", "biogpt", "xglm"})


@dataclass(frozen=True)
class Index:
    """A complete gradient index.

    Attributes:
        folder: where it lies. store: to read vectors from. manifest: what it says about itself.
        computed, copied, found: rows computed by this call, copied from another index, found there.
    """

    folder: Path
    store: IndexStore
    manifest: dict[str, Any]
    computed: int = 0
    copied: int = 0
    found: int = 0

    @property
    def index_id(self) -> str:
        return str(self.manifest["index_id"])


def build_index(
    settings: BuildIndexSettings | Config,
    listener: Listener | None = None,
    fine_tune: FineTune | None = None,
    training_set: TrainingSet | None = None,
) -> Index:
    """Build the index of a dataset, finish it, or find it finished.

    Raises:
        GradianError: a setting is missing or wrong, an input cannot be used, no space.
    """
    from gradian.index.build import build, size_up
    from gradian.index.identity import GradientSpec, Identity, computing_versions, row_hash, rows_digest
    from gradian.index.store import RowEntry

    listener = listener or Silent()
    require(settings, "dataset")
    assert settings.dataset is not None, "checked by require"
    fine_tune = fine_tune or FineTune(settings, listener)
    rows = training_set or read_training_set(settings.dataset, fine_tune.tokenizer, fine_tune.profile)
    sequences = as_sequences(rows)
    _check_context(fine_tune, rows)
    layout = choose_layout(settings, fine_tune, len(sequences), listener)
    device = fine_tune.compute[0].partition(":")[0]
    tokens_per_batch = batch_tokens(settings, fine_tune)
    hashes = [row_hash(sequence) for sequence in sequences]
    identity = Identity(
        base_sha256=fine_tune.base_sha256,
        adapter_sha256=fine_tune.adapter_sha256,
        spec=GradientSpec(layout.k, layout.seed, settings.stored_dtype, fine_tune.compute[1], device),
        rows_sha256=rows_digest(hashes),
        versions=computing_versions(),
    )
    root = fine_tune.state / "index"
    if not (root / identity.index_id / "manifest.json").is_file():
        listener.say(f"gradient index: {size_up(sequences, layout, settings.stored_dtype, root)}")
    entries = [
        RowEntry(row.row, row.file, row.line, row_id, len(tokens.ids), tokens.loss_tokens, row.group)
        for row, tokens, row_id in zip(rows.rows, rows.tokens, hashes, strict=True)
    ]
    built = build(
        root,
        identity,
        layout,
        sequences,
        entries,
        capture_of(fine_tune, layout),
        tokens_per_batch=tokens_per_batch,
        describe={
            "gradian": __version__,
            "base_model": fine_tune.base.name,
            "adapter": str(fine_tune.adapter.path),
            "dataset": settings.dataset,
            "sites": len(fine_tune.adapter.sites),
            "tokens_per_batch": tokens_per_batch,
        },
        progress=lambda done, total: listener.progress("gradients of rows (tokens)", done, total),
        announce=listener.say,
    )
    return Index(
        root / identity.index_id, built.store, built.manifest, built.computed, built.copied, built.found
    )


def load_index(path: str | Path) -> Index:
    """An index from its folder, or from a folder that holds exactly one.

    Raises:
        IndexStoreError: no complete index there; the message lists what is.
    """
    from gradian.index.store import open_store

    folder = Path(path)
    if not folder.is_dir():
        raise IndexStoreError("no such folder", where=str(path), fix="gradian show-index .gradian")
    if not (folder / "manifest.json").is_file() and not (folder / "state.bin").is_file():
        inside = folder / "index" if (folder / "index").is_dir() else folder
        found = sorted(child for child in inside.iterdir() if (child / "manifest.json").is_file())
        if len(found) != 1:
            names = ", ".join(child.name for child in found) or "none"
            raise IndexStoreError(
                f"{len(found)} indexes here: {names}",
                where=str(inside),
                fix=f"gradian show-index {inside}/ID",
            )
        folder = found[0]
    store, manifest = open_store(folder)
    return Index(folder, store, manifest, found=store.count)


def summary_of(folder: str, manifest: dict[str, Any], counts: dict[str, int]) -> list[tuple[str, str]]:
    """An index in a few lines: name and value."""
    from gradian.index.build import format_bytes

    spec, layout = manifest["identity"]["spec"], manifest["layout"]
    blocks = layout["blocks"]
    dimension = sum(entry[4] * (entry[2] if entry[1] == "A" else entry[3]) for entry in blocks)
    how = "exact" if layout["k"] is None else f"projected to {layout['k']}"
    lines = [
        ("index", f"{manifest['index_id']} in {folder}"),
        ("base model", str(manifest["base_model"])),
        ("adapter", f"{manifest['adapter']} ({manifest['sites']} LoRA sites)"),
        ("dataset", f"{manifest['dataset']}: {manifest['rows']:,} rows, {manifest['tokens']:,} tokens"),
        (
            "vectors",
            f"{dimension:,} values a row, {how}, {spec['stored_dtype']}: {format_bytes(manifest['vector_bytes'])}",
        ),
        ("built", f"in {manifest['timings']['build_seconds']:.1f} s by gradian {manifest['gradian']}"),
    ]
    if counts:
        lines.append(("rows", ", ".join(f"{number:,} {name}" for name, number in counts.items())))
    return lines


def batch_tokens(settings: Any, fine_tune: FineTune) -> int:
    """Padded tokens in one pass: as set, else what suits the kind of device."""
    from gradian.index.build import TOKENS_PER_BATCH

    device = fine_tune.compute[0].partition(":")[0]
    return settings.tokens_per_batch or TOKENS_PER_BATCH.get(device, TOKENS_PER_BATCH["cpu"])


def as_sequences(rows: TrainingSet) -> list[Any]:
    """The rows as token sequences, in order."""
    from gradian.gradients.batch import TokenSequence

    return [TokenSequence(row.ids, row.loss_mask) for row in rows.tokens]


def choose_layout(settings: Any, fine_tune: FineTune, rows: int, listener: Listener) -> Layout:
    """The layout that `--projection` and `--index-budget-gb` ask for.

    `auto` keeps the width of an index that this adapter already has where it fits, so that added rows do not change the
    width and with it every vector.
    """
    from gradian.gradients.layout import choose_projection, make_layout

    shapes = fine_tune.adapter.site_shapes
    if settings.projection != "auto":
        return make_layout(shapes, None if settings.projection == "exact" else int(settings.projection))
    budget = int(settings.index_budget_gb * 1e9)
    width = 2 if settings.stored_dtype == "float16" else 4
    for k in _widths_in_use(fine_tune):
        if make_layout(shapes, k).dimension * rows * width <= ROOM_TO_GROW * budget:
            return make_layout(shapes, k)
    k = choose_projection(shapes, rows, budget, width)
    layout = make_layout(shapes, k)
    if layout.dimension * rows * width > budget:
        listener.say(
            f"even the narrowest projection ({k}) is over --index-budget-gb {settings.index_budget_gb:g}"
        )
    return layout


def _widths_in_use(fine_tune: FineTune) -> list[int | None]:
    """Projections of the complete indexes of this adapter, exact ones first, then the widest."""
    from gradian.index.store import read_manifest

    found: set[int | None] = set()
    root = fine_tune.state / "index"
    for folder in sorted(root.iterdir()) if root.is_dir() else []:
        try:
            manifest = read_manifest(folder)
            if manifest["identity"]["adapter_sha256"] == fine_tune.adapter_sha256:
                found.add(manifest["layout"]["k"])
        except (GradianError, KeyError, TypeError, OSError):
            continue  # unfinished, damaged or foreign: nothing to learn from it
    return sorted(found, key=lambda k: (k is not None, -(k or 0)))


def _check_context(fine_tune: FineTune, rows: TrainingSet) -> None:
    """A model with learnt positions has no embedding for a token beyond them.

    Raises:
        InputError: names the first such row.
    """
    config = json.loads((fine_tune.base.path / "config.json").read_text(encoding="utf-8"))
    limit = config.get("n_positions")
    if limit is None and config.get("model_type") in LEARNT_POSITIONS:
        limit = config.get("max_position_embeddings")
    if not isinstance(limit, int):
        return
    for row, tokens in zip(rows.rows, rows.tokens, strict=True):
        if len(tokens.ids) > limit:
            raise InputError(
                f"this row has {len(tokens.ids):,} tokens, the base model takes {limit:,}",
                where=row.where,
                why="it cannot have been trained on like this; the run folder may state another length limit",
                fix="--run FOLDER or --trainer NAME==VERSION, so that rows are cut as they were in training",
            )


def capture_of(fine_tune: FineTune, layout: Layout) -> Callable[[], GradientCapture]:
    """Hooks on the model, which is loaded when they are asked for."""

    def open_capture() -> GradientCapture:
        from gradian.gradients.capture import GradientCapture

        return GradientCapture(fine_tune.loaded.model, fine_tune.loaded.sites, layout)

    return open_capture
