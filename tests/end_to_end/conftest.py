"""One tiny base model and two fine-tunes of it, trained once for all tests here."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from support.planted import FineTuneFolder, make_base, make_fine_tune


@pytest.fixture(scope="session")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return make_base(tmp_path_factory.mktemp("base") / "model")


@pytest.fixture(scope="session")
def faulty(base_model: Path, tmp_path_factory: pytest.TempPathFactory) -> FineTuneFolder:
    return make_fine_tune(tmp_path_factory.mktemp("faulty") / "run", base_model, faulty=True)


@pytest.fixture(scope="session")
def sound(base_model: Path, tmp_path_factory: pytest.TempPathFactory) -> FineTuneFolder:
    return make_fine_tune(tmp_path_factory.mktemp("sound") / "run", base_model, faulty=False)
