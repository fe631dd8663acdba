"""Profiles on disk: kept by the weights' hash, found again, and left out with one message where damaged."""

import errno
import hashlib
import json
import os
import re
from pathlib import Path

import pytest

from attnviz.errors import CheckpointError, OutputError
from attnviz.model.head_ids import HeadId
from attnviz.model.sources import Source, find_checkpoint, weights_sha256
from attnviz.patterns import profile_store
from attnviz.patterns.profile_store import StoredCorpus, StoredRole, find_profile, store_profile
from tests.stored import WEIGHTS, profile_of, role

SHAPE = "bert-2x3x12"
SOURCE = Source("a-model", Path("/nowhere"), None, WEIGHTS)
ROLE = {
    "id": "L0H2", "role": "previous-token", "score": 0.9, "baseline": 0.1, "n": 900, "interval": [0.8, 1],
    "threshold": "a rule", "passed": True, "direction": None,
}  # fmt: skip
OTHER = {
    "id": "L1H0", "role": "syntactic:nsubj", "score": 0.25, "baseline": 0.5, "n": 40, "interval": [0.1, 0.4],
    "threshold": "a rule", "passed": False, "direction": "dependent_to_head",
}  # fmt: skip
MODEL = {
    "name": "a-model", "architecture": "bert", "n_layers": 2, "n_heads": 3, "d_model": 12, "weights_sha256": WEIGHTS
}  # fmt: skip
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


def changed(**values):
    return {**DOCUMENT, **values}


def put(folder, content=DOCUMENT, weights=WEIGHTS):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{SHAPE}-{weights}.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def find(source=SOURCE, shape=SHAPE):
    """What is found, and what was warned of."""
    warnings: list[str] = []
    return find_profile(source, shape, warnings.append), warnings


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
    put(shipped, changed(model={**MODEL, "weights_sha256": weights}), weights)
    found, warnings = find(find_checkpoint(str(bert_folder)))
    assert (found.seed, warnings) == (4, [])


# --- what it says


def test_the_role_of_a_head_is_the_passing_one_of_the_largest_error_reduction():
    """Any role may be it: det has the smaller margin, and coreference one of its own; local and broad come last."""
    case, det = role("syntactic:case", 0.68, 0.38), role("syntactic:det", 0.81, 0.59)
    name, failed = role("coreference", 0.9, 0.5), role("sink", 1.0, 0.0, passed=False)
    local, broad = role("local", 0.99, 0.1), role("broad", 0.95, 1.0)
    found = profile_of({"L0H0": [case, broad, det, failed, local]}).of(HeadId(0, 0))
    assert found.roles == (det, case, local, broad)
    assert found.role == det
    assert det.gain == pytest.approx(0.22 / 0.41)
    assert broad.gain is None
    assert profile_of({"L0H0": [det, name]}).of(HeadId(0, 0)).role == name
    assert profile_of({"L0H0": [failed]}).of(HeadId(0, 0)).role is None


def test_it_says_what_it_was_measured_on(shipped, user_folder):
    assert profile_of({}).measured_on == "a.conllu, 1,234 texts; b.tsv, 7 texts"
    assert profile_of({}).sentences == 1241
    put(user_folder, changed(corpora=[]))
    found, _ = find()
    assert (found.measured_on, found.sentences) == ("random tokens, repeated", 0)


def test_its_origin_names_no_folder():
    origin = profile_of({}, shipped=False).origin
    assert (origin["source"], origin["file"]) == ("yours", f"bert-2x2x16-{WEIGHTS}.json")
    assert origin["corpora"] == [{"name": "a.conllu", "sentences": 1234}, {"name": "b.tsv", "sentences": 7}]
    assert profile_of({}).origin["source"] == "shipped"


# --- damaged


def role_with(**values):
    return changed(roles=[{**ROLE, **values}])


DAMAGED = {
    "nothing": ("", "Expecting value"),
    "half": (json.dumps(DOCUMENT)[:200], "Expecting|Unterminated"),
    "a list": ("[]", "found list for the document"),
    "deep": ("[" * 100_000, "RecursionError|recursion"),
    "NaN": (json.dumps(changed(seed=float("nan"))), "found NaN, which is no number of JSON"),
    "no model": (changed(model=None), "found nothing for model"),
    "a score of 55": (role_with(score=55.0), "found 55 for score, which is a share or a cosine"),
    "an interval of 2": (role_with(interval=[0.1, 2.0]), "found 2 for interval"),
    "no hash": (changed(model={**MODEL, "weights_sha256": None}), "found nothing for weights_sha256"),
    "other weights": (changed(model={**MODEL, "weights_sha256": "ef" * 32}), "found one of another model"),
    "another shape": (changed(model={**MODEL, "n_heads": 4}), "found one of another model"),
    "no roles": (changed(roles=None), "found nothing for roles"),
    "a role as text": (changed(roles=["L0H0"]), "found str for a role"),
    "no head": (role_with(id="first"), "found 'first' for a head"),
    "a missing layer": (role_with(id="L2H0"), "found the head L2H0, which the model lacks"),
    "a missing head": (role_with(id="L0H3"), "found the head L0H3, which the model lacks"),
    "a score as text": (role_with(score="0.9"), "found str for score"),
    "a score as truth": (role_with(score=True), "found bool for score"),
    "an endless score": (json.dumps(DOCUMENT).replace("0.9", "1e999", 1), "found float for score"),
    "a baseline of -3": (role_with(baseline=-3), "found -3 for baseline, which is a share or a cosine"),
    "no baseline": (role_with(baseline=None), "found nothing for baseline"),
    "n as truth": (role_with(n=True), "found bool for n"),
    "passed as text": (role_with(passed="no"), "found str for passed"),
    "half an interval": (role_with(interval=[0.1]), "found an interval of 1 numbers"),
    "an interval of text": (role_with(interval=[0.1, "x"]), "found str for interval"),
    "a direction as number": (role_with(direction=3), "found int for direction"),
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
    (message,) = warnings
    start = f"the stored profile {path} was left out: expected a profile.json of these weights, "
    assert message.startswith(start)
    assert re.search(reason, message)
    assert message.endswith("; delete it, or make it again with attnviz profile.")


def test_a_pipe_in_place_of_a_profile_is_left_out(shipped, user_folder):
    put(shipped)
    user_folder.mkdir(parents=True, exist_ok=True)
    os.mkfifo(user_folder / f"{SHAPE}-{WEIGHTS}.json")
    found, warnings = find()
    assert found.shipped
    assert "found something that is no file" in warnings[0]


def test_a_damaged_shipped_profile_asks_for_a_new_installation(shipped):
    put(shipped, "{")
    found, warnings = find()
    assert found is None
    assert [message.rpartition("; ")[2] for message in warnings] == ["reinstall attnviz."]


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
    (kept,) = user_folder.iterdir()
    assert kept.name == f"{SHAPE}-{WEIGHTS}.json"
    assert json.loads(kept.read_text())["seed"] == 4
