"""What lands on disk: the documents, and a folder that changes whole or not at all."""

import csv
import errno
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from attnviz.errors import OutputError, UsageError
from attnviz.language.parsers import Vocabulary
from attnviz.language.syntax import Arc, Parse, Word
from attnviz.present.documents import captions_text, json_text, latex_captions_text, read_captions
from attnviz.present.output_folder import OutputFolder
from attnviz.present.report import layout_of, spec_of
from attnviz.present.view import ViewOptions
from attnviz.version import __version__
from tests.support.hand_made import LABELS, by_design, hand_made
from tests.support.stored import PROFILE, published

HEADS = layout_of("heads")
SHARES = ["previous", "current", "next", "local", "long_range"]
SCALARS = ["id", "layer", "head", "entropy", "entropy_uniform", "entropy_non_sink", "distance", "distance_non_sink",
           "confidence", "confidence_non_sink", "sink", *SHARES]  # fmt: skip
LABEL = ["label", "label_score", "label_baseline", "label_error_reduction", "label_n", "label_certain"]
PARSE = Parse((Word("the", (1,)), Word("cat", (2,))), (Arc(0, 1, "det"),), "a-parser")


def document_of(analysis, heads=None, figures=("overview.png",)):
    return analysis.document(figures, select=[str(head.id) for head in heads or ()])


def attention_bytes(analysis):
    name, tensors = spec_of("heads").tensors
    assert name == "attention.safetensors"
    return tensors(analysis, ViewOptions())


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
        return output.commit(document_of(analysis, figures=files))


def open_only(folder):
    with OutputFolder(folder, HEADS):
        pytest.fail("the folder was opened")


# --- documents


def test_the_document_has_the_keys_of_the_contract_and_the_values_of_the_analysis():
    found = document_of(hand_made(), figures=["overview.png", "heads/L00H00.png"])
    assert list(found)[:5] == ["attnviz", "model", "text", "pair", "options"]
    assert (found["attnviz"], found["text"], found["pair"]) == (__version__, "the cat ran away", None)
    assert found["figures"] == ["overview.png", "heads/L00H00.png"]
    sizes = {"n_layers": 2, "n_heads": 2, "d_model": 16, "d_head": 8}
    name = {"name": "by-hand", "architecture": "bert", "revision": None}
    assert found["model"] == {**name, "weights_sha256": None, **sizes, "device": "cpu", "dtype": "float32"}
    assert [token["text"] for token in found["tokens"]] == list(LABELS)
    assert found["tokens"][:2] == [
        {"id": 100, "text": "[CLS]", "special": True, "word": None, "sink": "special"},
        {"id": 101, "text": "the", "special": False, "word": 0, "sink": None},
    ]
    layers = [
        {
            "layer": layer,
            "pattern_error": error,
            "output_error": 1e-7,
            "output_scale": 1.5,
            "residual_error": 0.0,
            "input_error": 0.0,
            "head_output_error": 0.0,
            "row_error": None,
            "scale_error": None,
            "scale_limit": None,
        }
        for layer, error in enumerate([2e-7, 4e-7])
    ]
    tolerances = {"pattern_tolerance": 1e-4, "output_tolerance": 1e-4, "row_tolerance": None}
    assert found["verification"] == {"passed": True, "level": 4, "heads_compared": 4, **tolerances, "layers": layers}
    for head in found["heads"]:
        assert list(head) == [*SCALARS, "baseline", "patterns", *LABEL, "role", "profile"]
        assert list(head["baseline"]) == SHARES
        assert {tuple(pattern)[:5] for pattern in head["patterns"]} == {("name", "score", "baseline", "n", "passed")}
    first = found["heads"][0]
    assert (first["id"], first["layer"], first["head"], first["label"]) == ("L0H0", 0, 0, "previous-token")
    numbers = [1.0, pytest.approx(3 / 16), 1.0, 3, False]
    assert [first[name] for name in LABEL] == ["previous-token", *numbers]
    assert found["heads"][1]["label_error_reduction"] is None  # of broad, whose baseline is the most there can be
    assert (first["previous"], first["local"], first["sink"], first["confidence"]) == (1.0, 1.0, 0.25, 1.0)
    assert first["distance"] == pytest.approx(5 / 6)
    shares = {"previous": 3 / 16, "current": 1 / 4, "next": 3 / 16, "local": 10 / 16, "long_range": None}
    assert first["baseline"] == pytest.approx(shares)
    json.loads(json_text(found))


