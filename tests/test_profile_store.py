"""Profiles on disk: kept by the weights' hash, found again, and left out with one message where damaged."""

import copy
import errno
import hashlib
import json
from pathlib import Path

import pytest

from attnviz.errors import CheckpointError, OutputError
from attnviz.model.head_ids import HeadId
from attnviz.model.sources import Source, find_checkpoint, weights_sha256
from attnviz.patterns import profile_store
from attnviz.patterns.profile_store import (
    StoredCorpus,
    StoredRole,
    find_profile,
    store_profile,
)
from tests.stored import WEIGHTS, profile_of, role

SHAPE = "bert-2x3x12"
SOURCE = Source("a-model", Path("/nowhere"), None, WEIGHTS)
DOCUMENT = {
    "attnviz": "9.8.7",
    "model": {
        "name": "a-model",
        "architecture": "bert",
        "n_layers": 2,
        "n_heads": 3,
        "d_model": 12,
        "weights_sha256": WEIGHTS,
    },
    "corpora": [{"path": "/somewhere/else/trees.conllu", "sha256": "00", "sentences": 120, "tokens": 900}],
    "seed": 4,
    "statistics": {"entropy": [[1.0, None, 0.5], [0.1, 0.2, 0.3]]},
    "roles": [
        {
            "id": "L0H2",
            "role": "previous-token",
            "score": 0.9,
            "baseline": 0.1,
            "n": 900,
            "interval": [0.8, 1],
            "threshold": "a rule",
            "passed": True,
            "direction": None,
        },
        {
            "id": "L1H0",
            "role": "syntactic:nsubj",
            "score": 0.25,
            "baseline": 0.5,
            "n": 40,
            "interval": [0.1, 0.4],
            "threshold": "a rule",
            "passed": False,
            "direction": "dependent_to_head",
        },
    ],
}


@pytest.fixture(autouse=True)
def shipped(monkeypatch, tmp_path):
    """A folder of shipped profiles of the test's own."""
    folder = tmp_path / "shipped"
    folder.mkdir()
    monkeypatch.setattr(profile_store, "_SHIPPED", folder)
    return folder


def changed(**values):
    return {**copy.deepcopy(DOCUMENT), **values}


def put(folder, content=DOCUMENT, weights=WEIGHTS):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{SHAPE}-{weights}.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def find(source=SOURCE, shape=SHAPE):
    """What is found, and what was warned of."""
    warnings: list[str] = []
    return find_profile(source, shape, warnings.append), warnings


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


# --- kept and found


def test_a_stored_profile_is_found_again(user_folder):
    path = store_profile(DOCUMENT)
    assert path == user_folder / f"{SHAPE}-{WEIGHTS}.json"
    assert json.loads(path.read_text()) == DOCUMENT
    found, warnings = find()
    assert warnings == []
    assert (found.path, found.shipped, found.seed, found.version) == (path, False, 4, "9.8.7")
    assert found.corpora == (StoredCorpus("trees.conllu", 120),)
    assert found.roles == {
        HeadId(0, 2): (StoredRole("previous-token", 0.9, 0.1, 900, (0.8, 1.0), True),),
        HeadId(1, 0): (StoredRole("syntactic:nsubj", 0.25, 0.5, 40, (0.1, 0.4), False, "dependent_to_head"),),
    }


def test_the_shipped_profile_is_found_where_the_user_has_none(shipped, user_folder):
    path = put(shipped)
    found, warnings = find()
    assert (found.path, found.shipped, warnings) == (path, True, [])
    assert not user_folder.exists()  # looking makes no folder


def test_the_users_own_profile_comes_first(shipped, user_folder):
    put(shipped, changed(seed=1))
    put(user_folder, changed(seed=2))
    found, _ = find()
    assert (found.seed, found.shipped) == (2, False)


@pytest.mark.parametrize(
    ("source", "shape"), [(SOURCE, "bert-2x3x24"), (Source("b", Path("/nowhere"), None, "cd" * 32), SHAPE)]
)
def test_a_profile_of_another_shape_or_of_other_weights_is_none(shipped, user_folder, source, shape):
    put(shipped)
    put(user_folder)
    assert find(source, shape) == (None, [])


