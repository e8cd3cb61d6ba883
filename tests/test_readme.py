"""The README tells the truth: its Python runs, its commands are the ones that CI calls, its files exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def registry():
    """Let the README's example register its method, and take it out again."""
    from tta_cattan.methods import ADAPTATION_REGISTRY

    before = dict(ADAPTATION_REGISTRY._entries)
    yield
    ADAPTATION_REGISTRY._entries = before


def test_python_blocks_run_in_one_session(registry):
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 4
    namespace: dict = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), namespace)
    assert namespace["logits"].shape == (16, 10)


def test_the_example_that_adapts_a_model_is_ten_lines():
    block = re.search(r"```python\n(.*?)```", README, re.DOTALL).group(1)
    assert len([line for line in block.splitlines() if line.strip()]) <= 11


def test_links_and_configs_exist():
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
    for config in re.findall(r"cfgs/[\w/]+\.yaml", README):
        assert (ROOT / config).is_file(), config


def test_no_table_is_left_to_be_filled_in():
    assert "TABLE_" not in README and "TODO" not in README


def test_ci_calls_the_test_command_of_the_readme():
    assert "<!-- tests -->" in README and "<!-- tests -->" in (ROOT / ".ci" / "run").read_text()


def test_coverage_has_a_floor_and_is_measured_on_every_push():
    assert "--cov" in (ROOT / ".github" / "workflows" / "tests.yml").read_text()
    assert re.search(r"^fail_under = 9\d$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)


def test_every_named_key_is_a_key():
    from tta_cattan.config import cfg

    for key in re.findall(r"`([A-Z_]+\.[A-Z_]+)`", README):
        node, leaf = key.split(".")
        assert leaf in cfg[node], key
