"""A folder changes whole or not at all: foreign files, other texts and weights, runs that are killed or meet."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import attnviz
from attnviz import locks
from attnviz.errors import OutputError, UsageError
from attnviz.present import documents, output_folder
from attnviz.present.documents import json_text
from attnviz.present.output_folder import OutputFolder
from attnviz.present.report import layout_of, spec_of
from attnviz.signals import SIGNALS, handled
from tests.conftest import SENTENCE
from tests.support.hand_made import hand_made
from tests.support.results import result_of
from tests.support.stored import PROFILE

HEADS = layout_of("heads")

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


def contents(folder):
    """Every path below a folder, hidden ones too, with its bytes (None for a folder)."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def save(folder, files=("overview.png",), analysis=None, content=b"picture", overwrite=True):
    analysis = analysis or hand_made()
    with OutputFolder(folder, HEADS, overwrite) as output:
        for name in files:
            output.write(name, content)
        return output.commit(analysis.document(files))


def open_only(folder):
    with OutputFolder(folder, HEADS):
        pytest.fail("the folder was opened")


def listed(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def names(folder: Path) -> list[str]:
    return sorted(name for name, data in contents(folder).items() if data is not None)


# --- the folder


def test_a_run_leaves_its_files_and_nothing_hidden(tmp_path):
    out = tmp_path / "a" / "b"
    written = save(out, ["overview.png", "heads/L00H00.png"])
    assert sorted(contents(out)) == ["heads", "heads.csv", "heads.json", "heads/L00H00.png", "overview.png"]
    manifest = json.loads((out / "heads.json").read_text())
    assert written == manifest
    assert manifest["files"] == ["heads.csv", "heads.json", "heads/L00H00.png", "overview.png"]
    assert manifest["figures"] == ["overview.png", "heads/L00H00.png"]
    assert (out / "heads.csv").read_text() == HEADS.table_text(written)


def test_an_error_while_files_are_moved_does_not_claim_that_nothing_changed(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OutputError, match=r"No space left on device; some of its files may be missing: run again"):
        save(tmp_path)


def test_an_exception_leaves_the_earlier_files_byte_identical_and_no_hidden_folder(tmp_path):
    save(tmp_path)
    before = contents(tmp_path)

    def fail_after_writing():
        with OutputFolder(tmp_path, HEADS) as output:
            output.write("overview.png", b"other")
            output.write("heads/L00H00.png", b"new")
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        fail_after_writing()
    assert contents(tmp_path) == before


def test_without_commit_nothing_appears(tmp_path):
    with OutputFolder(tmp_path / "new" / "folder", HEADS) as output:
        output.write("overview.png", b"picture")
    assert contents(tmp_path) == {}


def test_folders_made_for_nothing_are_removed_but_not_those_that_were_there(tmp_path):
    (tmp_path / "mine").mkdir()
    with pytest.raises(KeyboardInterrupt), OutputFolder(tmp_path / "mine" / "x" / "y", HEADS):
        raise KeyboardInterrupt
    assert contents(tmp_path) == {"mine": None}


def test_a_rerun_on_the_same_text_adds_formats_and_replaces_its_own_files(tmp_path):
    save(tmp_path, ["overview.png", "heads/L00H00.png"])
    save(tmp_path, ["overview.svg", "heads/L00H00.png"], content=b"second")
    found = contents(tmp_path)
    pictures = [found[name] for name in ("overview.png", "overview.svg", "heads/L00H00.png")]
    assert pictures == [b"picture", b"second", b"second"]
    assert set(json.loads(found["heads.json"])["files"]) == {name for name, data in found.items() if data is not None}


@pytest.mark.parametrize(
    "other", [{"text": "another text"}, {"pair": "a pair"}, {"name": "another-model"}, {"words": True}], ids=str
)
def test_another_analysis_removes_the_figures_of_the_one_before(tmp_path, other):
    save(tmp_path, ["overview.png", "heads/L00H00.png", "heads/L01H01.svg", "attention.safetensors"])
    save(tmp_path, ["overview.png"], hand_made(**other), b"new")
    found = contents(tmp_path)
    assert {name for name, data in found.items() if data is not None} == {"overview.png", "heads.json", "heads.csv"}
    assert found["overview.png"] == b"new"
    assert json.loads(found["heads.json"])["files"] == ["heads.csv", "heads.json", "overview.png"]


def test_foreign_files_are_kept_whatever_is_run(tmp_path):
    (tmp_path / "heads").mkdir()
    mine = {"notes.txt": b"n", "heads/mine.png": b"m", "heads/L00H00.png.bak": b"b", "overview.jpg": b"j"}
    for name, data in mine.items():
        (tmp_path / name).write_bytes(data)
    save(tmp_path, ["overview.png", "heads/L00H00.png"])
    save(tmp_path, ["overview.png"], hand_made(text="another"))
    assert mine.items() <= contents(tmp_path).items()


@pytest.mark.parametrize(
    "name", ["overview.svg", "heads/L11H11.pdf", "heads.csv", "heads.json", "attention.safetensors"]
)
@pytest.mark.parametrize("manifest", [None, "not json", "[]", '{"other": 1}'])
def test_a_foreign_file_of_our_name_is_refused_before_anything_is_done(tmp_path, name, manifest):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    if manifest is not None:
        (tmp_path / "heads.json").write_text(manifest)
    if name != "heads.json" or manifest is None:
        (tmp_path / name).write_text("mine")
    before = contents(tmp_path)
    with pytest.raises(OutputError, match=r"which attnviz did not write .* will not replace; choose another folder"):
        open_only(tmp_path)
    assert contents(tmp_path) == before


def test_a_foreign_file_beside_a_manifest_that_does_not_list_it_is_refused(tmp_path):
    save(tmp_path, ["overview.png"])
    (tmp_path / "overview.svg").write_bytes(b"mine")
    with pytest.raises(OutputError, match=r"holds overview\.svg, which attnviz did not write"):
        open_only(tmp_path)


def test_a_foreign_file_that_appears_meanwhile_is_not_replaced(tmp_path):
    with OutputFolder(tmp_path, HEADS) as output:
        output.write("overview.png", b"ours")
        (tmp_path / "overview.png").write_bytes(b"mine")
        with pytest.raises(OutputError, match=r"holds overview\.png, which attnviz did not write"):
            output.commit(hand_made().document())
    assert contents(tmp_path) == {"overview.png": b"mine"}


@pytest.mark.parametrize(
    "listed", ["../x", "/etc/x", "heads/../x", "x", ".", "", "heads", "HEADS.CSV", "overview.png\n", 7]
)
def test_a_crafted_manifest_cannot_make_us_delete_anything(tmp_path, listed):
    out = tmp_path / "a" / "out"
    (out / "heads").mkdir(parents=True)
    for victim in (tmp_path / "x", tmp_path / "a" / "x", out / "x", out / "heads" / "x", out / "HEADS.CSV"):
        victim.write_bytes(b"keep")
    manifest = {**hand_made(text="old").document(), "files": [listed, "heads.json"]}
    (out / "heads.json").write_text(json_text(manifest))
    before = contents(tmp_path)
    save(out, ["overview.png"])
    after = contents(tmp_path)
    assert set(before) <= set(after)
    assert {name for name in before if before[name] != after[name]} == {"a/out/heads.json"}


@pytest.mark.parametrize("files", ["overview.png", None, 3, {"overview.png": 1}])
def test_a_manifest_whose_list_is_no_list_is_not_believed(tmp_path, files):
    (tmp_path / "heads.json").write_text(json.dumps({"attnviz": "1", "files": files}))
    (tmp_path / "overview.png").write_bytes(b"mine")
    with pytest.raises(OutputError, match="did not write"):
        open_only(tmp_path)
    assert (tmp_path / "overview.png").read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("name", "folder", "message"),
    [
        ("file", "file", "it is a file; expected a folder, or a new name, for -o"),
        ("file", "file/below", r"cannot make the folder .*: .*nothing was changed"),
        ("heads", "", r"holds heads, which attnviz did not write"),
    ],
)
def test_a_file_in_the_place_of_a_folder_is_refused_and_left_alone(tmp_path, name, folder, message):
    (tmp_path / name).write_bytes(b"mine")
    with pytest.raises(OutputError, match=message):
        open_only(tmp_path / folder)
    assert contents(tmp_path) == {name: b"mine"}


