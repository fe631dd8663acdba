"""Examples of what heads do: the right ones, from any batches, processes and runs, with weights that are true."""

import json
import signal
from dataclasses import replace

import pytest

import attnviz
from attnviz.commands.profile.corpus_run import CorpusRun
from attnviz.commands.profile.examples import TopExamples, find_examples
from attnviz.commands.profile.measure import profile_heads
from attnviz.inputs.reading import open_corpus
from attnviz.models.checkpoint import from_loaded
from attnviz.profiles.examples import (
    GROUPS,
    Example,
    Unit,
    examples_entry,
    joined_entries,
    parts_of_text,
    stored_examples,
)
from attnviz.run.processes import Process
from tests.support import corpora
from tests.support.long_runs import gathered_here, interrupting, quiet_loop
from tests.support.models import bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2

pytest.importorskip("conllu", reason="needs the extra profile")


@pytest.fixture(scope="module", params=["bert", pytest.param("gpt2", marks=pytest.mark.thorough)])
def model(request):
    if request.param == "bert":
        return from_loaded(sharp_bert(), bert_tokenizer())
    return from_loaded(sharp_gpt2(), gpt2_tokenizer())


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpora")
    return [corpora.treebank(folder / "trees.conllu", 24), corpora.examples(folder / "gap.tsv", 15)]


@pytest.fixture(scope="module")
def every(model, paths):
    """Measures the examples of all roles of all heads, passed or not; None in all processes but the first."""
    found = profile_heads(model, paths, control=False, examples=0)
    assert found.document()["examples"] is None
    roles = [replace(role, holds=True) for role in found.roles]

    def measure(process=None, batch_size=16, unfinished=None, progress=lambda *_: None):
        options = {"process": process or Process(), "unfinished": unfinished, "progress": progress}
        loop = quiet_loop(model, map(open_corpus, paths), batch_size=batch_size, **options)
        run = CorpusRun(loop)
        return find_examples(run, roles, 3) if run.measure() else None

    return measure


@pytest.fixture(scope="module")
def whole(every):
    return every()


def test_there_are_examples_of_every_kind_of_role(whole):
    roles = {each.role for each in whole if each.best and each.failures}
    relations = {f"syntactic:{name}" for name in ("det", "nsubj", "obj", "acl", "acl:relcl")}
    assert roles >= {*relations, "coreference", "previous-token", "local", "sink", "semantic"}
    directions = {each.direction for each in whole if each.role == "syntactic:det"}
    assert directions <= {"dependent_to_head", "head_to_dependent"}


def weight(analysis, id, query, key):
    """From the pattern of one sentence: mean over the tokens of the query, sum over those of the key."""
    spans = analysis.tokens.offsets

    def places(unit):
        if unit.start == unit.end:
            return [0 if unit.end == 0 else len(spans) - 1]
        found = [at for at, (start, end) in enumerate(spans) if start < unit.end and end > unit.start]
        sinks = analysis.context.units.sink
        return [at for at in found if not sinks[at]] or found

    return float(analysis.pattern(str(id))[places(query)][:, places(key)].sum(1).mean())


@pytest.mark.draws
def test_every_weight_is_that_of_the_head_on_the_sentence(model, whole):
    analyses = {}
    for of_role in {(each.role, each.direction): each for each in whole}.values():
        for example in (each for group in GROUPS for each in getattr(of_role, group)[:1]):
            if example.text not in analyses:
                analyses[example.text] = attnviz.analyze(example.text, model, syntax=False)
            analysis = analyses[example.text]
            assert weight(analysis, of_role.id, example.query, example.key) == pytest.approx(example.weight, abs=1e-4)
            if example.gold is not None:
                found = weight(analysis, of_role.id, *example.gold)
                assert found == pytest.approx(example.gold_weight, abs=1e-4)
    assert len(analyses) > 10


def test_hits_are_hits_failures_failures_and_groups_in_order(whole):
    for of_role in whole:
        best, failures = ([each.weight for each in some] for some in (of_role.best, of_role.failures))
        texts = {example.number for example in of_role.best}
        assert len(texts) == len(best) <= 3
        assert all(example.hit for example in of_role.best)
        assert not any(example.hit for example in of_role.failures)
        assert all(weight >= 0.01 for weight in failures)
        assert best == sorted(best, reverse=of_role.role != "broad")
        assert failures == sorted(failures, reverse=True)
        for example in (*of_role.best, *of_role.failures):
            if example.gold is not None and example.gold_weight < example.weight:
                assert not example.hit
            if example.gold is not None and example.hit:
                assert example.gold == (example.query, example.key)


