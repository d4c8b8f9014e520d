"""What the documentation shows can be typed: every `$ gradian` line of these pages is run, and the Python page too."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gradian.cli import main
from support.planted import make_base, make_fine_tune

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGES = ("attribute.md", "gradient-index.md", "configuration.md")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder: base-model/, runs/mine/, train.jsonl, eval.jsonl, as the pages name them."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("project")
    base = make_base(folder / "base-model", steps=60)
    made = make_fine_tune(folder / "made", base, faulty=True, steps=10)
    shutil.move(made.train, folder / "train.jsonl")
    shutil.move(made.evaluation, folder / "eval.jsonl")
    shutil.move(made.adapter.parent, folder / "runs" / "mine")
    return folder


def commands_of(page: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ gradian")]


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_run(page: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    commands = commands_of(page)
    assert commands, "the page shows no command"
    for command in commands:
        assert main(shlex.split(command)[1:]) == 0, command


def test_the_python_page_runs(project: Path) -> None:
    text = (DOCS / "python.md").read_text(encoding="utf-8")
    program = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=project, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_configuration_page_is_current() -> None:
    from importlib.util import module_from_spec, spec_from_file_location

    path = DOCS.parent / "scripts" / "make_configuration_page.py"
    spec = spec_from_file_location("make_configuration_page", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text(encoding="utf-8") == module.page(), "run scripts/make_configuration_page.py"


def test_every_page_is_listed_and_every_link_leads_somewhere() -> None:
    listed = set(re.findall(r"\]\(([a-z-]+\.md)\)", (DOCS / "README.md").read_text(encoding="utf-8")))
    assert listed == {path.name for path in DOCS.glob("*.md")} - {"README.md"}
    for page in (*DOCS.glob("*.md"), DOCS.parent / "README.md"):
        for target in re.findall(r"\]\(([^)#]+\.md)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).is_file(), f"{page.name} links to {target}"
