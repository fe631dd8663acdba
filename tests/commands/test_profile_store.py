"""Profiles on disk: kept by the weights' hash, found again, and left out with one message where damaged."""

import errno
import hashlib
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from attnviz.errors import CheckpointError, OutputError
from attnviz.models.head_ids import HeadId
from attnviz.models.sources import Source, find_checkpoint, weights_sha256
from attnviz.profiles import store as profile_store
from attnviz.profiles.store import find_profile, read_profile, store_profile
from tests.support.stored import WEIGHTS, profile_of, role

SHAPE = "bert-2x3x12"
NAME = f"{SHAPE}-{WEIGHTS}.json"
SOURCE = Source("a-model", Path("/nowhere"), None, WEIGHTS)
ROLE = {"id": "L0H2", "role": "previous-token", "score": 0.9, "baseline": 0.1, "n": 900, "interval": [0.8, 1]}
ROLE |= {"threshold": "a rule", "holds": True, "passed": True, "direction": None}
OTHER = ROLE | {"id": "L1H0", "role": "syntactic:nsubj", "holds": False, "passed": False}
OTHER |= {"direction": "dependent_to_head"}
MODEL = {"name": "a-model", "architecture": "bert", "n_layers": 2, "n_heads": 3, "d_model": 12}
MODEL |= {"weights_sha256": WEIGHTS}
DOCUMENT = {
    "attnviz": "9.8.7",
    "model": MODEL,
    "corpora": [{"path": "/somewhere/else/trees.conllu", "sha256": "00", "sentences": 120, "tokens": 900}],
    "seed": 4,
    "statistics": {"entropy": [[1.0, None, 0.5], [0.1, 0.2, 0.3]]},
    "roles": [ROLE, OTHER],
}


@pytest.fixture(autouse=True)
def shipped(monkeypatch, tmp_path):
    """A folder of shipped profiles of the test's own."""
    folder = tmp_path / "shipped"
    folder.mkdir()
    monkeypatch.setattr(profile_store, "_SHIPPED", folder)
    return folder


def run(n_texts=0, corpus="trees.conllu", *, roles=None, **parts):
    """The document of a run on one corpus, or on none; ``roles`` are scores of L0H2."""
    corpora = [{"path": f"/somewhere/{corpus}", "sentences": n_texts}] if n_texts else []
    judged = [{**ROLE, "role": name, "score": score, "texts": 32} for name, score in (roles or {}).items()]
    about = {"attnviz": "9.8.7", "model": MODEL, "seed": 4, "control_texts": n_texts or None}
    return {**about, "corpora": corpora, "roles": judged, **parts}


TEXT_ROLES = {"sink": 0.9, "previous-token": 0.8, "syntactic:det": 0.7}
ON_TREES = run(120, statistics={"sink": [[1.0]]}, syntax={"gold": True}, roles=TEXT_ROLES)
ON_REPEATS = run(repeats={"induction": [[0.5]]}, roles={"induction": 0.5, "previous-token": 0.4})
ON_NAMES = run(30, "gap.tsv", coreference={"n": 30}, roles={"coreference": 0.6})


def stored(user_folder):
    (path,) = user_folder.iterdir()
    return json.loads(path.read_text())


def put(folder, content=DOCUMENT, weights=WEIGHTS):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{SHAPE}-{weights}.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def find(source=SOURCE, shape=SHAPE):
    """What is found, and what was warned of."""
    warnings: list[str] = []
    return find_profile(source, shape, warnings.append), warnings


def test_a_stored_profile_is_found_again(user_folder):
    path, _ = store_profile(DOCUMENT | {"syntax": {"gold": True}}, "2026-11-22")
    assert path == user_folder / NAME
    assert json.loads(path.read_text())["statistics"] == DOCUMENT["statistics"]
    found, warnings = find()
    assert warnings == []
    assert (found.path, found.shipped, found.origin["seed"], found.origin["attnviz"]) == (path, False, 4, "9.8.7")
    assert found.origin["corpora"] == [{"name": "trees.conllu", "sentences": 120}]
    for entry in (ROLE, OTHER):
        (of_head,) = found.roles[HeadId.parse(entry["id"])]
        values = {name: getattr(of_head, name) for name in entry}
        assert values | {"id": str(of_head.id), "interval": list(of_head.interval)} == entry


