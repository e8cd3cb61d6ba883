"""Ctrl-C: never lost, told in one line, and left to a program that has its own way with it."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import threading

import pytest

from tta_cattan.cli import main as command_line
from tta_cattan.util.errors import interruptible, raise_if_interrupted
from tta_cattan.util.progress import progress


class PressesInDel:
    """Python drops what is raised while an object is deleted; tqdm's bars have such a method."""

    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(100):  # the handler runs between two instructions
            pass


@pytest.fixture
def unraisable(monkeypatch):
    lost = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: lost.append(args.exc_type))
    return lost


@pytest.mark.parametrize("way", ["iterate", "update"])
def test_a_press_that_python_drops_ends_the_next_step_of_a_loop(way, unraisable):
    steps = 0
    with interruptible() as pressed, pytest.raises(KeyboardInterrupt):
        bar = progress(range(5), 5, "steps")
        for _ in bar if way == "iterate" else range(5):
            steps += 1
            if way == "update":
                bar.update()
            if steps == 2:
                PressesInDel()
    assert pressed.is_set() and steps == (2 if way == "iterate" else 3)
    assert unraisable == [], "no traceback of what is raised again"
    raise_if_interrupted()  # of the block that is over, nothing is left


@pytest.mark.parametrize("wish", ["", "1"])
def test_a_press_at_any_line_of_a_new_bar_leaves_no_traceback(wish, monkeypatch, unraisable):
    monkeypatch.setenv("TTA_CATTAN_PROGRESS", wish)
    for number in itertools.count():
        left = number

        def trace(frame, event, arg):
            nonlocal left
            code = frame.f_code
            if event == "line" and code.co_name == "__init__" and code.co_filename.endswith(("progress.py", "std.py")):
                left -= 1
                if left < 0:
                    sys.settrace(None)
                    signal.raise_signal(signal.SIGINT)
            return trace

        with interruptible() as pressed, contextlib.suppress(KeyboardInterrupt):
            sys.settrace(trace)
            progress(None, 4, "steps")
            sys.settrace(None)
        assert unraisable == [], f"pressed at line {number}"
        if not pressed.is_set():
            break
    assert number > 50


def test_other_errors_in_del_are_still_told(unraisable):
    class Fails:
        def __del__(self):
            raise RuntimeError("in __del__")

    with interruptible():
        Fails()
    assert unraisable == [RuntimeError]


def test_the_handlers_of_others_are_left_alone():
    seen = []
    before = signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    try:
        with interruptible() as pressed:
            os.kill(os.getpid(), signal.SIGINT)
            raise_if_interrupted()
        assert seen == [1] and not pressed.is_set()
    finally:
        signal.signal(signal.SIGINT, before)
    with interruptible():
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_outside_the_main_thread_nothing_is_touched():
    seen = []

    def work():
        with interruptible():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, OSError])
def test_whatever_breaks_after_ctrl_c_is_an_interruption(error, monkeypatch, capsys):
    def breaks(argv):
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            raise error("a worker is gone") from None

    monkeypatch.setattr("tta_cattan.cli.inspect.main", breaks)
    assert command_line.main(["inspect"]) == 130
    assert capsys.readouterr().err.startswith("interrupted: what is finished is kept")


def test_what_breaks_of_itself_is_not(monkeypatch):
    def breaks(argv):
        raise RuntimeError("a bug")

    monkeypatch.setattr("tta_cattan.cli.inspect.main", breaks)
    with pytest.raises(RuntimeError, match="a bug"):
        command_line.main(["inspect"])
