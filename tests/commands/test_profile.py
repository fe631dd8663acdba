"""The whole chain over corpora: what is measured, gone on with, split over processes, and given up."""

import json
import signal
import socket
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from attnviz.cli import main
from attnviz.cli.program import app
from attnviz.commands.profile import measure as profile_module
from attnviz.commands.profile.measure import Profile, profile_heads, untrained_copy
from attnviz.errors import CorpusError, OutputError, UsageError
from attnviz.judge.rules import Rule
from attnviz.models.checkpoint import Checkpoint, from_loaded
from attnviz.run import corpus
from attnviz.run.processes import Process, Unfinished
from tests.conftest import SHARED, needs_minilm, needs_parser
from tests.support import corpora
from tests.support.forked import forked, needs_fork
from tests.support.independent import MINILM_RELATIONS
from tests.support.long_runs import close, interrupting
from tests.support.models import bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2

pytest.importorskip("conllu", reason="needs the extra profile")


either = pytest.mark.parametrize(
    "checkpoint", ["bert", pytest.param("gpt2", marks=pytest.mark.thorough)], indirect=True, scope="session"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpora")
    corpora.treebank(folder / "trees.conllu", 40)
    corpora.sentences(folder / "lines.txt")
    corpora.examples(folder / "gap.tsv", 15)
    return folder


@pytest.fixture(scope="module")
def whole(checkpoint: Checkpoint, folder: Path) -> Profile | None:
    """Of all corpora, in one go."""
    return profile_heads(checkpoint, all_of(folder), repeats=True, batch_size=16, examples=0)


def numbers(profile: Profile | None) -> dict[str, Any]:
    """What was measured, without what depends on the batches that were drawn for verification."""
    assert profile is not None
    document = profile.document()
    return {key: document[key] for key in ("corpora", "statistics", "syntax", "coreference", "repeats", "roles")}


def all_of(folder: Path) -> list[Path]:
    return [folder / name for name in ("trees.conllu", "lines.txt", "gap.tsv")]


def measured(*arguments: Any, **options: Any) -> Profile:
    """Without an untrained copy and examples, which take as long again."""
    found = profile_heads(*arguments, **{"control": False, "examples": 0, **options})
    assert found is not None
    return found


@either
def test_the_size_of_the_batches_changes_nothing(checkpoint: Checkpoint, folder: Path):
    one, many = (measured(checkpoint, all_of(folder), batch_size=n, repeats=True, limit=12) for n in (3, 16))
    close(numbers(one), numbers(many))


@either
def test_what_was_measured_is_counted(checkpoint: Checkpoint, folder: Path, whole: Profile):
    counts = {count.corpus.path.name: (count.texts, count.left_out) for count in whole.corpora}
    assert counts == {"trees.conllu": (40, 0), "lines.txt": (20, 0), "gap.tsv": (12, 0)}
    lines = (folder / "lines.txt").read_text(encoding="utf-8").splitlines()
    assert whole.corpora[1].tokens == sum(len(checkpoint.tokenizer(line)["input_ids"]) for line in lines)
    assert whole.coreference is not None
    assert whole.statistics is not None
    assert (whole.coreference.n, whole.statistics.n_texts, whole.gold) == (12, 60, True)
    assert whole.verification.heads_compared == 12
    assert 0 < whole.texts_verified < 72


def test_parts_that_a_corpus_cannot_give_are_none(checkpoint: Checkpoint, folder: Path):
    lines = measured(checkpoint, [folder / "lines.txt"], syntax=False)
    assert (lines.relations, lines.coreference, lines.repeats, lines.gold) == (None, None, None, False)
    names = measured(checkpoint, [folder / "gap.tsv"])
    assert (names.relations, names.statistics, names.head_distances) == (None, None, None)
    repeats = measured(checkpoint, [], repeats=True)
    assert repeats.corpora == ()
    causal = checkpoint.architecture.causal
    roles = {"previous-token", "induction", "duplicate-token"} | ({"retrieval"} if causal else set())
    assert {role.role for role in repeats.roles} == roles


def test_a_text_that_is_too_long_is_named_and_left_out(checkpoint: Checkpoint, tmp_path: Path):
    path = tmp_path / "long.txt"
    path.write_text("the cat ran\n" + "cat " * 100 + "\nthe dog ran\n", encoding="utf-8")
    told: list[str] = []  # once, though the untrained copy leaves it out, too
    found = profile_heads(checkpoint, [path], syntax=False, warn=told.append)
    assert found is not None
    assert found.control_texts == 2
    assert (found.corpora[0].texts, found.corpora[0].left_out) == (2, 1)
    (message,) = told
    assert message.startswith(f"{path}:2: ")


def test_a_causal_model_is_asked_only_about_what_it_can_see(folder: Path, tmp_path: Path):
    path = tmp_path / "g.tsv"
    header = (folder / "gap.tsv").read_text(encoding="utf-8").splitlines()[0]
    rows = [
        "the cat saw a dog and he ran\the\t22\tcat\t4\tTRUE\tdog\t14\tFALSE",
        "he saw the cat and a dog\the\t0\tcat\t11\tTRUE\tdog\t21\tFALSE",
    ]
    path.write_text("\n".join([header, *(f"i\t{row}\tu" for row in rows)]) + "\n", encoding="utf-8")
    both = measured(from_loaded(sharp_bert(), bert_tokenizer()), [path])
    one = measured(from_loaded(sharp_gpt2(), gpt2_tokenizer()), [path])
    assert [(each.corpora[0].texts, each.corpora[0].left_out) for each in (both, one)] == [(2, 0), (1, 1)]
    accuracy = one.document()["coreference"]["accuracy"]
    assert accuracy["name_to_pronoun"] is None
    assert {value for row in accuracy["pronoun_to_name"] for value in row} <= {0.0, 1.0}
    assert {role.direction for role in one.roles} == {"pronoun_to_name"}
    assert set(both.document()["coreference"]["accuracy"]["name_to_pronoun"][0]) <= {0.0, 0.5, 1.0}


@either
@pytest.mark.usefixtures("saved_at_once")
def test_an_interrupted_run_goes_on_to_the_same_numbers(
    checkpoint: Checkpoint, folder: Path, whole: Profile, tmp_path: Path
):
    kept, told = tmp_path / "profile.unfinished", list[str]()
    options: dict[str, Any] = {"repeats": True, "batch_size": 4, "examples": 0, "unfinished": kept}
    with pytest.raises(KeyboardInterrupt):
        profile_heads(checkpoint, all_of(folder), **options, progress=interrupting(3, signal.SIGINT))
    assert kept.exists()
    parts = profile_heads(checkpoint, all_of(folder), **options, warn=told.append)
    assert "after 12 texts" in " ".join(told)
    close(numbers(parts), numbers(whole))
    assert kept.exists()  # whoever saves the profile deletes it then


@pytest.mark.usefixtures("saved_at_once")
def test_what_cannot_be_kept_meanwhile_is_told_and_the_run_goes_on(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    calls, told = count(), list[str]()
    saved = Unfinished.save

    def full(kept: Unfinished, state: dict[str, Any]) -> None:
        if next(calls) == 0:
            raise OutputError("No space left on device.")
        saved(kept, state)

    monkeypatch.setattr(Unfinished, "save", full)
    bert, path = from_loaded(sharp_bert(), bert_tokenizer()), folder / "trees.conllu"
    found = measured(bert, [path], batch_size=8, unfinished=tmp_path / "u", warn=told.append)
    assert (len(told), next(calls)) == (1, 2)  # once more when all was measured
    close(numbers(found), numbers(measured(bert, [path])))


def test_a_malformed_line_is_refused_before_anything_is_measured(folder: Path, tmp_path: Path):
    path, told = tmp_path / "t.conllu", list[str]()
    lines = (folder / "trees.conllu").read_text(encoding="utf-8").split("\n")
    lines[150] = lines[150].replace("\t", " ") or "x"
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(CorpusError, match=r"t\.conllu:151: "):
        measured(from_loaded(sharp_bert(), bert_tokenizer()), [path], progress=lambda *each: told.append(str(each)))
    assert told == []


def test_an_untrained_copy_is_of_the_same_shape_has_other_weights_and_takes_no_random_numbers(checkpoint: Checkpoint):
    before = torch.random.get_rng_state()
    copies = [untrained_copy(checkpoint, seed) for seed in (5, 5, 6)]
    assert torch.equal(torch.random.get_rng_state(), before)
    own, one, same, other = (dict(each.model.named_parameters()) for each in (checkpoint, *copies))
    assert {name: of.shape for name, of in one.items()} == {name: of.shape for name, of in own.items()}
    matrix = next(name for name, of in own.items() if of.dim() > 1)
    assert torch.equal(one[matrix], same[matrix])
    assert not torch.allclose(one[matrix], own[matrix])
    assert not torch.allclose(one[matrix], other[matrix])
    fresh = untrained_copy(replace(checkpoint, model=type(checkpoint.model)(checkpoint.config).double()), 0)
    assert {of.dtype for of in fresh.model.parameters()} == {torch.float64}
    assert not fresh.model.training


@pytest.fixture
def easy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is above its baseline passes."""
    monkeypatch.setattr(Rule, "holds", lambda _, score, baseline, __: score > baseline)


def scores(profile: Profile) -> list[tuple[Any, ...]]:
    return [(role.id, role.role, role.score, role.q) for role in profile.roles]


@either
def test_the_control_is_measured_on_a_part_and_no_role_passes_below_it(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, easy: None
):
    """In place of a fresh copy the model itself: what it does cannot be above it, though it passes by itself."""
    trees = corpora.treebank(tmp_path / "more.conllu", 110)  # enough for verdicts on shares
    monkeypatch.setattr(profile_module, "CONTROL_TEXTS", 100)
    monkeypatch.setattr(profile_module, "untrained_copy", lambda same, seed: same)
    told: set[tuple[str, int]] = set()
    found = profile_heads(checkpoint, [trees], progress=lambda name, _, total: told.add((name, total)))
    without = measured(checkpoint, [trees])
    assert found is not None
    assert (found.control_texts, without.control_texts) == (100, None)
    read_again = {("more.conllu, examples", 110), ("more.conllu, deciles", 100)}
    assert told == {("more.conllu", 110), ("more.conllu, untrained copy", 100), *read_again}
    assert scores(found) == scores(without)
    assert {role.untrained for role in without.roles} == {None}
    assert len({role.role for role in without.roles if role.holds} - {"broad"}) > 1
    controlled = {role.role for role in found.roles if role.untrained is not None}
    assert {role.role for role in found.roles} - controlled == {"broad", "local", "long-range", "sink"}
    part = measured(checkpoint, [trees], limit=100)
    for name in ("previous-token", "semantic"):
        (control,) = {role.untrained for role in found.roles if role.role == name}
        assert control == max(role.score for role in part.roles if role.role == name)
        assert not any(role.holds for role in found.roles if role.role == name and role.interval[0] <= control)


@needs_parser
def test_sentences_are_parsed_but_where_there_are_gold_trees(checkpoint: Checkpoint, folder: Path, tmp_path: Path):
    path, trees = tmp_path / "s.txt", folder / "trees.conllu"
    path.write_text("the cat saw the dog\nthe dog ran away\n", encoding="utf-8")
    found = measured(checkpoint, [path])
    n = 1 if checkpoint.architecture.causal else 3  # "the" at the beginning is GPT-2's sink
    assert {relation.relation: relation.n for relation in found.relations or ()}["det"] == n
    assert found.document()["syntax"]["gold"] is False
    assert numbers(measured(checkpoint, [trees, path]))["syntax"] == numbers(measured(checkpoint, [trees]))["syntax"]


@pytest.mark.thorough
@needs_minilm
@pytest.mark.skipif(not SHARED.exists(), reason="needs the treebank and the examples")
def test_the_numbers_of_minilm_are_those_of_an_independent_computation():
    """On the same texts: transformers' own attentions, numpy and loops; of coreference L3H1, and the heads' mean."""
    found = measured("minilm", [SHARED / "ud" / "en_ewt-ud-dev.conllu"], limit=150, device="cpu")
    relations = {relation.relation: relation for relation in found.relations or ()}
    for name, (offset, head, of_texts) in MINILM_RELATIONS.items():
        relation, (accuracy, by_offset, n) = relations[name], of_texts[150]
        layer, column = divmod(int(relation.accuracy.scores[0].argmax()), 12)
        assert (f"L{layer}H{column}", relation.offset, relation.n) == (head, offset, n)
        assert float(relation.accuracy.scores[0].max()) == pytest.approx(accuracy, abs=0.0006)
        assert relation.offset_accuracy == pytest.approx(by_offset, abs=0.0006)
    names = measured(
        "minilm", [SHARED / "gap" / "gap-development.tsv"], limit=60, syntax=False, device="cpu"
    ).coreference
    assert names is not None
    assert names.n == 50
    assert float(names.accuracy.scores[0, 3, 1]) == pytest.approx(0.82, abs=0.0006)
    assert float(names.accuracy.scores[0].mean()) == pytest.approx(0.4933, abs=0.0006)
    assert float(names.accuracy.baselines["nearer name"][0, 3, 1]) == pytest.approx(0.52, abs=0.0006)


@pytest.mark.thorough
@needs_fork
def test_two_processes_give_the_numbers_of_one(
    bert_folder: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """In the environment that torchrun makes."""
    options = ["profile", *map(str, all_of(folder)), "--repeats", "--model", str(bert_folder), "--json"]
    options += ["--figures", "none", "--batch-size", "8", "--limit", "20"]
    monkeypatch.setattr(sys, "argv", ["attnviz", *options, "-o", str(tmp_path / "two")])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        together = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    processes = []
    for rank in "01":
        for name, value in {**together, "RANK": rank, "LOCAL_RANK": rank}.items():
            monkeypatch.setenv(name, value)
        with (tmp_path / f"stdout-{rank}").open("w") as stdout, (tmp_path / f"stderr-{rank}").open("w") as stderr:
            processes.append(forked(main, stdout.fileno(), stderr.fileno()))
    for rank, process in enumerate(processes):
        process.join(240)
        assert process.exitcode == 0, (tmp_path / f"stderr-{rank}").read_text()
    for name in (*together, "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name)
    one = CliRunner().invoke(app, [*options, "-o", str(tmp_path / "one")])
    assert one.exit_code == 0, one.stderr
    assert (tmp_path / "stdout-1").read_text() == ""
    documents = [json.loads(one.stdout), json.loads((tmp_path / "stdout-0").read_text())]
    for part in ("corpora", "statistics", "syntax", "coreference", "repeats", "roles"):
        close(documents[1][part], documents[0][part])
    assert documents[1]["verification"]["heads_compared"] == documents[0]["verification"]["heads_compared"] == 12
    assert {path.name for path in (tmp_path / "two").glob("[!.]*")} == {"profile.csv", "profile.json"}


def test_processes_on_gpus_take_one_each(monkeypatch: pytest.MonkeyPatch, bert_folder: Path):
    places: list[str] = []
    monkeypatch.setattr(corpus, "resolve_device", lambda _: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(corpus, "open_checkpoint", lambda _, device: (places.append(device), None))
    for rank in range(3):
        process = Process(rank, 3, rank)
        corpus.open_for(process, bert_folder, {})
    assert places == ["cuda:0", "cuda:1", "cuda:0"]
    with pytest.raises(UsageError):  # which gives all devices to one process
        corpus.open_for(Process(0, 2, 0), bert_folder, {"device_map": "auto"})