def test_what_cannot_be_measured_is_null_and_never_zero():
    found = json.loads(json_text(document_of(hand_made(causal=True, special=()))))
    first = found["heads"][0]
    assert first["next"] is None
    assert first["baseline"]["next"] is None
    assert first["patterns"][2] == {**first["patterns"][2], "name": "next-token", "score": None, "passed": False}
    assert first["current"] == 0.0  # measured, and nothing there


def test_a_pair_and_words_and_a_parser_stand_in_the_document():
    found = document_of(hand_made(pair="and on", words=True, parse=PARSE))
    assert (found["pair"], found["words"]) == ("and on", list(LABELS))
    assert found["options"]["words"] is True
    assert found["options"]["parser"] == "a-parser"
    last = found["heads"][0]["patterns"][-1]
    assert (last["name"], last["n"], last["offset"]) == ("det", 1, 1)
    assert last["direction"] in ("dependent_to_head", "head_to_dependent")


@pytest.mark.parametrize("text", ["\x1b[31m", "猫🦄", "\u202e", "\u2028", "<script>", '"quoted"', "$\\frac$ [/b]"])
def test_json_is_plain_ascii_and_gives_any_text_back(text):
    written = json_text(document_of(hand_made(text=text, name=text)))
    assert written.isascii()
    assert all(character.isprintable() or character == "\n" for character in written)
    assert json.loads(written)["text"] == json.loads(written)["model"]["name"] == text
    assert written.endswith("}\n")


def test_json_refuses_what_is_no_number_and_names_it():
    with pytest.raises(OutputError, match=r"^cannot write the results: heads\.1\.score is not finite; nothing was"):
        json_text({"heads": [{"score": 0.5}, {"score": float("nan")}]})


def test_csv_has_the_columns_of_the_contract_and_a_row_a_head():
    content = document_of(hand_made())
    text = HEADS.table_text(content)
    assert text.splitlines()[0].split(",") == [*SCALARS, *LABEL, "role", "role_score", "role_baseline"]
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["id"] for row in rows] == ["L0H0", "L0H1", "L1H0", "L1H1"]
    for row, head in zip(rows, content["heads"], strict=True):
        for name in SCALARS:
            assert row[name] == ("" if head[name] is None else str(head[name]))
    assert rows[0]["long_range"] == ""
    assert "\r" not in text
    content["heads"][0]["label"] = 'syntactic:a,"b'
    rows = list(csv.DictReader(io.StringIO(HEADS.table_text(content))))
    assert rows[0]["label"] == 'syntactic:a,"b'


