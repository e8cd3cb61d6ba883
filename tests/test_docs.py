"""The documentation: the site builds without a broken link, the tutorials run, the figure is drawn by its script."""

from __future__ import annotations

import re
import runpy
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.py"))


@pytest.mark.skipif(find_spec("mkdocs") is None, reason="MkDocs is not installed: pip install 'tta-cattan[docs]'")
def test_the_site_builds_strictly_and_has_every_key(tmp_path, monkeypatch):
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    from tta_cattan.config.declared import declared_keys

    monkeypatch.chdir(ROOT)
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path), strict=True)
    build(config)  # a broken link or anchor raises
    pages = {path.parent.name for path in tmp_path.rglob("index.html")}
    assert pages >= {"method", "keys", "api", "ten_minutes", "compare_methods", "CONTRIBUTING", "tent", "results"}
    keys = (tmp_path / "keys" / "index.html").read_text(encoding="utf-8")
    assert [name for name in declared_keys() if f"<code>{name}</code>" not in keys] == []
    interface = (tmp_path / "api" / "index.html").read_text(encoding="utf-8")
    assert "fit_subspace" in interface and "hard_likelihood_ratio" in interface
    home = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert not re.search(r'<(?:script|link|img)[^>]*(?:src|href)="https?://', home), "nothing is loaded from elsewhere"


@pytest.mark.parametrize("script", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_runs_and_draws_its_pictures(script, tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng():
        runpy.run_path(str(script))
    assert "%" in capsys.readouterr().out
    pictures = set(re.findall(r"!\[[^\]]*\]\(([\w.]+)\)", script.read_text(encoding="utf-8")))
    assert {path.name for path in tmp_path.iterdir()} == pictures
    assert all((script.parent / name).is_file() for name in pictures)


def test_nothing_in_the_documents_is_a_diary_or_points_outside():
    documents = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("third_party/**/*.md"),
        *ROOT.glob("benchmarks/*.md"),
    ]
    for path in documents:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"\.\./shared|cores were shared|earlier commit", text), path
        assert not [here for here in (ROOT, Path.home(), tempfile.gettempdir()) if f"{here}/" in text], path
        assert not re.search(r"\b(commit|revision) `?[0-9a-f]{7,40}\b", text), path
