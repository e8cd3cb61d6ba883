"""The hosts we know: which one a script belongs to, and which version of it."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tta_cattan.util.errors import UserError
from tta_cattan.util.files import sha256_text

RECIPE = "model = tta_cattan.setup_model(model, cfg, num_classes, source_subspace); outputs = model(x)"


@dataclass(frozen=True)
class Host:
    """A framework: how its scripts are recognised and how they are entered.

    ``marks`` are (file beside the script, text in it); the file ``""`` is the script itself. ``tried`` is the commit
    that we ran, with the digests of some of its files. ``evaluator`` is the module and the function that evaluates a
    model on one test set.
    """

    name: str
    contract: str  # the adapter: 'ifchain', 'registry' or 'ttab'
    scripts: str
    marks: tuple[tuple[str, str], ...]
    conf: str  # the module that holds the YACS config; '' = none
    tried: str
    digests: dict[str, tuple[str, ...]]
    evaluator: tuple[str, str] | None
    cuda_only: bool = True
    takes_pairs: bool = True  # its command line accepts KEY VALUE


# The more specific host first: CoTTA has everything that TENT has.
HOSTS = (
    Host(
        name="CoTTA",
        contract="ifchain",
        scripts="cifar/cifar10c.py, cifar/cifar100c.py, imagenet/imagenetc.py",
        marks=(("", "setup_tent("), ("cotta.py", "class CoTTA"), ("conf.py", "load_cfg_fom_args")),
        conf="conf",
        tried="c212a20",
        digests={
            "conf.py": ("6c9ddcda78f3", "64ee0faa7250"),
            "cotta.py": ("bdaa5f1a6d97", "5d21c1368be9"),
            "tent.py": ("d854e1f65f74",),
        },
        evaluator=("robustbench.utils", "clean_accuracy"),
    ),
    Host(
        name="TENT",
        contract="ifchain",
        scripts="cifar10c.py",
        marks=(("", "setup_tent("), ("tent.py", "class Tent"), ("conf.py", "load_cfg_fom_args")),
        conf="conf",
        tried="e9e926a",
        digests={"conf.py": ("2588dc2171eb",), "tent.py": ("d854e1f65f74",)},
        evaluator=("robustbench.utils", "clean_accuracy"),
    ),
    Host(
        name="Benchmark-TTA",
        contract="ifchain",
        scripts="test-time.py",
        marks=(
            ("", "setup_tent("),
            ("src/methods/setup.py", "def setup_tent("),
            ("src/utils/conf.py", "load_cfg_fom_args"),
        ),
        conf="src.utils.conf",
        tried="d1c14ff",
        digests={"src/utils/conf.py": ("ea1f04670cb3",), "src/methods/setup.py": ("c4ecb9c4d426",)},
        evaluator=("src.utils", "get_accuracy"),
        takes_pairs=False,
    ),
    Host(
        name="test-time-adaptation",
        contract="registry",
        scripts="classification/test_time.py",
        marks=(
            ("", "ADAPTATION_REGISTRY"),
            ("utils/registry.py", "ADAPTATION_REGISTRY"),
            ("methods/base.py", "class TTAMethod"),
            ("conf.py", "load_cfg_from_args"),
        ),
        conf="conf",
        tried="8b2ed63",
        digests={
            "conf.py": ("5e22c3103d91",),
            "methods/base.py": ("3c7210e2fec1",),
            "utils/registry.py": ("fa6a76fb8e4e",),
        },
        evaluator=("utils.eval_utils", "get_accuracy"),
        cuda_only=False,
    ),
    Host(
        name="TTAB",
        contract="ttab",
        scripts="run_exp.py",
        marks=(
            ("", "get_model_adaptation_method"),
            ("parameters.py", "model_adaptation_method"),
            ("ttab/model_adaptation/base_adaptation.py", "class BaseAdaptation"),
        ),
        conf="",
        tried="19cb3ce",
        digests={
            "parameters.py": ("4a199d7fc7ab",),
            "ttab/model_adaptation/__init__.py": ("d366d3fdb434",),
            "ttab/model_adaptation/base_adaptation.py": ("8d6f8b390a21",),
        },
        evaluator=None,
        takes_pairs=False,
        cuda_only=False,
    ),
)


def recognise(script: Path) -> Host:
    """Return the host that ``script`` belongs to, by its text and the files beside it."""
    if not script.is_file():
        raise UserError(f"{script}: there is no such script; run the launcher from the host's folder")
    for host in HOSTS:
        if all(text in _read(script, file) for file, text in host.marks):
            return host
    known = "; ".join(f"{host.name} ({host.scripts})" for host in HOSTS)
    raise UserError(
        f"{script} belongs to no known framework. Known: {known}. In any other evaluation loop one line is "
        f"enough: {RECIPE}"
    )


def version(host: Host, script: Path) -> str:
    """Return the host's version: its git commit, and how its files compare with the commit that we tried."""
    changed = [file for file, digests in host.digests.items() if _digest(script, file) not in digests]
    files = f"{', '.join(changed)} differ{'s' * (len(changed) == 1)} from" if changed else "same files as"
    commit = _git_commit(script)
    return f"{f'commit {commit}; ' if commit else ''}{files} {host.tried}, the commit tried with this package"


def _git_commit(script: Path) -> str:
    """Return the short commit of the work tree that ``script`` is tracked in, or an empty string.

    Note: a copy of the host inside another repository is untracked there, so that commit would not identify it.
    """
    git = ["git", "-C", str(script.parent)]
    try:
        for command in (["ls-files", "--error-unmatch", script.name], ["describe", "--always", "--dirty"]):
            done = subprocess.run([*git, *command], capture_output=True, text=True, check=True, timeout=10)
        return done.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _read(script: Path, file: str) -> str:
    """Return the text of a file beside ``script`` ('' = the script itself); empty if there is none."""
    path = script.parent / file if file else script
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _digest(script: Path, file: str) -> str:
    """Return the digest of a file's text, ignoring line endings; empty if there is none."""
    text = _read(script, file)
    return sha256_text(text.replace("\r\n", "\n"))[:12] if text else ""
