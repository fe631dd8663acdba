"""``attnviz compare --corpus`` and ``attnviz.compare_corpus``: heads of two models over many texts."""

import copy
import json
import math
import signal
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

import attnviz
from attnviz.cli.program import app
from attnviz.commands.compare.corpus import measure
from attnviz.commands.compare.differences import LARGEST_DISTANCE
from attnviz.measures.bootstrap import text_weights
from attnviz.measures.intervals import SAMPLES
from attnviz.models.checkpoint import from_loaded
from attnviz.models.head_ids import HeadId
from attnviz.texts.batches import SampledAttention
from attnviz.texts.long_runs import Process
from tests.support.corpora import examples, sentences, treebank
from tests.support.encoder_decoders import SOURCE, sharp, unigram_tokenizer
from tests.support.long_runs import close, gathered_here, interrupting
from tests.support.models import (
    LOOKS_AT,
    bert_tokenizer,
    gpt2_tokenizer,
    hand_built_bert,
    hand_built_gpt2,
    save_checkpoint,
    sharp_bert,
    sharp_gpt2,
)
from tests.support.tolerances import SHARP_32, SUMS_32

N_TEXTS = 32


def with_other_head(model: Any) -> Any:
    """The model with the queries of L1H2 negated."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.encoder.layer[1].attention.self.query.weight[16:24] *= -1
    return other


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return sentences(tmp_path_factory.mktemp("corpus") / "texts.txt", N_TEXTS)


@pytest.fixture(scope="module")
def bert():
    return from_loaded(sharp_bert(), bert_tokenizer())


@pytest.fixture(scope="module")
def tuned():
    return from_loaded(with_other_head(sharp_bert()), bert_tokenizer())


@pytest.fixture(scope="module")
def result(bert, tuned, corpus):
    return attnviz.compare_corpus(bert, tuned, corpus, syntax=False)


def test_the_head_that_was_changed_comes_first_and_alone_in_its_layer(result):
    assert result.heads[0].id == HeadId(1, 2)
    assert all(head.distance == 0 for head in result.heads if head.id.layer < 2 and head.id != HeadId(1, 2))
    assert all(head.distance > 0 for head in result.select("L2"))  # they read what layer 1 gives
    assert [head.interval for head in result.select("L0")] == [None] * 4


@pytest.mark.draws
def test_the_distance_is_the_mean_of_those_of_the_texts_and_its_interval_a_plain_bootstrap(bert, tuned, corpus, result):
    moved, of_texts = ["L1H2", *(f"L2H{head}" for head in range(4))], []  # the others are as they were
    for line in corpus.read_text(encoding="utf-8").splitlines():
        compared = attnviz.compare(*(attnviz.analyze(line, model, syntax=False) for model in (bert, tuned)))
        of_texts.append([compared.head(each).distance for each in moved])
    distances, head = np.array(of_texts), result.head("L1H2")
    means, error = distances.mean(0), distances.std(0, ddof=1) / N_TEXTS**0.5
    assert head.distance == pytest.approx(means[0], rel=SUMS_32)
    largest = []
    for weights in text_weights(0, range(N_TEXTS), SAMPLES)[1:].int():
        drawn = np.repeat(distances, weights, axis=0)
        t = (drawn.mean(0) - means) / (drawn.std(0, ddof=1) / len(drawn) ** 0.5)
        largest.append(np.abs(t).max())
    half = sorted(largest)[-50] * error[0]
    assert head.interval == pytest.approx((means[0] - half, means[0] + half), rel=1e-4)


def test_heads_that_share_no_key_reach_the_largest_distance(tmp_path):
    corpus = sentences(tmp_path / "texts.txt", 5)
    to_first, to_second = ([[lambda _, key=key: [key]] * 2] for key in (0, 1))
    a, b = (from_loaded(hand_built_bert(layers), bert_tokenizer()) for layers in (to_first, to_second))
    apart = attnviz.compare_corpus(a, b, corpus, syntax=False)
    assert apart.largest == pytest.approx(LARGEST_DISTANCE)
    assert apart.heads[0].distance == pytest.approx(apart.largest, rel=1e-3)
    to_itself, back = [[lambda query: [query]] * 2], [[lambda query: [query - 1]] * 2]
    a, b = (from_loaded(hand_built_gpt2(layers, 64), gpt2_tokenizer()) for layers in (to_itself, back))
    apart = attnviz.compare_corpus(a, b, corpus, syntax=False)
    n = [len(gpt2_tokenizer()(line)["input_ids"]) for line in corpus.read_text(encoding="utf-8").splitlines()]
    possible = np.mean([math.sqrt(math.log(2) * (each - 1) / each) for each in n])
    assert apart.largest == pytest.approx(possible)  # the first token sees itself alone
    assert apart.heads[0].distance == pytest.approx(possible, rel=1e-3)


def test_roles_that_changed_are_told(tmp_path):
    corpus = sentences(tmp_path / "texts.txt", 110)
    names = ("previous-token", "next-token"), ("next-token", "next-token")
    layers = [[[LOOKS_AT[name] for name in of_model]] for of_model in names]
    a, b = (from_loaded(hand_built_bert(each), bert_tokenizer()) for each in layers)
    turned = attnviz.compare_corpus(a, b, corpus, syntax=False)
    head, same = turned.head("L0H0"), turned.head("L0H1")
    assert (head.before.role, head.after.role) == names[0]
    assert (head.role_changed, same.role_changed) == (True, False)
    assert turned.document()["heads"][0]["role_before"]["name"] == "previous-token"


def test_of_encoder_decoders_the_encoders_are_compared(tmp_path):
    corpus = tmp_path / "texts.txt"
    corpus.write_text(f"{SOURCE}\na dog ran away\n" * 4, encoding="utf-8")
    models = [from_loaded(sharp("t5", seed=seed), unigram_tokenizer()) for seed in (0, 1)]
    found = attnviz.compare_corpus(*models, corpus, syntax=False)
    assert {str(head.id) for head in found.heads} == {f"E{layer}H{head}" for layer in range(2) for head in range(4)}
    assert found.document()["heads"][0]["stack"] == "encoder"


def test_a_treebank_needs_no_parser_and_few_texts_decide_nothing(bert, tuned, trees, whole):
    assert (whole.texts, whole.left_out, whole.parser) == (40, 2, None)
    few = attnviz.compare_corpus(bert, tuned, trees, limit=30)
    assert ({head.interval for head in few.heads}, few.judged) == ({None}, False)


def test_models_and_files_that_cannot_be_compared_are_refused(bert, corpus, tmp_path):
    tokenizer = bert_tokenizer()
    tokenizer.backend_tokenizer.normalizer = None  # reads a capital letter as another token
    cased, gpt2 = from_loaded(sharp_bert(), tokenizer), from_loaded(sharp_gpt2(), gpt2_tokenizer())
    capital = tmp_path / "capital.txt"
    capital.write_text("the cat\nThe cat\n", encoding="utf-8")
    for other, read, error, word in (
        (gpt2, corpus, attnviz.UsageError, "head"),
        (cased, capital, attnviz.TextError, "capital.txt:2: "),
        (bert, examples(tmp_path / "gap.tsv", 3), attnviz.CorpusError, "gap"),
        (bert, None, attnviz.UsageError, "corpus"),
        (bert, np.ones(3), attnviz.UsageError, "corpus"),
    ):
        with pytest.raises(error, match=word):
            attnviz.compare_corpus(bert, other, read, syntax=False)


def numbers(found: attnviz.CorpusComparison) -> dict[str, Any]:
    """Of all heads, by id, and of the run; without what was verified, which is a sample of the batches."""
    document = found.document()
    heads = {head["id"]: {**head, "rank": None} for head in document["heads"]}
    return {"corpora": document["corpora"], "largest_possible": document["largest_possible"], "heads": heads}


@pytest.fixture(scope="module")
def trees(tmp_path_factory):
    """A treebank with a sentence that is too long for the models, and one that is too short to count."""
    path = treebank(tmp_path_factory.mktemp("trees") / "trees.conllu", 40)
    long = "".join(f"{n}\tcat\t_\t_\t_\t_\t{n - 1}\tdep\t_\t_\n" for n in range(1, 46))
    path.write_text(f"{long}\n1\ta\t_\t_\t_\t_\t0\troot\t_\t_\n\n{path.read_text(encoding='utf-8')}", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def whole(bert, tuned, trees):
    return attnviz.compare_corpus(bert, tuned, trees, batch_size=8)


@pytest.mark.draws
@pytest.mark.usefixtures("saved_at_once")
def test_an_interrupted_run_goes_on_to_the_same_numbers(bert, tuned, trees, whole, tmp_path, monkeypatch):
    verified: list[int] = []
    options: dict[str, Any] = {"batch_size": 8, "unfinished": tmp_path / "u", "warn": lambda _: None}
    for after in (1, 3):
        with pytest.raises(KeyboardInterrupt):
            attnviz.compare_corpus(bert, tuned, trees, **options, progress=interrupting(after, signal.SIGINT))
    read = SampledAttention.run

    def counted(run, batch, visit):
        verified.append(len(batch.items))
        return read(run, batch, visit)

    monkeypatch.setattr(SampledAttention, "run", counted)
    found = attnviz.compare_corpus(bert, tuned, trees, **options)
    assert sum(verified) == 2 * 8  # of two models: what is left of 40 texts after 1 and 3 batches
    close(numbers(found), numbers(whole), SHARP_32)
    assert found.texts_verified == 24  # the first batch of each of three runs
    with pytest.raises(attnviz.OutputError, match="seed"):
        attnviz.compare_corpus(bert, tuned, trees, seed=1, unfinished=tmp_path / "u")


def test_processes_change_nothing(bert, tuned, trees, whole, monkeypatch):
    states = gathered_here(monkeypatch)
    monkeypatch.setattr(measure, "joined_processes", lambda _: nullcontext())
    for rank in (2, 1, 0):
        monkeypatch.setattr(measure, "this_process", lambda rank=rank: Process(rank, 3))
        found = attnviz.compare_corpus(bert, tuned, trees, batch_size=4)
        assert (found is None) == (rank > 0)
    assert [sum(len(each["numbers"]) for each in state["measured"]) for state in states] == [14, 14, 14]
    close(numbers(found), numbers(whole), SHARP_32)


@pytest.fixture
def run(tmp_path, monkeypatch, corpus, bert_folder):
    monkeypatch.chdir(tmp_path)
    save_checkpoint(with_other_head(sharp_bert()), bert_tokenizer(), tmp_path.parent / "fine-tuned")

    def invoke(*options: str, models: int = 2) -> Result:
        folders = [word for folder in (bert_folder, "../fine-tuned")[:models] for word in ("-m", str(folder))]
        return CliRunner().invoke(app, ["compare", *folders, "--corpus", str(corpus), "--no-syntax", *options])

    return invoke


@pytest.mark.draws
@pytest.mark.usefixtures("saved_at_once", "undrawn")
def test_the_command_goes_on_where_it_was_interrupted(run, monkeypatch, result):
    read, stop = SampledAttention.run, interrupting(3, signal.SIGINT)
    with monkeypatch.context() as patched:  # in the second batch of the first model
        patched.setattr(SampledAttention, "run", lambda *of: (stop(), read(*of)))
        assert run("--batch-size", "8").exit_code == 130
    (unfinished,) = Path("attnviz-out").glob("compare-tiny-bert-fine-tuned/*.unfinished")
    assert run("--batch-size", "8").exit_code == 0
    assert not unfinished.exists()
    (file,) = Path("attnviz-out").glob("compare-tiny-bert-fine-tuned/texts-*/compare-corpus.json")
    content = json.loads(file.read_text(encoding="utf-8"))
    assert content["corpora"][0]["texts"] == N_TEXTS
    assert content["heads"][0]["interval"] == pytest.approx(result.heads[0].interval, rel=1e-4)


@pytest.mark.parametrize(
    ("options", "models", "word"),
    [(["a text"], 2, "both"), ([], 1, "two"), (["--words"], 2, "--words"), (["--figures", "page"], 2, "'page'")],
)
def test_wrong_usage_is_one_line(run, options, models, word):
    done = run(*options, models=models)
    assert done.exit_code == 2
    assert word in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(Path.cwd().iterdir())
