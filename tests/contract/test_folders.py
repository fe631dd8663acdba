"""Folders that several runs share: one after the other, killed, interrupted, of another text, of other weights."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import attnviz
from attnviz.errors import OutputError, UsageError
from attnviz.present import documents, output_folder
from attnviz.present.output_folder import OutputFolder
from attnviz.present.report import spec_of
from attnviz.signals import SIGNALS, handled
from tests.conftest import SENTENCE
from tests.contract.test_export import HEADS, contents, save
from tests.contract.test_results import result_of
from tests.support.hand_made import hand_made

KILLED = """
import os, re, signal, sys
from pathlib import Path
from attnviz.present.output_folder import OutputFolder
from attnviz.present.report import FileLayout
replace, moved = Path.replace, []
def killed(path, target):
    if len(moved) == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    moved.append(target)
    return replace(path, target)
Path.replace = killed
names = re.compile(r"heads/.*|overview[.].*")
layout = FileLayout("heads.json", "heads.csv", lambda _: "", names, ("text",), ("heads",))
with OutputFolder(Path(sys.argv[1]), layout, overwrite=True) as output:
    output.write("overview.png", "new")
    output.write("heads/L01H01.png", "new")
    output.commit({"attnviz": "0", "text": "another text"})
"""


def listed(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def names(folder: Path) -> list[str]:
    return sorted(name for name, data in contents(folder).items() if data is not None)


# --- other weights


@pytest.mark.usefixtures("undrawn")
def test_other_weights_of_the_same_name_keep_no_picture_of_the_run_before(tmp_path: Path):
    from tests.support.models import bert_tokenizer, save_checkpoint, sharp_bert

    folder, out = tmp_path / "model", tmp_path / "out"
    model, tokenizer = sharp_bert(), bert_tokenizer()
    save_checkpoint(model, tokenizer, folder)
    attnviz.analyze(SENTENCE, folder, syntax=False).save(out, select=["L0"])
    before = json.loads((out / "heads.json").read_text())["model"]["weights_sha256"]
    model.encoder.layer[0].output.dense.bias.data += 0.1
    save_checkpoint(model, tokenizer, folder)
    document = attnviz.analyze(SENTENCE, folder, syntax=False).save(out, select=["L1H0"])
    assert document["model"]["weights_sha256"] != before
    assert document["files"] == [
        "captions.md",
        "captions.tex",
        "heads.csv",
        "heads.json",
        "heads/L01H00.png",
        "overview.png",
    ]
    assert names(out) == document["files"]


def test_what_makes_a_run_the_same_includes_the_weights():
    for command in ("heads", "outputs", "compare", "explain", "rollout", "ablate", "profile"):
        assert {"model", "models"} & set(spec_of(command).same)
    for command in ("heads", "outputs", "explain", "rollout", "ablate"):  # compare and profile: where they are typed
        assert len(result_of(command).document()["model"]["weights_sha256"]) == 64


def test_a_model_in_memory_is_told_by_its_parameters(tmp_path: Path):
    from tests.support.models import bert_tokenizer, sharp_bert

    model, tokenizer = sharp_bert(), bert_tokenizer()
    hashes = []
    for change in (0.0, 0.0, 0.1):
        model.encoder.layer[0].output.dense.bias.data += change
        analysis = attnviz.analyze(SENTENCE, model, tokenizer=tokenizer, syntax=False)
        hashes.append(analysis.document()["model"]["weights_sha256"])
    assert hashes[0] == hashes[1] != hashes[2]


# --- another text


@pytest.mark.usefixtures("undrawn")
def test_pictures_of_another_text_are_not_removed_unasked(tmp_path: Path):
    save(tmp_path, ["overview.png"])
    before = contents(tmp_path)
    other = hand_made(text="another text")
    with pytest.raises(OutputError, match=r"pictures of “the cat ran away”; this run is of “another text” and would"):
        save(tmp_path, ["overview.svg"], other, overwrite=False)
    with pytest.raises(OutputError, match="overwrite=True"):
        other.save(tmp_path, figures=["overview"])
    with pytest.raises(UsageError, match="expected overwrite as True or False"):
        other.save(tmp_path, overwrite="yes")
    assert contents(tmp_path) == before
    other.save(tmp_path, figures=["overview"], overwrite=True)
    assert json.loads((tmp_path / "heads.json").read_text())["text"] == "another text"


def test_numbers_without_pictures_give_way_to_another_text(tmp_path: Path):
    save(tmp_path, [])
    save(tmp_path, ["overview.png"], hand_made(text="another text"), overwrite=False)
    (tmp_path / "overview.png").unlink()  # by the user: nothing is left to protect
    save(tmp_path, [], overwrite=False)
    assert names(tmp_path) == ["heads.csv", "heads.json"]


# --- killed while files are moved


@pytest.mark.parametrize("moves", range(4))
def test_a_run_that_is_killed_while_files_are_moved_does_not_block_the_next(tmp_path: Path, moves: int):
    save(tmp_path, ["overview.png", "overview.svg", "heads/L00H00.svg"])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run([sys.executable, "-c", KILLED, tmp_path, str(moves)], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert [name for name in listed(tmp_path) if name.startswith(".attnviz-")]
    found = json.loads((tmp_path / "heads.json").read_text())
    assert {name for name in names(tmp_path) if not name.startswith(".")} <= set(found["files"])
    assert found["text"] == ("another text" if moves else "the cat ran away")
    assert "overview.svg" not in names(tmp_path)  # no file is of another text than the document
    save(tmp_path, ["overview.png"], hand_made(text="another text"), b"third")
    assert listed(tmp_path) == ["heads.csv", "heads.json", "overview.png"]  # nothing hidden either
    (tmp_path / "overview.png").unlink()  # as by a run that was killed: the document goes on to list it
    save(tmp_path, ["overview.svg"], hand_made(text="another text"))
    assert json.loads((tmp_path / "heads.json").read_text())["files"] == names(tmp_path)


def test_only_what_a_dead_run_has_left_is_cleared(tmp_path: Path):
    kept = [".attnviz-notes", ".attnviz-1-mine", ".attnviz-1-abcdefg8.txt"]
    for name in [*kept, ".attnviz-1-abcdefg8"]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
    (tmp_path / ".attnviz-2-abcdefg8").symlink_to(tmp_path / ".attnviz-notes")
    with OutputFolder(tmp_path, HEADS) as living:
        save(tmp_path)
        hidden = {name for name in listed(tmp_path) if name.startswith(".attnviz-")}
        assert hidden > {*kept, ".attnviz-2-abcdefg8"}
        assert ".attnviz-1-abcdefg8" not in hidden
        living.write("overview.svg", b"still there")
        living.commit(hand_made().document())
    assert (tmp_path / "overview.svg").read_bytes() == b"still there"


# --- two runs at a time


def test_a_run_waits_for_another_that_moves_its_files_and_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(output_folder, "PATIENCE", 0.0)
    message = rf"another run of attnviz \(process {os.getpid()}\) is moving its files there.*nothing was changed"
    with OutputFolder(tmp_path, HEADS) as first, OutputFolder(tmp_path, HEADS) as second:
        second.write("overview.svg", b"second")
        with first.alone():
            with pytest.raises(OutputError, match=message):
                second.commit(hand_made().document())
            with pytest.raises(OutputError, match=message):
                save(tmp_path)
        first.write("overview.png", b"first")
        first.commit(hand_made().document())
        document = second.commit(hand_made().document())
    assert document["files"] == names(tmp_path) == ["heads.csv", "heads.json", "overview.png", "overview.svg"]


def test_a_run_goes_on_when_the_other_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    held = output_folder.lock(tmp_path)
    waits: list[float] = []

    def done_meanwhile(seconds: float) -> None:
        waits.append(seconds)
        output_folder.unlock(held)

    monkeypatch.setattr(output_folder.time, "sleep", done_meanwhile)
    save(tmp_path)
    assert len(waits) == 1


@pytest.mark.usefixtures("undrawn")
def test_captions_of_a_run_that_finished_meanwhile_are_kept(tmp_path: Path):
    analysis = hand_made()
    with OutputFolder(tmp_path, HEADS) as late:
        analysis.save(tmp_path, figures=["overview"])
        analysis.write(late, analysis._choices(None, {}), figures=["overview"], formats=["svg"])
    assert "**overview.png, overview.svg**" in (tmp_path / "captions.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("without", ["no fcntl", "no locks on this drive"])
def test_where_folders_cannot_be_locked_runs_go_on_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: str
):
    def refused(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    if without == "no fcntl":
        monkeypatch.setattr(output_folder, "fcntl", None)
    else:
        monkeypatch.setattr(output_folder.fcntl, "flock", refused)
    with OutputFolder(tmp_path, HEADS) as living:
        save(tmp_path)
        living.write("overview.svg", b"still there")
        living.commit(hand_made().document())
    assert "overview.svg" in names(tmp_path)


# --- signals


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
@pytest.mark.parametrize("at", range(3))
def test_a_signal_while_files_are_moved_waits_until_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signals_heard: None, number: signal.Signals, at: int
):
    replace, moved = Path.replace, list[Any]()

    def signalled(path: Path, target: Path) -> Any:
        if len(moved) == at:
            signal.raise_signal(number)
        moved.append(target)
        return replace(path, target)

    save(tmp_path, ["overview.png", "overview.svg"])
    came: list[int] = []
    monkeypatch.setattr(Path, "replace", signalled)
    with handled(lambda number, _: came.append(number)):
        save(tmp_path, ["overview.png"], hand_made(text="another text"), b"new")
        assert came == [number]
    assert names(tmp_path) == ["heads.csv", "heads.json", "overview.png"]
    assert [signal.getsignal(each) for each in SIGNALS[:2]] == [signal.SIG_DFL] * 2


@pytest.mark.parametrize("when", ["new", "out", ".attnviz-"])
def test_a_signal_while_the_folder_is_opened_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signals_heard: None, when: str
):
    make = Path.mkdir

    def signalled(path: Path, *of: Any, **options: Any) -> None:
        make(path, *of, **options)
        if path.name.startswith(when):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Path, "mkdir", signalled)
    with pytest.raises(KeyboardInterrupt):
        OutputFolder(tmp_path / "new" / "out", HEADS).__enter__()
    assert listed(tmp_path) == []


def test_signals_that_are_ignored_stay_so(signals_heard: None):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    came: list[int] = []
    with handled(lambda number, _: came.append(number)):
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGTERM)
    assert came == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


@pytest.mark.parametrize(
    "content", ["[" * 100_000, '{"attnviz": "1", "texts": 5}', '{"attnviz": "1", "corpora": true, "pairs": 1.5}']
)
def test_a_damaged_document_in_the_folder_is_no_document(tmp_path: Path, content: str):
    path = tmp_path / "heads.json"
    path.write_text(content)
    found = documents.read_document(path)
    assert documents.texts_of(found) == frozenset()


def test_a_pipe_in_the_place_of_a_document_is_not_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / "heads.json")
    assert documents.read_document(tmp_path / "heads.json") == {}
