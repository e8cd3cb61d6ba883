"""Nothing in the package runs what it reads: no eval, no shell, no pickle, no unsafe YAML, no archive unpacked."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "tta_cattan"
FILES = sorted(PACKAGE.rglob("*.py"))
BUILTINS = {"eval", "exec", "compile", "__import__"}
CALLS = {
    "os.system", "os.popen", "pickle.load", "pickle.loads", "pickle.Unpickler", "marshal.loads", "shelve.open",
    "joblib.load", "dill.load", "dill.loads", "shutil.unpack_archive", "yaml.unsafe_load", "yaml.full_load",
    "subprocess.getoutput", "subprocess.getstatusoutput", "torch.hub.load",
}  # fmt: skip
# The launcher runs the host's own script: that is its task, and the user names the script.
MEANT = {
    "host/launcher.py": ["compile", "exec"],
    "bench/run/launchers.py": ["pickle.loads"],  # what a run's own processes tell each other
}
METHODS = {"extractall", "extract"}  # of archives


def name_of(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return f"{name_of(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""


def keyword(call: ast.Call, name: str) -> object:
    """Return the constant given for a keyword, the name of what is given, or None."""
    for given in call.keywords:
        if given.arg == name:
            return given.value.value if isinstance(given.value, ast.Constant) else name_of(given.value)
    return None


def dangers(source: str) -> list[str]:
    """Return the calls in a file that could run what they read."""
    found = []
    for call in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)):
        name = name_of(call.func)
        if name in BUILTINS | CALLS or (isinstance(call.func, ast.Attribute) and call.func.attr in METHODS):
            found.append(name)
        elif keyword(call, "shell") not in (None, False):
            found.append(f"{name}(shell=...)")
        elif name == "torch.load" and keyword(call, "weights_only") is not True:
            found.append("torch.load without weights_only=True")
        elif name in ("np.load", "numpy.load") and keyword(call, "allow_pickle") is not False:
            found.append("np.load without allow_pickle=False")
        elif name == "yaml.load" and not str(keyword(call, "Loader")).endswith(("SafeLoader", "BaseLoader")):
            found.append("yaml.load without a safe loader")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_no_file_could_run_what_it_reads(path):
    allowed = MEANT.get(path.relative_to(PACKAGE).as_posix(), [])
    assert dangers(path.read_text(encoding="utf-8")) == allowed


@pytest.mark.parametrize(
    "source",
    [
        "eval('1')", "exec(text)", "os.system('ls')", "subprocess.run('ls', shell=True)", "pickle.loads(data)",
        "torch.load(path)", "torch.load(path, weights_only=False)", "np.load(path)", "np.load(p, allow_pickle=True)",
        "yaml.load(text, Loader=yaml.Loader)", "yaml.load(text)", "tarfile.open(p).extractall(folder)",
        "shutil.unpack_archive(p)", "f(shell=flag)",
    ],
)  # fmt: skip
def test_the_search_finds_each_kind(source):
    assert len(dangers(source)) == 1


SAFE = ["torch.load(p, weights_only=True)", "yaml.load(t, Loader=Mine.SafeLoader)", "np.load(p, allow_pickle=False)"]


@pytest.mark.parametrize("source", SAFE)
def test_the_search_lets_the_safe_ways_pass(source):
    assert dangers(source) == []