def test_the_users_own_profile_comes_first_and_parts_of_the_shipped_one_are_taken_over(shipped, user_folder):
    path = put(shipped, {**ON_TREES, "seed": 1, "note": "Thanks to all."})
    found, warnings = find()
    assert (found.path, found.shipped, found.origin["seed"], warnings) == (path, True, 1, [])
    assert not user_folder.exists()  # looking makes no folder
    store_profile(ON_REPEATS, "2026-11-22")
    found, _ = find()
    assert (found.origin["seed"], found.shipped) == (4, False)
    syntax = stored(user_folder)["parts"]["syntax"]
    assert (syntax["note"], syntax["date"]) == ("Thanks to all.", None)


def test_a_profile_of_other_weights_is_none_and_of_another_shape_no_weights_are_hashed(shipped, user_folder):
    put(shipped)
    put(user_folder)
    assert find(Source("b", Path("/nowhere"), None, "cd" * 32)) == (None, [])
    nowhere = Source("a-model", Path("/nowhere"))  # hashing would fail: there are no weights
    assert find(nowhere, "gpt2-2x3x12") == (None, [])
    with pytest.raises(CheckpointError):
        find(nowhere, SHAPE)


def test_the_hash_is_that_of_the_weights(bert_folder, shipped):
    weights = hashlib.sha256((bert_folder / "model.safetensors").read_bytes()).hexdigest()
    assert weights_sha256(find_checkpoint(str(bert_folder))) == weights
    put(shipped, DOCUMENT | {"model": MODEL | {"weights_sha256": weights}}, weights)
    found, warnings = find(find_checkpoint(str(bert_folder)))
    assert (found.origin["seed"], warnings) == (4, [])


def test_a_run_keeps_the_parts_that_it_does_not_measure(user_folder):
    """Each with its own corpus, date and control; previous-token is judged by text where there is text."""
    store_profile(ON_REPEATS, "2026-11-20")
    store_profile(ON_NAMES, "2026-11-21")
    _, merged = store_profile(ON_TREES, "2026-11-22")
    assert (merged.taken, merged.stay) == (("statistics", "syntax"), ())
    parts = stored(user_folder)["parts"]
    assert {name: (part["n"], part["date"], part.get("control_texts")) for name, part in parts.items()} == {
        "statistics": (120, "2026-11-22", 120),
        "syntax": (120, "2026-11-22", 120),
        "coreference": (30, "2026-11-21", 30),
        "repeats": (32, "2026-11-20", None),
    }
    expected = list((TEXT_ROLES | {"coreference": 0.6, "induction": 0.5}).items())
    assert [(role.role, role.score) for role in find()[0].roles[HeadId(0, 2)]] == expected
    store_profile(ON_REPEATS, "2026-11-23")  # and after the text, too
    assert [(role.role, role.score) for role in find()[0].roles[HeadId(0, 2)]] == expected


def test_a_part_that_is_measured_anew_replaces_the_older_one_unless_that_has_more_texts(user_folder):
    store_profile(ON_TREES, "2026-11-20")
    _, merged = store_profile(run(200, "lines.txt", statistics={"sink": [[0.2]]}, roles={"sink": 0.2}), "2026-11-22")
    assert (merged.taken, merged.stay) == (("statistics",), ())
    document = stored(user_folder)
    assert document["statistics"] == {"sink": [[0.2]]}
    assert {role["role"]: role["score"] for role in document["roles"]} == {"sink": 0.2, "syntactic:det": 0.7}
    assert document["parts"]["syntax"]["corpora"] == ON_TREES["corpora"]
    trial = run(5, "few.conllu", statistics={"sink": [[0.1]]}, repeats={"induction": [[0.5]]})
    _, merged = store_profile(trial, "2026-11-22")
    assert (merged.taken, merged.stay) == (("repeats",), ("statistics",))
    assert stored(user_folder)["statistics"] == {"sink": [[0.2]]}
    store_profile(trial, "2026-11-22", smaller=True)
    assert stored(user_folder)["statistics"] == {"sink": [[0.1]]}


def test_two_runs_at_once_lose_no_part(user_folder, monkeypatch):
    merge, merging = profile_store.merged, Event()

    def slowly(*given, **more):
        merging.set()
        time.sleep(0.2)
        return merge(*given, **more)

    monkeypatch.setattr(profile_store, "merged", slowly)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(store_profile, ON_REPEATS, "2026-11-20")
        assert merging.wait(60)
        store_profile(ON_TREES, "2026-11-22")
        first.result()
    assert set(stored(user_folder)["parts"]) == {"statistics", "syntax", "repeats"}


