"""Every setting, once: the fields are the keys of gradian.yaml, the flags of the commands and the reference page.

Light on purpose: `gradian --help` and `gradian diagnose` read this file, so it imports nothing heavy.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from gradian.errors import ConfigError


def _as_place(value: Any) -> Any:
    """A `pathlib.Path` as text, and `~` as the home folder: config files and Python know no shell."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    return os.path.expanduser(value) if isinstance(value, str) else value


def _as_text(value: Any) -> Any:
    """`projection: 64` in YAML is a number."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Place = Annotated[str, BeforeValidator(_as_place)]
"""A file or a folder; for a base model also a hub id, which holds no `~`."""


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RowSettings(_Settings):
    """Where the rows are and how they were trained on."""

    dataset: Place | None = Field(
        default=None,
        description="Training rows: .jsonl, .json, .parquet, .csv, .jsonl.gz, .jsonl.zst, or a save_to_disk folder.",
    )
    run: Place | None = Field(
        default=None,
        description="The trainer's output folder: says how rows were cut, masked and learnt from.",
    )
    trainer: str | None = Field(
        default=None,
        description="Trainer and version, such as trl==0.16.0, where the run folder does not say or says it wrongly.",
    )


class ModelSettings(_Settings):
    """Which model, and on what."""

    base_model: Place | None = Field(default=None, description="Base model: a local folder or a hub id.")
    adapter: Place | None = Field(
        default=None, description="Adapter folder (safetensors). Default: the adapter in the run folder."
    )
    revision: str | None = Field(
        default=None, description="Branch, tag or commit of the base model on the hub."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto", description="Type of the weights. auto: float32 on a CPU, as saved on a GPU."
    )
    device: str = Field(default="auto", description="auto, cpu, cuda, cuda:1 or mps.")
    trust_remote_code: bool = Field(
        default=False, description="Run the code that the base model brings with it. The report says so."
    )


class EvaluationSettings(_Settings):
    """What was lost, and how that is measured."""

    eval_dataset: Place | None = Field(
        default=None, description="Items with the wanted answer; same formats as rows."
    )
    capability: str = Field(
        default="capability", description="A name for what the items test, used in the report."
    )
    metric: str = Field(
        default="exact",
        description=(
            "exact, normalized, contains, regex, numeric, f1, rouge_l, json_valid, json_fields, json_schema, nll, "
            "or your own module:function."
        ),
    )
    metric_options: dict[str, Any] = Field(
        default_factory=dict,
        description="Options of the metric, such as pattern for regex (gradian.yaml only).",
    )
    max_new_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Tokens that a generation may have. Default: 1.5 times the longest wanted answer.",
    )
    eval_batch_size: int = Field(
        default=20, ge=1, description="Items generated together, the same in both arms."
    )
    limit: int | None = Field(
        default=None, ge=1, description="Only the first items; the report is stamped partial."
    )
    equivalence_margin: float | None = Field(
        default=None,
        gt=0,
        description="Differences inside this margin, either way, are equivalent. Default: 0.05.",
    )
    resamples: int = Field(default=10_000, ge=100, description="Bootstrap resamples of the items.")


class IndexSettings(_Settings):
    """The gradient index."""

    index_dir: Place = Field(
        default=".gradian", description="Where indexes and evaluations are kept for the next time."
    )
    projection: Annotated[str, BeforeValidator(_as_text)] = Field(
        default="auto",
        pattern=r"^(auto|exact|[1-9][0-9]*)$",
        description="Width of projected gradients: a number, exact, or auto (the widest that fits the budget).",
    )
    index_budget_gb: float = Field(
        default=1.0, gt=0, description="Size of the index that auto stays under, in GB."
    )
    stored_dtype: Literal["float32", "float16"] = Field(
        default="float32", description="Type of the stored gradients; float16 halves the index."
    )
    tokens_per_batch: int | None = Field(
        default=None, ge=1, description="Padded tokens in one pass. Default: 1,024 on a CPU, 16,384 on a GPU."
    )


class AttributionSettings(_Settings):
    """How rows and groups are judged."""

    engine: Literal["datainf", "fisher", "graddot", "gradcos"] = Field(
        default="datainf",
        description="The engine that ranks rows. Groups are always judged by the exact Fisher effect.",
    )
    max_queries: int = Field(
        default=100, ge=1, description="At most this many lost items are explained, drawn with the seed."
    )
    permutations: int = Field(default=199, ge=19, description="Random partitions behind a group's p-value.")
    force: bool = Field(
        default=False, description="Attribute although no regression was found. The report is stamped."
    )


class AuditSettings(_Settings):
    """Which checks run, and how strictly."""

    select: list[str] = Field(
        default_factory=list, description="Only checks whose id begins so (data., config.lr)."
    )
    ignore: list[str] = Field(default_factory=list, description="Not the checks whose id begins so.")
    thresholds: dict[str, float] = Field(
        default_factory=dict,
        description="Thresholds of single checks (gradian.yaml only); see gradian explain ID.",
    )
    response_marker: str | None = Field(
        default=None,
        description="Text that comes right before an answer, for collators that find answers by it.",
    )


class OutputSettings(_Settings):
    """Where the result goes."""

    out: Place | None = Field(
        default=None, description="Folder for the report, its data and the resolved config."
    )
    redact: bool = Field(default=False, description="Leave the text of rows and items out of every report.")
    seed: int = Field(default=0, ge=0, description="Seed of every random choice.")


class DiagnoseSettings(AuditSettings, RowSettings, OutputSettings):
    """`gradian diagnose`."""

    base_model: Place | None = Field(
        default=None, description="Base model: its tokenizer, template and config are read."
    )
    eval_dataset: Place | None = Field(default=None, description="Eval items, for leaks and mismatches.")
    revision: str | None = Field(
        default=None, description="Branch, tag or commit of the base model on the hub."
    )


class EvaluateSettings(EvaluationSettings, ModelSettings, RowSettings, OutputSettings, IndexSettings):
    """`gradian evaluate`."""


class BuildIndexSettings(IndexSettings, ModelSettings, RowSettings, OutputSettings):
    """`gradian index`."""


class Config(
    AttributionSettings,
    EvaluationSettings,
    IndexSettings,
    ModelSettings,
    RowSettings,
    AuditSettings,
    OutputSettings,
):
    """`gradian attribute`, and the whole of gradian.yaml."""


SettingsT = TypeVar("SettingsT", bound=BaseModel)

#: Keys of a config file, with the section under which `init-config` writes them.
SECTIONS: tuple[type[_Settings], ...] = (
    ModelSettings,
    RowSettings,
    EvaluationSettings,
    AttributionSettings,
    IndexSettings,
    AuditSettings,
    OutputSettings,
)


def read_config(path: str | Path) -> dict[str, Any]:
    """The keys of a gradian.yaml.

    Raises:
        ConfigError: not found, not YAML, not a mapping, or an unknown key (with the nearest known one and its line).
    """
    import yaml

    file = Path(path).expanduser()
    try:
        text = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(
            "config file not found", where=str(path), fix="gradian init-config --base-model NAME"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("config file cannot be read", where=str(path), why=str(error)) from None
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise ConfigError(
            "not valid YAML", where=where, why=getattr(error, "problem", None) or str(error)
        ) from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(
            "a config file holds keys and values", where=str(path), why=f"this is a {type(data).__name__}"
        )
    for key in data:
        if key not in Config.model_fields:
            raise ConfigError(f"unknown key {key!r}", where=_line_of(text, path, key), fix=_nearest(str(key)))
    return data


def resolve(kind: type[SettingsT], flags: Mapping[str, Any], config_path: str | Path | None) -> SettingsT:
    """The settings of a command: defaults, then the config file, then the flags that were given.

    Keys of the file that this command does not use are left alone: one file serves every command.

    Raises:
        ConfigError: as `read_config`, or a value that its key does not take.
    """
    data = read_config(config_path) if config_path is not None else {}
    merged = {key: value for key, value in data.items() if key in kind.model_fields and value is not None}
    merged.update(flags)
    try:
        return kind(**merged)
    except ValidationError as error:
        raise validation_error(error, str(config_path) if config_path else None, set(flags)) from None


def validation_error(error: ValidationError, source: str | None, flags: set[str]) -> ConfigError:
    """The first thing that pydantic found wrong, as a user would say it."""
    first = error.errors()[0]
    key = str(first["loc"][0]) if first["loc"] else ""
    as_flag = "--" + key.replace("_", "-")
    where = as_flag if key in flags or source is None else f"{source}: {key}"
    field = Config.model_fields.get(key)
    return ConfigError(
        f"{first['input']!r} is not a value for {key}",
        where=where,
        why=first["msg"],
        fix=f"{as_flag}: {field.description}" if field and field.description else None,
    )


def require(settings: BaseModel, *keys: str) -> None:
    """Name the first setting that this command cannot do without.

    Raises:
        ConfigError: with the flag and the key that set it.
    """
    for key in keys:
        if getattr(settings, key) is None:
            field = type(settings).model_fields[key]
            raise ConfigError(
                f"--{key.replace('_', '-')} is missing",
                why=field.description,
                fix=f"pass --{key.replace('_', '-')} ..., or set {key} in gradian.yaml and pass --config gradian.yaml",
            )


def to_yaml(settings: BaseModel) -> str:
    """The resolved settings, every key, as a config file that replays the run."""
    import yaml

    return yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def commented_config(**known: Any) -> str:
    """A gradian.yaml with every key explained; what is not known yet is a comment to fill in."""
    import yaml

    lines = [
        "# Settings of Gradian. Flags override them: gradian attribute --config gradian.yaml --metric exact",
        "",
    ]
    for section in SECTIONS:
        lines += [f"# ---- {(section.__doc__ or '').strip()}", ""]
        for key, field in section.model_fields.items():
            lines.append(f"# {field.description}")
            value = known.get(key, field.get_default(call_default_factory=True))
            text = yaml.safe_dump({key: value}, default_flow_style=False, allow_unicode=True).strip()
            lines.append(text if value is not None else f"# {key}:")
            lines.append("")
    return "\n".join(lines)


def _nearest(key: str) -> str:
    close = difflib.get_close_matches(key.replace("-", "_"), Config.model_fields, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else "gradian init-config writes a file with every key"


def _line_of(text: str, path: str | Path, key: str) -> str:
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith(f"{key}"):
            return f"{path}:{number}"
    return str(path)
