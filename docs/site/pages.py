"""MkDocs hook: pages made from the README, the other documents of the repository, the keys, and the tutorials."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#:\s]+)(#[^)\s]*)?\)")
# Sections of the site; a page of docs/ that none of them names is a guide.
_NAV: dict[str, list[str]] = {
    "Tutorials": ["tutorials/ten_minutes.md", "tutorials/compare_methods.md"],
    "Method": ["method.md", "study.md", "results.md", "paper.md"],
    "Guides": ["data.md", "streams.md", "report.md", "deploy.md", "monitor.md", "scale.md"],
    "Frameworks": ["hosts.md", "third_party/README.md"],
    "Reference": ["keys.md", "api.md", "architecture.md", "reliability.md", "benchmarks/README.md"],
    "Project": ["CONTRIBUTING.md", "CHANGELOG.md"],
}


def sources() -> dict[str, str]:
    """Return the documents that are pages, by their path in the repository: the path of the page."""
    found = {"README.md": "index.md"}
    found |= {name: name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md")}
    folder = ROOT / "third_party"
    found |= {(p := str(path.relative_to(ROOT))): p for path in sorted(folder.rglob("README.md"))}
    return found | {f"docs/{path.name}": path.name for path in sorted((ROOT / "docs").glob("*.md"))}


def on_config(config: Any) -> Any:
    """Build the navigation."""
    pages = [page for path, page in sources().items() if path.startswith("docs/")]
    named = {page for section in _NAV.values() for page in section}
    guides = [page for page in pages if page not in named]
    hosts = [page for page in sources().values() if page.startswith("third_party/") and page.count("/") == 2]
    extra = {"Guides": guides, "Frameworks": hosts}
    config["nav"] = [
        {"tta-cattan": "index.md"},
        *({section: [*own, *extra.get(section, [])]} for section, own in _NAV.items()),
    ]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that do not lie in docs/."""
    made = {page: (ROOT / path).read_text(encoding="utf-8") for path, page in sources().items() if page != path[5:]}
    made["keys.md"] = keys_page()
    for script in sorted((ROOT / "docs" / "tutorials").glob("*.py")):
        made[f"tutorials/{script.stem}.md"] = tutorial_page(script.read_text(encoding="utf-8"))
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn links between documents of the repository into links between pages."""
    return relink(markdown, page.file.src_uri)


def relink(markdown: str, page: str) -> str:
    """Return ``markdown`` with its links as the site has them; a link to a source file becomes the file's name."""
    pages = sources()
    here = next((path for path, own in pages.items() if own == page), f"docs/{page}")

    def replace(match: re.Match[str]) -> str:
        image, text, target, anchor = match.groups()
        path = os.path.normpath(os.path.join(os.path.dirname(here), target))
        goal = pages.get(path, path[5:] if path.startswith("docs/") else None)
        if goal and goal.endswith(".py"):  # a tutorial is a page, another script is not
            goal = f"{goal[:-3]}.md" if goal.startswith("tutorials/") else None
        if goal is not None:
            relative = os.path.relpath(goal, os.path.dirname(page) or ".")
            return f"{image}[{text}]({relative}{anchor or ''})"
        return text if (ROOT / path).exists() else match[0]

    return _LINK.sub(replace, markdown)


def keys_page() -> str:
    """Return the page of all keys, from their declarations."""
    from tta_cattan.config.declared import SHARED, method_keys
    from tta_cattan.methods import ADAPTATION_REGISTRY, method_title

    lines = [
        "# Keys",
        "",
        "Every key of a config, made from its declaration. In YAML `OPTIM.LR` is `OPTIM: {LR: ...}`; on the command "
        "line `OPTIM.LR 1e-3` or `OPTIM.LR=1e-3`. The constructor of a method takes its own keys in small letters: "
        "`CATTAn(net, d=64)`.",
        "",
    ]
    every = method_keys("")
    groups: dict[str, dict[str, Any]] = {}
    for place, declared in (SHARED | {place: every[place] for place in method_keys("(all methods)")}).items():
        node = place.partition(".")[0] if "." in place else "General"
        groups.setdefault(f"## {node}", {})[place] = declared
    for name in ADAPTATION_REGISTRY.registered_names():
        node = f"{ADAPTATION_REGISTRY.get(name).node}."
        own = {place: declared for place, declared in method_keys(name).items() if place.startswith(node)}
        groups[f"## {method_title(name)}: `MODEL.ADAPTATION {name}`"] = own
    for heading, keys in groups.items():
        if keys:
            lines += [heading, "", *_HEAD, *(_row(place, declared) for place, declared in keys.items()), ""]
    return "\n".join(lines)


_HEAD = ("| key | default | meaning | origin |", "|---|---|---|---|")


def _row(place: str, declared: Any) -> str:
    allowed = f"; {declared.check.rule}" if declared.check and not declared.check.options else ""
    return f"| `{place}` | `{declared.default!r}` | {declared.meaning}{allowed} | {declared.origin} |".replace(
        "\\n", " "
    )


def tutorial_page(script: str) -> str:
    """Return a script with ``# %%`` cells as a page: text cells as Markdown, the others as code."""
    parts = re.split(r"^# %%(.*)$\n", script, flags=re.MULTILINE)
    lines = []
    for kind, body in zip(parts[1::2], parts[2::2], strict=True):
        if "[markdown]" in kind:
            lines.append(re.sub(r"^# ?", "", body.strip(), flags=re.MULTILINE))
        elif body.strip():
            lines.append(f"```python\n{body.strip()}\n```")
    return "\n\n".join(lines) + "\n"