def test_attention_is_one_tensor_a_layer(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(attention_bytes(hand_made()))
    with safe_open(tmp_path / "a.safetensors", framework="pt") as file:
        assert sorted(file.keys()) == ["layer.0", "layer.1"]
        for layer in range(2):
            found = file.get_tensor(f"layer.{layer}")
            assert (found.shape, found.dtype) == ((2, 6, 6), torch.float32)
            assert torch.equal(found, by_design(6)[layer])
        assert file.metadata() == {"unit": "token", "labels": json.dumps(list(LABELS)), "model": "by-hand"}


def test_merged_words_are_saved_merged(bert_folder, tmp_path):
    from attnviz import analyze

    analysis = analyze("the unbelievableness ran", bert_folder, words=True, syntax=False)
    (tmp_path / "a.safetensors").write_bytes(attention_bytes(analysis))
    with safe_open(tmp_path / "a.safetensors", framework="pt") as file:
        found = file.get_tensor("layer.0")
        assert json.loads(file.metadata()["labels"]) == ["[CLS]", "the", "unbelievableness", "ran", "[SEP]"]
    assert found.shape == (4, 5, 5)
    torch.testing.assert_close(found.sum(-1), torch.ones(4, 5))


# --- captions

HOSTILE = "a*b_c `x` <script> [CLS](u) #1 | \\ **d**: e"


def test_captions_come_back_from_the_file_as_they_were_and_hold_no_markup():
    captions = [("overview.png", "one"), ("heads/L00H00.png", HOSTILE), ("heads/L00H00.svg", HOSTILE)]
    text = captions_text(captions)
    assert text.startswith("# Captions\n\n**overview.png**: one\n\n**heads/L00H00.png, heads/L00H00.svg**: a\\*b\\_c")
    assert "\\<script>" in text.replace("\\>", ">")
    assert read_captions(text) == captions
    assert text.count("\n\n") == 2


def test_captions_for_latex_are_escaped_and_name_their_files():
    captions = [("a.png", "100 % of A_1 & $x^2$ #1 {~} \\d"), ("a.pdf", "100 % of A_1 & $x^2$ #1 {~} \\d")]
    assert latex_captions_text([*captions, ("heads/L00H00.png", "“é” – ‖A‖ × ''a'' --b \"c\" <|`")]).splitlines()[
        2:
    ] == [
        "% a.png, a.pdf",
        r"\caption{100 \% of A\_1 \& \$x\textasciicircum{}2\$ \#1 \{\textasciitilde{}\} \textbackslash{}d}",
        "",
        "% heads/L00H00.png",
        r"\caption{“é” – ‖A‖ × '{}'a'{}' -{}-b \symbol{34}c\symbol{34} "
        r"\textless{}\textbar{}\textasciigrave{}}",
    ]


def test_files_with_the_same_caption_share_a_line_only_where_they_are_one_figure():
    assert captions_text([("a.png", "x"), ("b.png", "x"), ("a.svg", "y")]).splitlines()[2::2] == [
        "**a.png**: x",
        "**b.png**: x",
        "**a.svg**: y",
    ]


def test_lines_that_are_no_captions_are_passed_over():
    assert read_captions("# Captions\n\nmine\n**: x\n") == []


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
            output.commit(document_of(hand_made()))
    assert contents(tmp_path) == {"overview.png": b"mine"}


@pytest.mark.parametrize(
    "listed", ["../x", "/etc/x", "heads/../x", "x", ".", "", "heads", "HEADS.CSV", "overview.png\n", 7]
)
def test_a_crafted_manifest_cannot_make_us_delete_anything(tmp_path, listed):
    out = tmp_path / "a" / "out"
    (out / "heads").mkdir(parents=True)
    for victim in (tmp_path / "x", tmp_path / "a" / "x", out / "x", out / "heads" / "x", out / "HEADS.CSV"):
        victim.write_bytes(b"keep")
    manifest = {**document_of(hand_made(text="old")), "files": [listed, "heads.json"]}
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


def test_a_folder_in_the_place_of_a_file_is_refused_and_left_alone(tmp_path):
    (tmp_path / "overview.png").mkdir()
    with pytest.raises(OutputError, match=r"holds a folder named overview\.png, where attnviz writes a file"):
        save(tmp_path)
    assert contents(tmp_path) == {"overview.png": None}


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


def test_ctrl_c_while_files_are_moved_waits_until_all_are(tmp_path, monkeypatch):
    replace = Path.replace
    moved = []

    def interrupted(path, target):
        moved.append(Path(target).name)
        if len(moved) == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, ["overview.png", "heads/L00H00.png"])
    assert sorted(contents(tmp_path)) == ["heads", "heads.csv", "heads.json", "heads/L00H00.png", "overview.png"]
    assert signal.getsignal(signal.SIGINT) is handler


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


# --- a stored profile, published heads


def test_a_head_has_the_roles_that_pass_in_the_profile_and_the_document_says_where_they_come_from():
    found = json.loads(json_text(document_of(hand_made(profile=PROFILE))))
    roles = {head["id"]: head["profile"] for head in found["heads"]}
    assert [entry["role"] for entry in roles["L0H0"]] == ["previous-token", "local"]  # by margin; sink did not pass
    (entry,) = roles["L0H1"]
    assert (entry["role"], entry["direction"], entry["passed"]) == ("syntactic:nsubj", "dependent_to_head", True)
    assert (entry["score"], entry["baseline"], entry["n"]) == (0.7, 0.4, 200)
    assert entry["interval"] == pytest.approx([0.65, 0.75])
    assert roles["L1H0"] == []
    numbers = {"score": 0.7, "baseline": 0.4, "error_reduction": pytest.approx(0.5), "n": 200}
    nsubj = {"name": "syntactic:nsubj", "direction": "dependent_to_head", **numbers, "in_text": None}
    assert [head["role"] for head in found["heads"]][1:3] == [nsubj, None]
    assert found["heads"][1]["label"] == "broad"
    (row,) = [row for row in csv.DictReader(io.StringIO(HEADS.table_text(found))) if row["id"] == "L0H1"]
    assert (row["label"], row["role"], row["role_score"], row["role_baseline"]) == (
        "broad", "syntactic:nsubj", "0.7", "0.4",
    )  # fmt: skip
    for relation, there in (("nsubj:pass", True), ("det", False)):
        arcs = (Arc(0, 1, relation),)
        of_text = document_of(hand_made(profile=PROFILE, parse=replace(PARSE, arcs=arcs)))["heads"]
        assert of_text[1]["role"]["in_text"] is there
        assert of_text[0]["role"]["in_text"] is True  # previous-token: the text has such tokens
        assert of_text[3]["role"]["in_text"] is None  # coreference is not looked for
    assert found["profile"] == PROFILE.origin


