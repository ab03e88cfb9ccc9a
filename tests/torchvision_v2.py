"""torchvision, as what ops are compared with: installed, or as `tools/venv` puts it beside, for CUDA or not."""

import importlib
import importlib.util
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch


def _libraries() -> list[str]:
    spec = importlib.util.find_spec("torchvision")
    folders = list(spec.submodule_search_locations or []) if spec else []
    return [str(path) for folder in folders for path in Path(folder).glob("_C*.so")]


def torchvision_v2(module: str = "torchvision.transforms.v2") -> Any:
    """Return a module of torchvision; skip the test without it."""
    if (beside := str(Path(sys.prefix) / "beside")) not in sys.path:
        sys.path.append(beside)  # behind what is installed
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    if "torchvision" not in sys.modules:
        # A build for another torch has no operators here. Transforms do not use them; importing asks for some.
        with suppress(OSError):
            torch.ops.load_library(*_libraries())
        for name in ("nms", "qnms"):
            if not hasattr(torch.ops.torchvision, name):
                torch.library.define(
                    f"torchvision::{name}", "(Tensor a, Tensor b, float c) -> Tensor"
                )
    return importlib.import_module(module)
