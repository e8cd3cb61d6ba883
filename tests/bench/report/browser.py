"""A real browser (the Chromium inside QtWebEngine) in a process of its own: opens a page, runs JavaScript, looks.

python browser.py PAGE WIDTH light|dark [SCREENSHOT [HEIGHT]] < {"name": "JavaScript expression", ...} > results as JSON
"""

from __future__ import annotations

import json
import os
import sys

_PATIENCE = 240_000  # milliseconds until it gives up, on a machine that is busy with something else


def main(page: str, width: str, theme: str, screenshot: str = "", height: str = "900") -> None:
    """Open ``page`` and print what the expressions are worth, in their order, with all console messages."""
    flags = f"--no-sandbox --disable-gpu --blink-settings=preferredColorScheme={int(theme == 'light')}"
    os.environ.update(QT_QPA_PLATFORM="offscreen", QTWEBENGINE_CHROMIUM_FLAGS=flags, QT_LOGGING_RULES="*=false")
    from PySide6.QtCore import QTimer, QUrl
    from PySide6.QtWebEngineCore import QWebEnginePage
    from PySide6.QtWebEngineWidgets import QWebEngineView
    from PySide6.QtWidgets import QApplication

    expressions: dict[str, str] = json.load(sys.stdin)
    results: dict[str, object] = {"console": []}

    class Page(QWebEnginePage):
        def javaScriptConsoleMessage(self, level, message, line, source):  # noqa: N802 (Qt's name)
            results["console"].append(message)

    app = QApplication(sys.argv[:1])
    view = QWebEngineView()
    view.setPage(Page(view))
    view.resize(int(width), int(height))
    view.show()

    def step(names: list[str]) -> None:
        if names:
            code = f"JSON.stringify({expressions[names[0]]})"
            view.page().runJavaScript(code, lambda text: (results.update({names[0]: text}), step(names[1:])))
        elif screenshot:
            QTimer.singleShot(1500, lambda: (view.grab().save(screenshot), app.quit()))
        else:
            app.quit()

    view.loadFinished.connect(lambda ok: (results.update(loaded=ok), step(list(expressions))))
    view.load(QUrl.fromLocalFile(os.path.abspath(page)))
    QTimer.singleShot(_PATIENCE, app.quit)
    app.exec()
    decoded = {k: json.loads(v) if k in expressions and isinstance(v, str) and v else v for k, v in results.items()}
    sys.stdout.write(json.dumps(decoded))
    sys.stdout.flush()
    os._exit(0)  # Qt's own teardown order does not matter to anybody here


if __name__ == "__main__":
    main(*sys.argv[1:])
