"""What a user did or has that stops Gradian: a message to print, never a traceback.

    GradianError                what the user can put right; exit code 2
    ├── InputError              a file, folder or row that cannot be used
    ├── ConfigError             a flag or a key of gradian.yaml
    ├── ModelError              the base model, the tokenizer or the device
    │   └── AdapterError        the adapter, alone or against its base
    ├── IndexStoreError         the gradient index on disk
    └── MissingDependencyError  a package that this command needs

Programmer errors stay assertions with a sentence.
"""

from __future__ import annotations


class GradianError(Exception):
    """Something that the user can put right.

    Args:
        what: one clause: what could not be done.
        where: `train.jsonl:812`, a path, a tensor's name, a config key.
        why: why it matters or what was found instead.
        fix: the command or the edit that puts it right.
    """

    exit_code = 2

    def __init__(
        self, what: str, *, where: str | None = None, why: str | None = None, fix: str | None = None
    ) -> None:
        self.what = what
        self.where = where
        self.why = why
        self.fix = fix
        super().__init__(str(self))

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        lines = [head]
        if self.why:
            lines.append(f"  why: {self.why}")
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        return "\n".join(lines)


class InputError(GradianError):
    """A file, a folder or a row that cannot be used."""


class ConfigError(GradianError):
    """A flag or a key of the configuration file is wrong."""


class ModelError(GradianError):
    """The base model, its tokenizer or the device cannot be used."""


class AdapterError(ModelError):
    """The adapter cannot be used, alone or with this base model."""


class IndexStoreError(GradianError):
    """The gradient index on disk is damaged, locked or of another run."""


class MissingDependencyError(GradianError):
    """A package that this command needs is not installed."""
