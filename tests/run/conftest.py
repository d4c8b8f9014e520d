from __future__ import annotations

from pathlib import Path

import pytest

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures" / "runs"


@pytest.fixture
def runs() -> Path:
    """The run folders that real trainers wrote (scripts/make_run_fixtures.py), and hand-written ones."""
    return FIXTURES