def test_the_role_of_a_head_is_the_passing_one_of_the_largest_error_reduction():
    """Any role may be it: det has the smaller margin, and coreference one of its own; local and broad come last."""
    case, det = role("syntactic:case", 0.68, 0.38), role("syntactic:det", 0.81, 0.59)
    name, failed = role("coreference", 0.9, 0.5), role("sink", 1.0, 0.0, passed=False)
    local, broad = role("local", 0.99, 0.1), role("broad", 0.95, 1.0)
    found = profile_of({"L0H0": [case, broad, det, failed, local]}).of(HeadId(0, 0))
    assert found == (det, case, local, broad)
    assert det.error_reduction == pytest.approx(0.22 / 0.41)
    assert broad.error_reduction is None
    assert profile_of({"L0H0": [det, name]}).of(HeadId(0, 0))[0] == name
    assert profile_of({"L0H0": [failed]}).of(HeadId(0, 0)) == ()


def test_a_role_names_the_corpus_that_measured_it_and_no_other():
    trees, names = role("syntactic:nsubj", 0.9, 0.1), role("coreference", 0.9, 0.5)
    found = profile_of({"L0H0": [trees, role("local", 0.9, 0.1)], "L0H1": [names]})
    of_trees, of_names = found.measured_by([trees]), found.measured_by([names])
    assert ("a.conllu" in of_trees, "b.tsv" in of_trees, "1,234" in of_trees) == (True, False, True)
    assert ("a.conllu" in of_names, "b.tsv" in of_names) == (False, True)
    assert found.measured_by(found.of(HeadId(0, 0))) == of_trees  # both parts, once
    both = found.measured_by([trees, names])
    assert ("a.conllu" in both, "b.tsv" in both) == (True, True)


def role_with(**values):
    return DOCUMENT | {"roles": [{**ROLE, **values}]}


DAMAGED = {  # every value of a document spoiled: test_examples_shown.py
    "half": json.dumps(DOCUMENT)[:200],
    "deep": "[" * 100_000,
    "NaN": json.dumps(DOCUMENT | {"seed": float("nan")}),
    "an endless score": json.dumps(DOCUMENT).replace("0.9", "1e999", 1),
    "a missing layer": role_with(id="L2H0"),
    "half an interval": role_with(interval=[0.1]),
    "a part that is missing": DOCUMENT | {"parts": {"syntax": {"corpora": []}}},
    "other weights": DOCUMENT | {"model": MODEL | {"weights_sha256": "ef" * 32}},
    "another shape": DOCUMENT | {"model": MODEL | {"n_heads": 4}},
}


@pytest.mark.parametrize("case", [*DAMAGED, "a pipe", "a folder"])
def test_a_damaged_profile_is_left_out_with_one_message_and_the_shipped_one_is_found(shipped, user_folder, case):
    put(shipped)
    path = user_folder / NAME
    if case in DAMAGED:
        put(user_folder, DAMAGED[case])
    else:
        user_folder.mkdir(parents=True)
        (os.mkfifo if case == "a pipe" else os.mkdir)(path)
    found, (message,) = find()
    assert found.shipped
    assert str(path) in message
    if case not in ("other weights", "another shape"):  # it is the same for a file that is named
        with pytest.raises(OutputError):
            read_profile(path)


def test_a_damaged_profile_that_a_new_one_takes_the_place_of_is_told(user_folder):
    path, told = put(user_folder, role_with(score="high")), []
    store_profile(ON_REPEATS, "2026-11-22", warn=told.append)
    assert [message.partition(": ")[0] for message in told] == [f"{path} is damaged"]
    assert {*stored(user_folder)["parts"]} == {"repeats"}


def test_without_platformdirs_nothing_is_stored_and_the_shipped_profile_is_still_found(monkeypatch, shipped):
    put(shipped)
    monkeypatch.setattr("attnviz.profiles.store.importlib.util.find_spec", lambda _: None)
    with pytest.raises(OutputError, match="platformdirs"):
        store_profile(DOCUMENT, "2026-11-22")
    found, warnings = find()
    assert (found.shipped, warnings) == (True, [])


def test_a_full_disk_leaves_the_older_profile_and_no_half_of_a_new_one(user_folder, monkeypatch):
    store_profile(DOCUMENT, "2026-11-22")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(OutputError):
            store_profile(DOCUMENT | {"seed": 5}, "2026-11-22")
    assert [path.name for path in user_folder.iterdir()] == [NAME]
    assert stored(user_folder)["seed"] == 4
