"""Numbers by KV head, lists of heads for DuoAttention, and texts across the distribution, against plain loops."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attnviz
from attnviz.commands.claims import read_head_list
from attnviz.commands.profile.examples import DECILES
from attnviz.commands.profile.measure import Profile
from attnviz.commands.profile.views import page_data
from attnviz.errors import OutputError, UsageError
from attnviz.judge.rules import RETRIEVED
from attnviz.models.checkpoint import Checkpoint, from_loaded
from attnviz.models.head_ids import HeadId
from attnviz.present.kv_heads import kv_groups
from attnviz.present.view import ViewOptions
from tests.support import corpora
from tests.support.llamas import N_HEADS, N_LAYERS, sharp_llama
from tests.support.models import bert_tokenizer, gpt2_tokenizer, sharp_bert

N_KV_HEADS = 2
GROUPS = [(layer, kv, [2 * kv, 2 * kv + 1]) for layer in range(N_LAYERS) for kv in range(N_KV_HEADS)]
"""By layer and KV head the heads that read it: neighbours, as in transformers' repeat_kv."""


@pytest.fixture(scope="module")
def model() -> Checkpoint:
    return from_loaded(sharp_llama(max_position_embeddings=128), gpt2_tokenizer())


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpora.sentences(tmp_path_factory.mktemp("kv") / "lines.txt", 30)


def profiled(model: Any, *paths: Path, **options: Any) -> Profile:
    settings = {"control": False, "examples": 0, "syntax": False, **options}
    found = attnviz.profile_heads(model, paths, **settings)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def duo(model: Checkpoint, lines: Path) -> Profile:
    return profiled(model, lines, repeats=True, export="duo-attention")


@pytest.fixture(scope="module")
def headvis(model: Checkpoint, lines: Path) -> Profile:
    return profiled(model, lines, export="headvis", batch_size=7)


@pytest.mark.parametrize(("family", "n_kv_heads"), [("llama", 2), ("llama", 1), ("llama", 4), ("gpt_neox", 4)])
def test_heads_share_keys_as_the_model_repeats_them(family: str, n_kv_heads: int):
    changes = {} if family == "gpt_neox" else {"num_key_value_heads": n_kv_heads}
    groups = kv_groups(from_loaded(sharp_llama(family, **changes), gpt2_tokenizer()))
    repeated = torch.arange(n_kv_heads).repeat_interleave(N_HEADS // n_kv_heads).tolist()
    for layer in range(N_LAYERS):
        for kv in range(n_kv_heads):
            assert groups[layer, kv] == [HeadId(layer, head) for head, of in enumerate(repeated) if of == kv]


def test_statistics_by_kv_head_are_means_over_the_heads_of_a_group(duo: Profile, model: Checkpoint, tmp_path: Path):
    document = duo.save(tmp_path / "profile", figures=["none"], by="kv-head")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "profile/profile-kv-heads.csv").read_text())))
    assert [(int(row["layer"]), int(row["kv_head"])) for row in rows] == [group[:2] for group in GROUPS]
    scores = {(role.id, role.role): role.score for role in duo.roles}
    for row, entry, (layer, _, heads) in zip(rows, document["kv_heads"], GROUPS, strict=True):
        for name in ("entropy", "sink", "previous"):
            mean = sum(document["statistics"][name][layer][head] for head in heads) / len(heads)
            assert float(row[name]) == entry[name] == pytest.approx(mean, abs=1e-5)
        mean = sum(scores[HeadId(layer, head), "induction"] for head in heads) / len(heads)
        assert entry["role induction"] == pytest.approx(mean, abs=1e-5)
    analysis = attnviz.analyze("the cat saw a dog and ran away", model)
    found = analysis.save(tmp_path / "heads", figures=["none"], by="kv-head")["kv_heads"]
    for entry, (layer, _, heads) in zip(found, GROUPS, strict=True):
        mean = sum(analysis.head(HeadId(layer, head)).statistics["entropy"] for head in heads) / len(heads)
        assert entry["entropy"] == pytest.approx(mean, abs=1e-9)
    assert "KV heads" in analysis.report(by="kv-head")
    assert "KV heads" not in analysis.report()


