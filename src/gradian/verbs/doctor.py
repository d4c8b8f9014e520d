"""`doctor`: what this machine has for Gradian, and what it lacks. Loads torch to ask for devices, nothing else."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gradian.version import __version__

#: Package -> what it is needed for.
NEEDED = {
    "torch": "models",
    "transformers": "models",
    "peft": "adapters",
    "accelerate": "models on several devices",
    "safetensors": "weights",
    "tokenizers": "tokenizers",
    "huggingface_hub": "cached models",
    "numpy": "everything",
    "scipy": "exact tests",
    "scikit-learn": "clusters",
    "pyarrow": "arrow and parquet rows",
}
OPTIONAL = {
    "zstandard": (".jsonl.zst rows", 'pip install "gradian[zst]"'),
    "jsonschema": ("the metric json_schema", 'pip install "gradian[schema]"'),
}


@dataclass(frozen=True)
class State:
    """What was found. `missing` maps a needed package to the command that installs it."""

    gradian: str
    python: str
    platform: str
    environment: str
    packages: dict[str, str]
    optional: dict[str, str]
    missing: dict[str, str]
    devices: list[str]
    memory_gb: float | None
    free_disk_gb: float
    hub_cache: str
    hub_cache_exists: bool
    offline: bool
    warnings: list[str]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def as_text(self) -> str:
        """Lines for a terminal."""
        lines = [
            f"gradian       {self.gradian}",
            f"python        {self.python}, {self.platform}",
            f"environment   {self.environment}",
            *(f"{name:<14}{found}" for name, found in self.packages.items()),
            *(f"{name:<14}{found}" for name, found in self.optional.items()),
            f"devices       {', '.join(self.devices) or 'none: torch is missing'}",
            f"memory        {self.memory_gb:.0f} GB"
            if self.memory_gb is not None
            else "memory        not known",
            f"free disk     {self.free_disk_gb:.0f} GB here",
            f"hub cache     {self.hub_cache}" + ("" if self.hub_cache_exists else " (not there yet)"),
            f"network       {'offline: HF_HUB_OFFLINE=1' if self.offline else 'models may be fetched'}",
        ]
        lines += [f"missing       {name}: {command}" for name, command in self.missing.items()]
        lines += [f"warning       {text}" for text in self.warnings]
        return "\n".join(lines)


def examine() -> State:
    """Look at this machine."""
    packages, missing = {}, {}
    for name, purpose in NEEDED.items():
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = f"missing (for {purpose})"
            missing[name] = f"{sys.executable} -m pip install {name}"
    optional = {}
    for name, (purpose, command) in OPTIONAL.items():
        try:
            optional[name] = version(name)
        except PackageNotFoundError:
            optional[name] = f"not installed (for {purpose}: {command})"
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    return State(
        gradian=__version__,
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        environment=sys.prefix,
        packages=packages,
        optional=optional,
        missing=missing,
        devices=_devices() if "torch" not in missing else [],
        memory_gb=_memory_gb(),
        free_disk_gb=shutil.disk_usage(".").free / 1e9,
        hub_cache=str(cache),
        hub_cache_exists=cache.is_dir(),
        offline=os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"),
        warnings=_warnings(),
    )


def _devices() -> list[str]:
    import torch

    devices = [f"cpu ({torch.get_num_threads()} threads)"]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        devices.append(f"cuda:{index} ({properties.name}, {properties.total_memory / 1e9:.0f} GB)")
    if torch.backends.mps.is_available():
        devices.append("mps")
    return devices


def _memory_gb() -> float | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    except (ValueError, OSError, AttributeError):
        return None


def _warnings() -> list[str]:
    place = sys.prefix.replace("\\", "/")
    if "/pipx/" in place or "/uv/tools/" in place:
        return [
            "this is an isolated tool environment: install gradian into the environment that trained the model"
        ]
    return []