def test_weights_are_not_hashed_where_no_profile_has_the_models_shape(shipped, user_folder):
    put(shipped)
    nowhere = Source("a-model", Path("/nowhere"))  # hashing would fail: there are no weights
    assert find(nowhere, "gpt2-2x3x12") == (None, [])
    with pytest.raises(CheckpointError, match="has no weights"):
        find(nowhere, SHAPE)


def test_the_hash_is_that_of_the_weights(bert_folder, shipped):
    weights = hashlib.sha256((bert_folder / "model.safetensors").read_bytes()).hexdigest()
    assert weights_sha256(find_checkpoint(str(bert_folder))) == weights
    put(shipped, changed(model={**DOCUMENT["model"], "weights_sha256": weights}), weights)
    found, warnings = find(find_checkpoint(str(bert_folder)))
    assert (found.seed, warnings) == (4, [])


# --- what it says


def test_a_head_has_its_passing_roles_by_their_margin():
    near, far, failed = role("sink", 0.7, 0.5), role("previous-token", 0.9, 0.1), role("local", 1.0, 0.0, passed=False)
    found = profile_of({"L0H0": [near, failed, far]}).of(HeadId(0, 0))
    assert found.roles == (far, near)
    assert found.relations == ()
    assert found.judged_relations is False


def test_relations_are_judged_where_any_head_has_one_passed_or_not():
    passing = role("syntactic:obl:agent", 0.6, 0.2)
    profile = profile_of({"L0H0": [role("sink", 0.7, 0.1), passing], "L0H1": [role("sink", 0.7, 0.1)]})
    assert profile.of(HeadId(0, 0)).relations == (passing,)
    assert passing.relation == "obl:agent"
    assert profile.of(HeadId(0, 1)).relations == ()
    assert profile.of(HeadId(0, 1)).judged_relations is True
    assert profile.of(HeadId(1, 1)).roles == ()
    failing = profile_of({"L0H0": [role("syntactic:det", 0.1, 0.2, passed=False)]})
    assert failing.of(HeadId(1, 1)).judged_relations is True


def test_it_says_what_it_was_measured_on(shipped, user_folder):
    assert profile_of({}).measured_on == "a.conllu, 1,234 texts; b.tsv, 7 texts"
    assert profile_of({}).sentences == 1241
    put(user_folder, changed(corpora=[]))
    found, _ = find()
    assert (found.measured_on, found.sentences) == ("random tokens, repeated", 0)


def test_its_origin_names_no_folder():
    origin = profile_of({}, shipped=False).origin
    assert origin == {
        "source": "yours",
        "file": f"bert-2x2x16-{WEIGHTS}.json",
        "attnviz": "1.2.3",
        "seed": 3,
        "sentences": 1241,
        "corpora": [{"name": "a.conllu", "sentences": 1234}, {"name": "b.tsv", "sentences": 7}],
    }
    assert profile_of({}).origin["source"] == "shipped"


# --- damaged

