"""Lists of images drawn at random, whole and damaged: each line comes back, and nonsense is refused in one line."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tta_cattan.bench.data.image_files import class_names_of, read_list
from tta_cattan.util.errors import UserError

FAST = settings(derandomize=True, max_examples=30, deadline=None, database=None)
# What a file may be called: no separators, and at its ends no blanks, which a list cannot show.
LETTERS = st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"], exclude_characters="/\\")
NAMES = st.text(LETTERS, min_size=1, max_size=12).filter(lambda n: n.strip() == n and n not in (".", ".."))
LABELS = st.integers(0, 99_999)
ENDINGS = st.sampled_from(["\n", "\r\n", "\n\n", "  \n"])


def write(folder: Path, content: str | bytes) -> Path:
    path = folder / "list.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@FAST
@given(st.dictionaries(st.tuples(NAMES, NAMES), LABELS, min_size=1, max_size=6), ENDINGS, st.booleans())
def test_every_line_comes_back_in_its_order(lines, ending, absolute):
    with tempfile.TemporaryDirectory() as name:
        base = Path(name) / "images"
        expected = []
        for (folder, image), label in lines.items():
            path = base / f"d{folder}" / image  # no folder is called like the list's own
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            expected.append((path, label))
        shown = [path if absolute else path.relative_to(base) for path, _ in expected]
        text = "".join(f"{path} {label}{ending}" for path, (_, label) in zip(shown, expected, strict=True))
        assert read_list(write(Path(name), text), [base]) == expected


@FAST
@given(st.binary(max_size=200) | st.text(max_size=200).filter(lambda t: t.isprintable()))
def test_nonsense_is_refused_in_one_line(content):
    with tempfile.TemporaryDirectory() as name:
        try:
            path = write(Path(name), content)
        except UnicodeEncodeError:
            return  # lone surrogates are in no file
        with pytest.raises(UserError) as caught:
            read_list(path, [Path(name) / "images"])
        assert len(str(caught.value).splitlines()) == 1 and str(path) in str(caught.value)


@FAST
@given(st.lists(st.tuples(NAMES, st.integers(0, 4)), min_size=1, max_size=12))
def test_classes_are_named_or_the_list_is_refused(lines):
    samples = [(Path("images") / folder / "a.png", label) for folder, label in lines]
    try:
        names = class_names_of(samples, "list.txt")
    except UserError as error:
        assert len(str(error).splitlines()) == 1 and str(error).startswith("list.txt: ")
    else:
        labels = {label for _, label in lines}
        assert labels == set(range(len(names)))
        assert all(names[label] in (folder, str(label)) for folder, label in lines)


@pytest.mark.parametrize(
    ("line", "part"),
    [
        (f"{'a' * 5000}.png 3", "there is no image"),
        (f"{'a/' * 3000}a.png 3", "there is no image"),
        ("a\x00b.png 3", "there is no image"),
        (f"a.png {'9' * 5000}", "is not a path and a label"),
        ("a.png -1", "is not a path and a label"),
        ("a.png 1e3", "is not a path and a label"),
        ("a.png", "is not a path and a label"),
        ("7", "is not a path and a label"),
    ],
    ids=["long name", "deep name", "null byte", "long label", "negative", "float", "no label", "no path"],
)
def test_a_line_that_no_system_takes(tmp_path, line, part):
    with pytest.raises(UserError, match="line 1: ") as caught:
        read_list(write(tmp_path, line), [tmp_path])
    assert part in str(caught.value)


def test_size_is_looked_at_before_anything_is_read(tmp_path):
    path = tmp_path / "list.txt"
    with open(path, "wb") as file:
        file.truncate(1 << 40)  # a terabyte that takes no space: reading it would not end
    with pytest.raises(UserError, match=r"1,099,511,627,776 bytes, and a list of images has 104,857,600 at most"):
        read_list(path, [tmp_path])