def same(found, expected):
    """The same examples; a weight may be rounded to the decimal beside it."""

    def apart(of_roles):
        weights, others = [], []
        for of_role in of_roles:
            for group in GROUPS:
                for each in getattr(of_role, group):
                    weights += [each.weight, each.gold_weight or 0]
                    others.append((of_role.id, of_role.role, group, replace(each, weight=0, gold_weight=0)))
        return weights, others

    (weights, others), (expected_weights, expected_others) = apart(found), apart(expected)
    assert others == expected_others
    assert weights == pytest.approx(expected_weights, abs=1.01e-4)


@pytest.mark.draws
def test_the_size_of_the_batches_changes_nothing(every, whole):
    same(every(batch_size=3), whole)


@pytest.mark.draws
def test_processes_change_nothing(every, whole, monkeypatch):
    gathered_here(monkeypatch)
    *others, found = (every(Process(rank, 3), batch_size=4) for rank in (2, 1, 0))
    assert others == [None, None]
    same(found, whole)


@pytest.mark.draws
def test_going_on_changes_nothing(every, whole, tmp_path, saved_at_once):
    kept = tmp_path / "profile.unfinished"
    with pytest.raises(KeyboardInterrupt):
        every(batch_size=4, unfinished=kept, progress=interrupting(4, signal.SIGINT))
    assert kept.exists()
    same(every(batch_size=4, unfinished=kept), whole)


def test_examples_are_from_a_sample_of_each_corpus_that_the_seed_decides(model, paths, monkeypatch):
    monkeypatch.setattr("attnviz.commands.profile.examples.SAMPLED_TEXTS", 5)

    def texts(seed):
        examples = profile_heads(model, paths, control=False, seed=seed).examples
        return {(e.corpus, e.number) for of_role in examples for some in of_role.groups.values() for e in some}

    drawn = texts(0)
    assert 5 <= len(drawn) <= 10
    assert texts(0) == drawn != texts(1)


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0]])
def test_of_equal_scores_the_earlier_text_is_kept_whatever_comes_first(order):
    top, offers, unit = TopExamples(2), [(9, 7), (9, 3), (4, 5), (9, 1)], Unit("a", 0, 1)
    for score, text in (offers[at] for at in order):
        top.offer(score, (0, text, 0), Example("a.txt", text, f"a {text}", unit, unit, score / 9, True, None, None))
    assert [each.number for each in top.different(2)] == [1, 3]


def test_a_document_gives_the_examples_back_and_names_each_text_once(whole):
    content = json.loads(json.dumps(examples_entry(whole)))
    assert stored_examples(content) == whole
    named = [(text["corpus"], text["number"]) for text in content["texts"]]
    assert len(named) == len(set(named))
    assert stored_examples(None) == ()


def test_examples_of_two_documents_are_joined_with_the_licences_of_their_texts(whole):
    names = [each for each in whole if each.role == "coreference"], [each for each in whole if "det" in each.role]
    one, two = ({"examples": examples_entry(some)} for some in names)
    one["examples"]["licences"] = {"gap.tsv": "A", "other.txt": "B"}
    joined = joined_entries([(one, {"coreference"}), (two, {"syntactic:det"})])
    assert stored_examples(joined) == (*names[0], *names[1])
    assert joined["licences"] == {"gap.tsv": "A"}


@pytest.mark.draws
def test_a_profile_has_the_examples_of_what_passes_and_of_the_best_relation(model, paths):
    found = profile_heads(model, paths, control=False, examples=2)
    passed = {(role.id, role.role) for role in found.roles if role.holds}
    named = {(each.id, each.role) for each in found.examples}
    judged = [role for role in found.roles if role.role.startswith("syntactic:")]
    best = {max((role for role in judged if role.id == id), key=lambda role: role.margin).id for id, _ in named}
    assert {role for role in named if role[1] in ("sink", "previous-token")} <= passed
    assert {id for id, role in named if role.startswith("syntactic:")} == {role.id for role in judged} == best
    assert max(len(each.best) for each in found.examples) == 2
    assert found.document()["examples"]["roles"]


def test_a_long_text_is_cut_around_its_pair(whole):
    example = next(each for of_role in whole for each in of_role.failures if each.gold and len(each.text.split()) > 9)
    parts, cut = parts_of_text(example), parts_of_text(example, 6)
    assert {end for part in parts for end in part.ends} == {"query", "key", "gold"}
    assert [part for part in cut if part.ends] == [part for part in parts if part.ends]
    assert "…" in [part.text for part in cut]


def test_a_long_text_is_cut_between_words_though_a_pair_is_of_parts_of_them():
    text = "they offer many good hotdogs and some small hamburgers to eat here"
    s, other = Unit("s", text.index("hamburgers") + 9, text.index("hamburgers") + 10), text.index("hotdogs") + 6
    example = Example("a.txt", 0, text, s, Unit("s", other, other + 1), 0.5, False, (s, Unit("they", 0, 4)), 0.1)
    shown = "".join(f"{'' if part.joined else ' '}{part.text}" for part in parts_of_text(example, 4))
    assert shown == " they … hotdogs … hamburgers …"
