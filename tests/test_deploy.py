"""docs/deploy.md tells the truth: its Python runs from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path

import torch

PAGE = (Path(__file__).parent.parent / "docs" / "deploy.md").read_text(encoding="utf-8")


def test_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict = {}
    torch.manual_seed(0)
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "deploy.md", "exec"), namespace)
    assert namespace["service"].streams.names() == ["camera-0", "camera-1", "camera-2"]
    assert "drift" in {event for event, _ in namespace["alerts"]}
    assert "\n" not in repr(namespace["subspace"])
