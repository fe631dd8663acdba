"""What lands on disk: the documents, and a folder that changes whole or not at all."""

import csv
import io
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors import safe_open

from attnviz.errors import OutputError
from attnviz.language.syntax import Arc, Parse, Word
from attnviz.models.head_ids import HeadId, Stack
from attnviz.present.documents import CAPTIONS, caption_files, csv_text, json_text
from attnviz.present.fields import Field, Table
from attnviz.present.view import ViewOptions
from attnviz.version import __version__
from tests.support.captions import read_captions
from tests.support.hand_made import LABELS, by_design, hand_made
from tests.support.stored import PROFILE

PARSE = Parse((Word("the", (1,)), Word("cat", (2,))), (Arc(0, 1, "det"),), "a-parser")


def document_of(analysis):
    return analysis.document(("overview.png",))


def test_the_document_has_the_values_of_the_analysis():
    found = document_of(hand_made())
    assert (found["attnviz"], found["text"], found["pair"]) == (__version__, "the cat ran away", None)
    assert found["figures"] == ["overview.png"]
    names = {"name": "by-hand", "full_name": "by-hand"}
    expected = {"architecture": "bert", "revision": None, "weights_sha256": None, "n_layers": 2}
    assert found["model"] == {
        **names,
        **expected,
        "n_heads": 2,
        "d_model": 16,
        "d_head": 8,
        "device": "cpu",
        "dtype": "float32",
    }
    assert [token["text"] for token in found["tokens"]] == list(LABELS)
    assert found["tokens"][0] == {"id": 100, "text": "[CLS]", "special": True, "word": None, "sink": "special"}
    assert [each["pattern_error"] for each in found["verification"]["layers"]] == [2e-7, 4e-7]
    first = found["heads"][0]
    assert (first["id"], first["layer"], first["head"]) == ("L0H0", 0, 0)
    label = {"": "previous-token", "_score": 1.0, "_error_reduction": 1.0, "_n": 3, "_certain": False}
    assert {name: first[f"label{name}"] for name in label} == label
    assert first["label_baseline"] == pytest.approx(3 / 16)
    assert found["heads"][1]["label_error_reduction"] is None  # of broad, whose baseline is the most there can be
    assert (first["previous"], first["sink"], first["confidence"]) == (1.0, 0.25, 1.0)
    assert first["distance"] == pytest.approx(5 / 6)
    shares = {"previous": 3 / 16, "current": 1 / 4, "next": 3 / 16, "local": 10 / 16, "long_range": None}
    assert first["baseline"] == pytest.approx(shares)


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
    assert written.endswith("}\n")
    assert all(character.isprintable() or character == "\n" for character in written)
    assert json.loads(written)["text"] == json.loads(written)["model"]["name"] == text


def test_json_refuses_what_is_no_number_and_names_it():
    with pytest.raises(OutputError, match=r"heads\.1\.score"):
        json_text({"heads": [{"score": 0.5}, {"score": float("nan")}]})


def test_csv_has_the_values_of_the_document():
    analysis = hand_made()
    text = analysis.table(ViewOptions()).csv()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["id"] for row in rows] == ["L0H0", "L0H1", "L1H0", "L1H1"]
    for row, head in zip(rows, document_of(analysis)["heads"], strict=True):
        for name in ("id", "layer", "head", "entropy", "distance", "sink", "previous", "long_range"):
            assert row[name] == ("" if head[name] is None else str(head[name]))
    assert rows[0]["long_range"] == ""
    assert "\r" not in text
    assert csv_text(("label",), [{"label": 'syntactic:a,"b'}]) == 'label\n"syntactic:a,""b"\n'


def test_attention_is_one_tensor_a_layer(tmp_path):
    hand_made().save(tmp_path / "out", figures=["none"], save_attention=True)
    with safe_open(tmp_path / "out" / "attention.safetensors", framework="pt") as file:
        assert sorted(file.keys()) == ["layer.0", "layer.1"]
        for layer in range(2):
            found = file.get_tensor(f"layer.{layer}")
            assert (found.shape, found.dtype) == ((2, 6, 6), torch.float32)
            assert torch.equal(found, by_design(6)[layer])
        assert file.metadata() == {"unit": "token", "labels": json.dumps(list(LABELS)), "model": "by-hand"}


