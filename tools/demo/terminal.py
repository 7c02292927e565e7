"""How the report looks: headings, verdicts and progress, coloured on a terminal only."""

import os
import sys


def paint(code: str, text: str) -> str:
    on = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    return f"\x1b[{code}m{text}\x1b[0m" if on else text


def heading(text: str, note: str = "") -> None:
    print(f"\n{paint('1', text)}{paint('2', '  ' + note if note else '')}", flush=True)


def verdict(ok: bool) -> str:
    return paint("32", "ok") if ok else paint("31;1", "FAILED")


def progress(text: str) -> None:
    """One line that the next one replaces; nothing where there is no terminal."""
    if sys.stdout.isatty():
        print(f"\r\x1b[2K{paint('2', text)}", end="", flush=True)


def clear_progress() -> None:
    progress("")