def test_rows_of_heads_name_their_kv_head_where_heads_share_keys(duo: Profile, model: Checkpoint):
    for result in (duo, attnviz.analyze("the cat saw a dog", model)):
        _, rows = result.table(ViewOptions()).csv_rows()
        assert all(row["kv_head"] == HeadId.parse(row["id"]).head // 2 for row in rows)
    alone = attnviz.analyze("the cat saw a dog", from_loaded(sharp_bert(), bert_tokenizer()))
    assert "kv_head" not in alone.table(ViewOptions()).csv_rows()[0]


def test_a_list_for_duo_attention_has_the_largest_retrieval_and_the_least_sink_of_each_group(
    duo: Profile, tmp_path: Path
):
    document = duo.save(tmp_path / "out", figures=["none"])
    folder = tmp_path / "out" / "duo-attention"
    assert {"duo-attention/config.json", "duo-attention/full_attention_heads.tsv"} <= set(document["files"])
    listed = np.loadtxt(folder / "full_attention_heads.tsv", dtype=float, delimiter="\t")  # as DuoAttention does
    streaming = np.loadtxt(folder / "streaming_heads.tsv", dtype=float, delimiter="\t")
    config = json.loads((folder / "config.json").read_text())
    retrieval, sink = document["repeats"]["retrieval"], document["statistics"]["sink"]
    roles = {role.id: role for role in duo.roles if role.role == "retrieval"}
    assert listed.shape == streaming.shape == (N_LAYERS, N_KV_HEADS)
    for layer, kv, heads in GROUPS:
        assert listed[layer, kv] == pytest.approx(max(retrieval[layer][head] for head in heads), abs=1e-6)
        assert streaming[layer, kv] == pytest.approx(min(sink[layer][head] for head in heads), abs=1e-6)
        ends = [roles[HeadId(layer, head)].interval for head in heads]
        assert config["interval"][layer][kv] == [max(end[0] for end in ends), max(end[1] for end in ends)]
    assert (config["sink_size"], config["recent_size"]) == (128, 256)
    assert (config["weights_sha256"], config["revision"]) == (duo.weights_sha256, duo.checkpoint.revision)


def test_a_users_file_among_the_exported_ones_stays_and_none_is_replaced(duo: Profile, tmp_path: Path):
    duo.save(tmp_path / "out", figures=["none"])
    own = tmp_path / "out" / "duo-attention" / "own.txt"
    own.write_text("mine")
    duo.save(tmp_path / "out", figures=["none"])
    assert own.read_text() == "mine"
    foreign = tmp_path / "foreign" / "duo-attention"
    foreign.mkdir(parents=True)
    (foreign / "full_attention_heads.tsv").write_text("1\t0\n")
    with pytest.raises(OutputError):
        duo.save(tmp_path / "foreign", figures=["none"])
    assert (foreign / "full_attention_heads.tsv").read_text() == "1\t0\n"


@pytest.fixture
def exported(duo: Profile, tmp_path: Path) -> Path:
    duo.save(tmp_path / "out", figures=["none"])
    return tmp_path / "out" / "duo-attention"


def test_an_exported_list_holds_and_a_changed_entry_fails_alone(exported: Path, model: Checkpoint):
    found = attnviz.check(exported, model)
    assert [claim.verdict for claim in found.claims] == ["holds"] * len(GROUPS)
    file = exported / "full_attention_heads.tsv"
    rows = [line.split("\t") for line in file.read_text().splitlines()]
    rows[1][0] = "0.9"
    file.write_text("".join("\t".join(row) + "\n" for row in rows))
    found = attnviz.check(file, model)
    assert [claim.verdict for claim in found.claims] == ["holds", "holds", "fails", "holds"]
    wrong = found.claims[2]
    assert (wrong.claim.line, wrong.claim.at_least, found.exit_code) == (2, RETRIEVED, 1)
    (exported / "config.json").unlink()  # a list of DuoAttention's own says no hash, and 0.5 is its threshold
    assert [claim.verdict for claim in attnviz.check(file, model).claims] == ["holds", "holds", "fails", "holds"]


@pytest.mark.thorough
def test_heads_of_tiny_gpt2_that_retrieve_are_listed_and_hold(tmp_path: Path):
    profiled("tiny-gpt2", repeats=True, export="duo-attention").save(tmp_path / "out", figures=["none"])
    found = attnviz.check(tmp_path / "out" / "duo-attention")
    assert {claim.claim.at_least for claim in found.claims} == {None, RETRIEVED}
    assert found.count("fails") == 0


SPOILT: dict[str, Any] = {
    "no number": lambda folder: (folder / "full_attention_heads.tsv").write_text("0.1\tnan\n0.2\t0.3\n"),
    "a word": lambda folder: (folder / "full_attention_heads.tsv").write_text("0.1\thigh\n0.2\t0.3\n"),
    "empty": lambda folder: (folder / "full_attention_heads.tsv").write_text(""),
    "no file": lambda folder: (folder / "full_attention_heads.tsv").unlink(),
    "a layer more": lambda folder: (folder / "full_attention_heads.tsv").write_text("0.1\t0.1\n" * 3),
    "one for every head": lambda folder: (folder / "full_attention_heads.tsv").write_text("0.1\t0.1\t0\t0\n" * 2),
    "ragged": lambda folder: (folder / "full_attention_heads.tsv").write_text("0.1\t0.1\t0\n0.1\n"),
    "other weights": lambda folder: (folder / "config.json").write_text('{"weights_sha256": "00"}'),
    "no settings": lambda folder: (folder / "config.json").write_text("[]"),
    "a threshold in words": lambda folder: (folder / "config.json").write_text('{"threshold": "half"}'),
}


@pytest.mark.parametrize("spoil", SPOILT)
def test_a_list_that_is_damaged_or_of_another_model_is_refused_in_a_line(spoil: str, exported: Path, model: Checkpoint):
    SPOILT[spoil](exported)
    with pytest.raises(UsageError) as refused:
        attnviz.check(exported, model)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("export", "repeats", "with_text"), [("duo-attention", False, True), ("headvis", True, False), ("csv", True, True)]
)
def test_what_cannot_be_exported_is_refused_before_it_is_measured(
    export: str, repeats: bool, with_text: bool, model: Checkpoint, lines: Path
):
    with pytest.raises(UsageError):
        profiled(model, *[lines] * with_text, repeats=repeats, export=export)


