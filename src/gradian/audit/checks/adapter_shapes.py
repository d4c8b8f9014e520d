"""The shapes of the adapter's matrices against its own rank and the base model's sizes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gradian.audit.change import change
from gradian.audit.checks.adapter_names import UNREACHED_BY_TEXT, lora_adapter
from gradian.audit.finding import Fix, Severity
from gradian.audit.registry import Need, NotApplicableError, Observation, check
from gradian.audit.wording import listed, plural
from gradian.run.adapter import LORA_KEY, WEIGHTS_NAME, AdapterFile, inside
from gradian.run.safetensors_header import Tensor

if TYPE_CHECKING:
    from gradian.audit.context import AuditContext


@check(
    "adapter.rank_mismatch",
    title="Matrix shapes that do not fit",
    severity=Severity.ERROR,
    needs=(Need.ADAPTER,),
    explain="""
A must be `[r, in]` and B `[out, r]`, with the r of adapter_config.json (or of its `rank_pattern`), and in
and out must be the base model's sizes. When they are not, loading fails, or the config is another adapter's:
with the wrong r the scale alpha / r is wrong too.

**Not looked at:** parameters adapted with `target_parameters`, whose A holds r rows for every expert.

**Fix.** The r of the weights, or the config that belongs to them.
""",
)
def rank_mismatch(context: AuditContext) -> Iterator[Observation]:
    run, adapter = lora_adapter(context)
    stated = adapter.config.get("r")
    if not isinstance(stated, int) or adapter.config.get("target_parameters"):
        raise NotApplicableError("the config states no single rank")
    shapes = {tensor.name: tensor for tensor in adapter.tensors}
    wrong: list[str] = []
    ranks: Counter[int] = Counter()
    for a_tensor in adapter.matrices("lora_A"):
        match = LORA_KEY.match(a_tensor.name)
        assert match is not None, "matrices of a kind match the pattern"
        b_tensor = shapes.get(a_tensor.name.replace("lora_A", "lora_B"))
        rank = a_tensor.shape[0] if a_tensor.shape else 0
        ranks[rank] += 1
        expected = _rank_of(match["module"], stated, adapter.config.get("rank_pattern"))
        if rank != expected or b_tensor is None or len(b_tensor.shape) < 2 or b_tensor.shape[1] != rank:
            wrong.append(
                f"{match['module']} (A {list(a_tensor.shape)}, B {list(b_tensor.shape) if b_tensor else 'missing'})"
            )
    sizes = _wrong_sizes(adapter, context.base_config)
    if not wrong and not sizes:
        return
    common = ranks.most_common(1)[0][0] if ranks else stated
    only_rank = bool(wrong) and common != stated
    yield Observation(
        title=(
            f"{len(wrong)} of {len(adapter.matrices('lora_A'))} modules do not have rank {stated}"
            if wrong
            else f"{plural(len(sizes), 'matrix', 'matrices')} of another size than the base model's"
        ),
        message=f"The first: {listed((wrong or sizes)[:3])}.",
        count=len(wrong) or len(sizes),
        of=len(adapter.matrices("lora_A")),
        values={"r": stated, "ranks": {str(rank): count for rank, count in sorted(ranks.items())},
                "modules": (wrong or sizes)[:20]},
        locations=(inside(adapter.name, WEIGHTS_NAME), inside(adapter.name, "adapter_config.json")),
        fix=change(run.settings, "lora_r", common)
        if only_rank
        else Fix(text="load the adapter with the base model and the adapter_config.json it was saved with"),
    )  # fmt: skip


def _rank_of(module: str, rank: int, pattern: Any) -> int:
    """The rank of a module: that of the pattern's first key that matches the end of its name, as PEFT
    does.
    """
    for key, value in pattern.items() if isinstance(pattern, dict) else ():
        try:
            matches = re.match(rf"(.*\.)?({key})$", module)
        except re.error:
            continue
        if matches and isinstance(value, int):
            return value
    return rank


def _wrong_sizes(adapter: AdapterFile, config: Mapping[str, Any] | None) -> list[str]:
    """Matrices that read or write the residual stream with another width than the base model's."""
    width = (config or {}).get("hidden_size")
    if not isinstance(width, int) or "text_config" in (config or {}):
        return []
    reads = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
    writes = ("o_proj", "down_proj")
    wrong = []
    for tensor in adapter.tensors:
        match = LORA_KEY.match(tensor.name)
        if match is None or len(tensor.shape) != 2 or UNREACHED_BY_TEXT.search(tensor.name):
            continue
        last = match["module"].rsplit(".", 1)[-1]
        size = _width(match["matrix"], last, tensor, reads, writes)
        if size is not None and size != width:
            wrong.append(f"{match['module']}.{match['matrix']} {list(tensor.shape)}, hidden_size {width}")
    return wrong


def _width(
    matrix: str, last: str, tensor: Tensor, reads: tuple[str, ...], writes: tuple[str, ...]
) -> int | None:
    if matrix == "lora_A" and last in reads:
        return tensor.shape[1]
    return tensor.shape[0] if matrix == "lora_B" and last in writes else None