def test_a_link_in_the_place_of_the_heads_folder_is_refused_and_left_alone(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "heads").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputError, match="holds heads, which attnviz did not write"):
        save(tmp_path / "out", ["overview.png", "heads/L00H00.png"])
    assert contents(tmp_path / "elsewhere") == {}
    assert (tmp_path / "out" / "heads").is_symlink()


def test_a_folder_that_cannot_be_written_to_is_refused_with_the_reason(tmp_path, monkeypatch):
    def refused(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.raises(OutputError, match=r"cannot make the folder .*: Permission denied; nothing was changed"):
        open_only(tmp_path / "new")
    assert contents(tmp_path) == {}


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    save(tmp_path)
    before = contents(tmp_path)
    opened = Path.open

    def full(path, *mode, **more):
        if path.name == "L00H01.png":
            raise OSError(errno.ENOSPC, "No space left on device")
        return opened(path, *mode, **more)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(OutputError, match=r"cannot write .*L00H01\.png: No space left on device; nothing was changed"):
        save(tmp_path, ["overview.png", "heads/L00H00.png", "heads/L00H01.png"], content=b"other")
    assert contents(tmp_path) == before


def test_the_manifest_is_moved_first_so_that_a_crash_leaves_no_foreign_files(tmp_path, monkeypatch):
    replace = Path.replace
    moved = []

    def crash(path, target):
        moved.append(Path(target).name)
        if len(moved) == 3:
            raise OSError(errno.EIO, "Input/output error")
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", crash)
    with pytest.raises(OutputError, match="Input/output error"):
        save(tmp_path, ["overview.png", "heads/L00H00.png"])
    assert moved[0] == "heads.json"
    monkeypatch.undo()
    save(tmp_path, ["overview.png", "heads/L00H00.png"])  # not refused
    assert not [name for name in contents(tmp_path) if name.startswith(".attnviz")]


def test_files_can_be_written_from_another_thread(tmp_path):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(save, tmp_path).result()
    assert "overview.png" in contents(tmp_path)


def test_a_link_to_a_folder_is_written_through(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    save(tmp_path / "link")
    assert (tmp_path / "real" / "overview.png").read_bytes() == b"picture"
    assert (tmp_path / "link").is_symlink()


def test_a_run_with_another_profile_keeps_no_figure_of_the_run_before(tmp_path):
    save(tmp_path, ["overview.png"], hand_made(profile=PROFILE))
    save(tmp_path, ["overview.svg"], hand_made(profile=PROFILE))
    assert (tmp_path / "overview.png").exists()
    save(tmp_path, ["overview.svg"], hand_made())
    assert not (tmp_path / "overview.png").exists()


def test_a_format_named_twice_is_drawn_once(tmp_path):
    content = hand_made().save(tmp_path / "out", formats=["svg", "svg"], select="L0H0")
    assert content["figures"] == ["overview.svg", "heads/L00H00.svg"]
    assert {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.*")} == {
        "overview.svg", "heads/L00H00.svg", "captions.md", "captions.tex", "heads.csv", "heads.json",
    }  # fmt: skip


def test_a_second_ctrl_c_while_cleaning_up_leaves_nothing(tmp_path, monkeypatch):
    remove, pressed = shutil.rmtree, []

    def interrupted(*of, **options):
        if not pressed:
            pressed.append(True)
            os.kill(os.getpid(), signal.SIGINT)
        remove(*of, **options)

    monkeypatch.setattr("attnviz.present.output_folder.shutil.rmtree", interrupted)

    def run():
        with OutputFolder(tmp_path / "out", HEADS) as folder:
            folder.write("overview.png", b"")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    assert pressed
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"progress": []}, r"expected progress as a function, found \[\]"),
        ({"tensors": ["L0H0"]}, r"expected tensors as True or False, found \['L0H0'\]"),
    ],
)
def test_wrong_arguments_of_save_are_refused_before_anything_is_written(tmp_path: Path, choice: Any, said: str):
    with pytest.raises(UsageError, match=said):
        hand_made().save(tmp_path / "out", **choice)
    assert not (tmp_path / "out").exists()


# --- other weights


def test_what_makes_a_run_the_same_includes_the_weights():
    for command in ("heads", "outputs", "compare", "explain", "rollout", "ablate", "profile", "circuits"):
        assert {"model", "models"} & set(spec_of(command).same)
    for command in (
        "heads",
        "outputs",
        "explain",
        "rollout",
        "ablate",
        "circuits",
    ):  # compare and profile: where they are typed
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
    held = locks.lock(tmp_path)
    waits: list[float] = []

    def done_meanwhile(seconds: float) -> None:
        waits.append(seconds)
        locks.unlock(held)

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
        monkeypatch.setattr(locks, "fcntl", None)
    else:
        monkeypatch.setattr(locks.fcntl, "flock", refused)
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