def test_an_encoder_and_layers_that_do_not_attend_or_differ_in_kv_heads_have_no_list(lines: Path):
    decoders = [from_loaded(sharp_llama(family), gpt2_tokenizer()) for family in ("jamba", "gemma4_text")]
    for other in (from_loaded(sharp_bert(), bert_tokenizer()), *decoders):
        with pytest.raises(UsageError):
            profiled(other, lines, repeats=True, export="duo-attention")
    assert read_head_list(lines) is None


def patterns_of(text: str, model: Checkpoint) -> dict[HeadId, np.ndarray]:
    analysis = attnviz.analyze(text, model)
    return {head.id: pattern.double().numpy() for head, pattern in analysis.patterns()}


def largest_beyond(pattern: np.ndarray) -> float:
    """Beyond the diagonal, and the first row and column."""
    n = len(pattern)
    return max([pattern[q, k] for q in range(1, n) for k in range(1, n) if q != k], default=0.0)


def test_head_vis_gets_weights_and_deciles_in_its_form(headvis: Profile, model: Checkpoint, tmp_path: Path):
    headvis.save(tmp_path / "out", figures=["none"])
    folder = tmp_path / "out" / "headvis"
    config, rows = (json.loads((folder / name).read_text()) for name in ("config.json", "scatter_data.json"))
    assert config["heads"] == [[row["layer"], row["head"]] for row in rows]
    assert all({"layer", "head", *config["metrics"]} == {*row} for row in rows)
    assert set(config["metrics"]) == set(config["metric_descriptions"])
    texts = {text.item.source.text: patterns_of(text.item.source.text, model) for text in headvis.texts}
    by_number = [texts[text.item.source.text] for text in headvis.texts]
    for layer, head in config["heads"]:
        name = config["head_data_pattern"].format(layer=layer, head=head)
        sequences = json.loads((folder / "heads" / name).read_text())["sequences"]
        assert sorted(each["interval"] for each in sequences) == sorted([*range(1, DECILES + 1)] * 3)  # of 30 texts
        for each in sequences:
            pattern = by_number[each["sequence_id"]][HeadId(layer, head)]
            n = each["seq_len"]
            assert len(each["tokens"]) == n == len(pattern)
            shown = dict(zip(each["attention_indices"], each["attention_values"], strict=True))
            for q in range(n):
                clear = sorted((weight for weight in pattern[q] if weight >= 0.006), reverse=True)[:8]
                row = sorted((shown[q * n + k] for k in range(n) if q * n + k in shown), reverse=True)
                assert row[: len(clear)] == pytest.approx(clear, abs=1e-4)
            assert all(value == pytest.approx(pattern[divmod(at, n)], abs=1e-4) for at, value in shown.items())
            assert each["max_activation"] == pytest.approx(largest_beyond(pattern), abs=1e-4)
        ranked = sorted(sequences, key=lambda each: each["interval"])
        assert [each["max_activation"] for each in ranked] == sorted(each["max_activation"] for each in sequences)


def test_the_page_has_a_text_of_every_decile_of_each_head(headvis: Profile, model: Checkpoint):
    entries = page_data(headvis, ViewOptions())["examples"]
    assert [each["head"] for each in entries] == [str(HeadId(*divmod(at, N_HEADS))) for at in range(8)]
    all_patterns = [patterns_of(text.item.source.text, model) for text in headvis.texts]
    for each in entries:
        id = HeadId.parse(each["head"])
        ranked = sorted((largest_beyond(patterns[id]) for patterns in all_patterns), reverse=True)
        weights = [example["weight"] for example in each["examples"]]
        assert weights == pytest.approx(ranked[1::3], abs=1e-4)  # the middle one of three texts a decile
        ends = [{ends for _, ends in example["parts"]} for example in each["examples"] if example["weight"]]
        assert all({"query", "key"} <= of_text for of_text in ends)