def test_the_same_is_written_for_numpy(tmp_path):
    """Without pickled objects."""
    hand_made().save(tmp_path / "out", figures=["none"], save_npz=True)
    assert [path.name for path in (tmp_path / "out").glob("attention.*")] == ["attention.npz"]
    with np.load(tmp_path / "out" / "attention.npz") as arrays:
        assert sorted(arrays) == ["labels", "layer.0", "layer.1", "model", "unit"]
        for layer in range(2):
            np.testing.assert_array_equal(arrays[f"layer.{layer}"], by_design(6)[layer].numpy())
        assert arrays["labels"].tolist() == list(LABELS)


HOSTILE = "a*b_c `x` <script> [CLS](u) #1 | \\ **d**: e"


def test_captions_come_back_from_the_file_as_they_were_and_hold_no_markup():
    captions = [("overview.png", "one\nDetails: *two*."), ("heads/L00H00.png", HOSTILE), ("heads/L00H00.svg", HOSTILE)]
    text = caption_files(captions)[CAPTIONS]
    assert read_captions(text) == captions
    assert "Details: \\*two\\*." in text
    assert "\\<script>" in text.replace("\\>", ">")
    assert text.count("**heads/L00H00.png, heads/L00H00.svg**") == 1


def test_a_head_has_the_roles_that_pass_in_the_profile_and_the_document_says_where_they_come_from():
    analysis = hand_made(profile=PROFILE)
    found = json.loads(json_text(document_of(analysis)))
    assert found["profile"] == PROFILE.origin
    roles = {head["id"]: head["profile"] for head in found["heads"]}
    assert [entry["role"] for entry in roles["L0H0"]] == ["previous-token", "local"]  # by margin; sink did not pass
    assert roles["L0H1"][0]["interval"] == pytest.approx([0.65, 0.75])
    assert roles["L1H0"] == []
    nsubj = {"name": "syntactic:nsubj", "direction": "dependent_to_head", "score": 0.7, "baseline": 0.4, "n": 200}
    nsubj |= {"error_reduction": pytest.approx(0.5), "in_text": None, "seen": "not parsed"}
    assert [head["role"] for head in found["heads"]][1:3] == [nsubj, None]
    (row,) = [row for row in analysis.table(ViewOptions()).csv_rows()[1] if row["id"] == "L0H1"]
    of_role = {"role": "syntactic:nsubj", "role_score": 0.7, "role_baseline": 0.4, "role_n": 200, "label": "broad"}
    of_role |= {"role_direction": "dependent_to_head", "role_in_text": "not parsed"}
    assert {name: row[name] for name in of_role} == of_role
    for relation, there, word in (("nsubj:pass", None, "too few"), ("det", False, "none here")):
        arcs = (Arc(0, 1, relation),)
        of_text = document_of(hand_made(profile=PROFILE, parse=replace(PARSE, arcs=arcs)))["heads"]
        assert (of_text[1]["role"]["in_text"], of_text[1]["role"]["seen"]) == (there, word)
        assert of_text[0]["role"]["in_text"] is True  # previous-token: the text has such tokens
        assert (of_text[3]["role"]["in_text"], of_text[3]["role"]["seen"]) == (None, "corpus only")


def test_columns_of_encoder_decoders_alone_stand_last_in_the_csv_file():
    fields = (Field(name="id"), Field(name="stack", value=lambda row: row.id.layer, of_stacks=True), Field(name="b"))
    for layer, columns in ((Stack("E", "encoder", 0, 1, 1).layer(0), ["id", "b", "stack"]), (0, ["id", "b"])):
        rows = [SimpleNamespace(id=HeadId(layer, 0), b=2)]
        assert Table("", fields, rows).csv_rows()[0] == columns
