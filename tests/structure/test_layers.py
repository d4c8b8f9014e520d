"""Imports run downwards only, and the light packages stay light."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parent.parent.parent / "src" / "gradian"

#: From top to bottom: a package may import from those below it and from itself.
LAYERS = (
    "__main__",
    "__init__",
    "cli",
    "api",
    "verbs",
    "report",
    "attribution",
    "index",
    "engines",
    "gradients",
    "evaluation",
    "model",
    "audit",
    "run",
    "rows",
    "config",
    "safe_text",
    "errors",
    "version",
)
#: Packages that must not import these when they are imported: they serve commands that answer at once.
LIGHT = ("cli", "config", "api", "report", "audit", "run", "rows", "errors", "safe_text")
HEAVY = ("torch", "transformers", "peft", "sklearn", "scipy", "accelerate", "pyarrow")


def layer_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imports(path: Path) -> list[tuple[str, bool]]:
    """(module, whether it is imported when the file is) of every import in a file."""
    found = []
    tree = ast.parse(path.read_text(encoding="utf-8"))
    at_top = {id(node) for node in ast.walk(tree) if node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, id(node) in at_top) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "gradian":
                found += [(f"gradian.{alias.name}", id(node) in at_top) for alias in node.names]
            else:
                found.append((node.module, id(node) in at_top))
    return found


def files() -> list[tuple[str, Path]]:
    return [
        (path.relative_to(SOURCE).with_suffix("").parts[0], path) for path in sorted(SOURCE.rglob("*.py"))
    ]


def test_imports_run_downwards() -> None:
    wrong = []
    for layer, path in files():
        for module, _ in imports(path):
            if not module.startswith("gradian"):
                continue
            target = layer_of(module)
            if target in LAYERS and LAYERS.index(target) < LAYERS.index(layer):
                wrong.append(f"{path.relative_to(SOURCE)} imports {module}")
    assert wrong == []


def test_every_package_has_its_floor() -> None:
    assert {layer for layer, _ in files()} == set(LAYERS)


def test_light_packages_import_nothing_heavy_at_the_top() -> None:
    wrong = [
        f"{path.relative_to(SOURCE)} imports {module}"
        for layer, path in files()
        if layer in LIGHT
        for module, at_top in imports(path)
        if at_top and module.split(".")[0] in HEAVY
    ]
    assert wrong == []


def test_nothing_unpickles() -> None:
    """No call of a function that would run what a file says. (The run folder's reader has an unpickler of its own that
    never resolves a name; its tests try to make it.)"""
    wrong = []
    for _, path in files():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            allowed = any(k.arg == "allow_pickle" and ast.unparse(k.value) == "True" for k in node.keywords)
            if (
                called in ("pickle.load", "pickle.loads", "torch.load", "joblib.load", "eval", "exec")
                or allowed
            ):
                wrong.append(f"{path.relative_to(SOURCE)}: {called}")
    assert wrong == []