def test_without_a_profile_and_published_heads_the_document_says_so():
    found = document_of(hand_made())
    assert (found["profile"], found["published"]) == (None, [])
    assert [head["profile"] for head in found["heads"]] == [None] * 4


def test_published_heads_of_the_listed_heads_stand_in_the_document():
    heads = [published("L0H0", "induction"), published("L1H1", "induction", weaker=True, note="A note.")]
    analysis = hand_made(published=heads)
    assert [head["id"] for head in document_of(analysis)["published"]] == ["L0H0", "L1H1"]
    (entry,) = json.loads(json_text(document_of(analysis, analysis.select(["L1"]))))["published"]
    assert (entry["id"], entry["role"], entry["weaker"], entry["note"]) == ("L1H1", "induction", True, "A note.")
    assert (entry["paper"], entry["year"], entry["by_name"]) == ("Doe et al. 2020", 2020, False)


def test_a_run_with_another_profile_keeps_no_figure_of_the_run_before(tmp_path):
    save(tmp_path, ["overview.png"], hand_made(profile=PROFILE))
    save(tmp_path, ["overview.svg"], hand_made(profile=PROFILE))
    assert (tmp_path / "overview.png").exists()
    save(tmp_path, ["overview.svg"], hand_made())
    assert not (tmp_path / "overview.png").exists()


def test_a_name_that_no_folder_can_have_is_one_message(tmp_path):
    message = r"cannot make the folder .*xxx: File name too long; nothing was changed"
    with pytest.raises(OutputError, match=message) as told:
        hand_made().save(tmp_path / ("x" * 300))
    assert "make room" not in str(told.value)
    with pytest.raises(UsageError, match="expected a folder as a text or a Path"):
        hand_made().save(f"{tmp_path}/a\0b")
    assert list(tmp_path.iterdir()) == []


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


def test_the_parse_stands_in_the_document_with_its_vocabulary_and_the_parsers_own_arcs():
    words = (Word("on", (1,)), Word("mats", (2, 3)))
    own = replace(
        PARSE,
        words=words,
        arcs=(Arc(0, 1, "case"),),
        vocabulary=Vocabulary("Universal Dependencies", "ClearNLP"),
        own_arcs=(Arc(1, 0, "pobj"),),
    )
    found = document_of(hand_made(parse=own))
    assert found["syntax_note"] is None
    assert found["parse"] == {
        "parser": "a-parser",
        "vocabulary": "Universal Dependencies",
        "mapped_from": "ClearNLP",
        "words": [{"text": "on", "tokens": [1]}, {"text": "mats", "tokens": [2, 3]}],
        "arcs": [{"dependent": 0, "head": 1, "relation": "case"}],
        "own_arcs": [{"dependent": 1, "head": 0, "relation": "pobj"}],
    }
    unmapped = document_of(hand_made(parse=PARSE))["parse"]
    assert (unmapped["mapped_from"], unmapped["own_arcs"]) == (None, None)


def test_without_a_parse_the_document_says_why():
    found = document_of(hand_made(note="the text is too odd."))
    assert (found["parse"], found["syntax_note"]) == (None, "the text is too odd.")


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


def test_an_interruption_that_is_ignored_from_the_start_stays_ignored():
    """As of a job that a shell started in the background; SIGTERM still ends it."""
    program = (
        "import signal; from attnviz import signals\n"
        "signals.take(signals.interruption()); signal.raise_signal(signal.SIGINT); print('goes on', flush=True)\n"
        "try: signal.raise_signal(signal.SIGTERM)\n"
        "except signals.Interrupted: print('interrupted')\n"
    )
    command = ["bash", "-c", 'trap "" INT; exec "$0" "$@"', sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["goes on", "interrupted"]
