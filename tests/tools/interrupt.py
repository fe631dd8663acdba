"""Interrupt ``attnviz heads`` at random times, and check what it leaves: ``python tests/tools/interrupt.py 180 20``.

Two texts take turns in one folder. Every run must end with 0 or with 130 and one line, and leave a whole analysis of
one text, or none, and nothing hidden. The first number is of runs that are forked once everything is imported, so that
most signals come while files are made, moved and the process ends; the second of runs from the very start. Not run by
pytest: it takes minutes.
"""

import collections
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

TEXTS = ("The cat that I saw ran away", "The dogs that we saw have stayed")
OPTIONS = ["-m", "tiny-gpt2", "--no-syntax", "--no-profile", "--select", "L0", "--format", "svg", "--overwrite", "-q"]
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def forked() -> None:
    from attnviz.cli import main

    main()


def from_the_start() -> None:
    os.execv(sys.executable, [sys.executable, "-m", *sys.argv])


def run(arguments: list[str], how: Callable[[], None], until: Callable[[], float], sent: int) -> tuple[int, str]:
    """The exit code (below 0: the signal that it died of) and standard error of one run."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(writing, 2)
        os.close(reading)
        os.close(writing)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", 1, closefd=False)
        sys.argv = ["attnviz", *arguments]
        how()  # ends with SystemExit: the interpreter's own end is part of what is tried
    os.close(writing)
    time.sleep(until())
    os.kill(process, sent)
    with os.fdopen(reading) as stream:
        said = stream.read()
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), said


def faults(out: Path) -> list[str]:
    """What is wrong with the folder."""
    if not out.exists():
        return []
    there = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    wrong = [f"hidden {path.name}" for path in out.glob(".*")]
    if not there:
        return [*wrong, "an empty folder"]
    document = json.loads((out / "heads.json").read_text())
    if set(document["files"]) != there:
        wrong.append(f"not as listed: {sorted(set(document['files']) ^ there)}")
    other = next(text for text in TEXTS if text != document.get("text"))
    return wrong + [f"{name} is of another text" for name in there if other in (out / name).read_text()]


def tried(number: int, how: Callable[[], None], out: Path) -> None:
    chance = random.Random(number)
    arguments = ["heads", TEXTS[0], "-o", str(out), *OPTIONS]
    began = time.monotonic()
    first = run(arguments, how, lambda: 0.0, 0)
    assert first == (0, ""), first
    whole = time.monotonic() - began
    ends: collections.Counter[str] = collections.Counter()
    for count in range(number):
        sent = chance.choice(SIGNALS)
        arguments[1] = TEXTS[count % 2]
        code, said = run(arguments, how, lambda: chance.uniform(0.0, whole), sent)
        good = code in (0, 130) and said.count("\n") == (code == 130)
        wrong = [*([] if good else [f"exit {code}, {said!r}"]), *faults(out)]
        for fault in wrong:
            print(f"run {count}, {sent.name}: {fault}", flush=True)
        ends["fault" if wrong else str(code)] += 1
    print(f"{number} runs of about {whole:.1f} s, {how.__name__}: {dict(ends)}", flush=True)


def main() -> None:
    several, from_start = int(sys.argv[1]), int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.default_int_handler)  # where this runs in the background, too
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    folder = Path(tempfile.mkdtemp())
    if from_start:
        tried(from_start, from_the_start, folder / "out")
    import torch

    import attnviz

    torch.set_num_threads(1)
    attnviz.analyze(TEXTS[0], "tiny-gpt2", device="cpu").save(folder / "first", formats=["svg"], select="L0")
    tried(several, forked, folder / "forked")


if __name__ == "__main__":
    main()