ROLE = DOCUMENT["roles"][0]
DAMAGED = {
    "nothing": ("", "Expecting value"),
    "half": (json.dumps(DOCUMENT)[:200], "Expecting|Unterminated"),
    "a list": ("[]", "found list for the document"),
    "deep": ("[" * 100_000, "RecursionError|recursion"),
    "NaN": (json.dumps(changed(seed=float("nan"))), "found NaN, which is no number of JSON"),
    "no model": (changed(model=None), "found nothing for model"),
    "no hash": (changed(model={**DOCUMENT["model"], "weights_sha256": None}), "found nothing for weights_sha256"),
    "other weights": (changed(model={**DOCUMENT["model"], "weights_sha256": "ef" * 32}), "found one of another model"),
    "another shape": (changed(model={**DOCUMENT["model"], "n_heads": 4}), "found one of another model"),
    "no roles": (changed(roles=None), "found nothing for roles"),
    "a role as text": (changed(roles=["L0H0"]), "found str for a role"),
    "no head": (changed(roles=[{**ROLE, "id": "first"}]), "found 'first' for a head"),
    "a missing layer": (changed(roles=[{**ROLE, "id": "L2H0"}]), "found the head L2H0, which the model lacks"),
    "a missing head": (changed(roles=[{**ROLE, "id": "L0H3"}]), "found the head L0H3, which the model lacks"),
    "a score as text": (changed(roles=[{**ROLE, "score": "0.9"}]), "found str for score"),
    "a score as truth": (changed(roles=[{**ROLE, "score": True}]), "found bool for score"),
    "an endless score": (json.dumps(DOCUMENT).replace("0.9", "1e999", 1), "found float for score"),
    "no baseline": (changed(roles=[{**ROLE, "baseline": None}]), "found nothing for baseline"),
    "n as truth": (changed(roles=[{**ROLE, "n": True}]), "found bool for n"),
    "passed as text": (changed(roles=[{**ROLE, "passed": "no"}]), "found str for passed"),
    "half an interval": (changed(roles=[{**ROLE, "interval": [0.1]}]), "found an interval of 1 numbers"),
    "an interval of text": (changed(roles=[{**ROLE, "interval": [0.1, "x"]}]), "found str for interval"),
    "a direction as number": (changed(roles=[{**ROLE, "direction": 3}]), "found int for direction"),
    "a corpus as text": (changed(corpora=["trees.conllu"]), "found str for a corpus"),
    "a corpus without size": (changed(corpora=[{"path": "x"}]), "found nothing for sentences"),
    "no seed": (changed(seed=None), "found nothing for seed"),
    "no version": (changed(attnviz=3), "found int for attnviz"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_profile_is_left_out_with_one_message_and_the_shipped_one_is_found(shipped, user_folder, case):
    content, reason = DAMAGED[case]
    path = put(user_folder, content)
    put(shipped)
    found, warnings = find()
    assert found.shipped
    assert len(warnings) == 1
    start = f"the stored profile {path} was left out: expected a profile.json of these weights, "
    assert warnings[0].startswith(start)
    with pytest.raises(ValueError, match=reason):
        raise ValueError(warnings[0])
    assert warnings[0].endswith("; delete it, or make it again with attnviz profile.")


def test_a_damaged_shipped_profile_asks_for_a_new_installation(shipped):
    put(shipped, "{")
    found, warnings = find()
    assert found is None
    assert len(warnings) == 1
    assert warnings[0].endswith("; reinstall attnviz.")


def test_a_profile_that_cannot_be_read_is_left_out_with_the_reason(user_folder):
    (user_folder / f"{SHAPE}-{WEIGHTS}.json").mkdir(parents=True)
    found, warnings = find()
    assert found is None
    assert "expected a profile.json of these weights, Is a directory; delete it" in warnings[0]


# --- not stored


def test_without_platformdirs_nothing_is_stored_and_the_shipped_profile_is_still_found(monkeypatch, shipped):
    put(shipped)
    monkeypatch.setattr("attnviz.patterns.profile_store.importlib.util.find_spec", lambda _: None)
    with pytest.raises(
        OutputError, match=r"not stored, and attnviz heads will not show it, .* type: pip install 'attnviz\[profile\]'"
    ):
        store_profile(DOCUMENT)
    found, warnings = find()
    assert (found.shipped, warnings) == (True, [])


def test_a_full_disk_leaves_the_older_profile_and_no_half_of_a_new_one(user_folder, monkeypatch):
    store_profile(DOCUMENT)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OutputError, match=r"cannot write to .*: No space left on device"):
        store_profile(changed(seed=5))
    monkeypatch.undo()
    assert names_in(user_folder) == [f"{SHAPE}-{WEIGHTS}.json"]
    assert json.loads((user_folder / f"{SHAPE}-{WEIGHTS}.json").read_text())["seed"] == 4
