"""Attention between spans: by hand, by a plain loop over what transformers returns, and in blocks."""

import csv
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import attnviz
from attnviz.cli.program import app
from attnviz.errors import CorpusError, UsageError
from attnviz.inputs.prompt import Span
from attnviz.measures.measure import LayerRows, copy_to_host
from attnviz.measures.spans import SpanLayout, SpanTally
from tests.support.blocks import in_blocks
from tests.support.chats import CHATML, MESSAGES, chat_model, chat_tokenizer
from tests.support.llamas import sentencepiece_tokenizer, sharp_llama
from tests.support.models import bert_tokenizer, gpt2_tokenizer, save_checkpoint, sharp_bert, sharp_gpt2
from tests.support.tolerances import SUMS_32

TEXT = "the cat saw the dog and it ran away"


def tallied(pattern: torch.Tensor, layout: SpanLayout, size: int) -> SpanTally:
    tally = SpanTally(layout)
    for first in range(0, pattern.shape[1], size):
        tally.update(LayerRows(0, pattern[None, :, first : first + size], first))
    copy_to_host([tally])
    return tally


@pytest.mark.parametrize("size", [1, 2, 5])
def test_shares_and_lookback_of_a_pattern_made_by_hand(size: int) -> None:
    """Whatever the blocks of rows."""
    rows = [[1, 0, 0, 0, 0], [0.5, 0.5, 0, 0, 0], [0.2, 0.3, 0.5, 0, 0], [0.1, 0.2, 0.3, 0.4, 0], [0, 0.6, 0, 0.3, 0.1]]
    layout = SpanLayout((Span("read", (1, 2)), Span("answer", (3, 4))), 5, first_new=3)
    found = tallied(torch.tensor([rows]).double(), layout, size).means[0]
    assert found["shares"][0].flatten().tolist() == pytest.approx(
        [(0.5 + 0.8) / 2, 0, (0.5 + 0.6) / 2, (0.4 + 0.4) / 2]
    )
    assert found["last_shares"][0].flatten().tolist() == pytest.approx([0.8, 0, 0.6, 0.4])
    first = (0.6 / 3) / (0.6 / 3 + 0.4 / 1)
    second = (0.6 / 3) / (0.6 / 3 + 0.4 / 2)
    assert float(found["lookback"][0]) == pytest.approx((first + second) / 2)


def plain(model: Any, ids: tuple[int, ...]) -> np.ndarray:
    """The model's own attention, [n_layers, n_heads, n, n]."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        found = model(torch.tensor([ids]), output_attentions=True).attentions
    return torch.stack(found)[:, 0].double().numpy()


@pytest.mark.parametrize("model", ["chat", "bert"])
def test_shares_are_those_of_a_plain_loop(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sink counts in no span's content; uniform attention is over what a query sees, or its content."""
    in_blocks(monkeypatch, 7)
    if model == "chat":
        analysis = attnviz.analyze(chat=MESSAGES, model=chat_model(), tokenizer=chat_tokenizer(), syntax=False)
    else:
        spans = {"one": "#0-#3", "two": "#4-#6", "end": "last"}
        analysis = attnviz.analyze(TEXT, sharp_bert(), tokenizer=bert_tokenizer(), spans=spans, syntax=False)
    attention, found, sinks = (
        plain(analysis.checkpoint.model, analysis.tokens.ids),
        analysis.spans,
        analysis.tokens.sinks,
    )
    assert found is not None
    assert len(found.pairs) == (6 if model == "chat" else 9)
    n, causal = len(analysis.tokens), model == "chat"
    for head, (source, target) in itertools.product(analysis.heads, found.pairs):
        weights = attention[head.id.layer, head.id.head]
        rows, columns = (list(found.spans[each].tokens) for each in (source, target))
        share, content = found.between(head.id, source, target), [k for k in columns if k not in sinks]
        seen = {q: {k for k in range(n) if k <= q or not causal} for q in rows}
        even = {q: len(seen[q] & set(columns)) / len(seen[q]) for q in rows}
        even_content = {q: len(seen[q] & set(content)) / max(1, len(seen[q] - set(sinks))) for q in rows}
        for name, keys, of_row in (("", columns, even), ("content", content, even_content)):
            uniform, last = f"{name}_uniform".strip("_"), f"last_{name}".strip("_")
            wanted = {name or "share": weights[rows][:, keys].sum(1).mean(), uniform: np.mean(list(of_row.values()))}
            wanted |= {last: weights[rows[-1], keys].sum(), f"{last}_uniform": of_row[rows[-1]]}
            assert {each: getattr(share, each) for each in wanted} == pytest.approx(wanted, abs=SUMS_32)
        assert share.per_token == pytest.approx(share.share / len(columns))
        assert share.sink == pytest.approx(weights[rows][:, list(sinks)].sum(1).mean(), abs=SUMS_32)
        assert share.to_sinks == (not content)
        whole = (share.share, share.uniform)
        assert share.judged == (whole if share.to_sinks else (share.content, share.content_uniform))


@pytest.mark.parametrize(
    ("model", "text", "pair", "given", "expected"),
    [
        ("gpt2", TEXT, None, ["it=cat saw"], {"it": (1, 2), "rest": (0, 3, 4, 5, 6, 7, 8)}),
        ("bert", "the cat ran", "it saw", ["[CLS]", "end=[SEP]#2", "last", "others=rest"],
         {"text": (1, 2, 3), "pair": (5, 6), "[CLS]": (0,), "end": (7,), "last": (7,), "others": (4,)}),
        ("bert", "the [ cls ] [cls] cat", None, ["a=[CLS]"], {"a": (0,)}),  # not the text in another case
        ("gpt2", "last but last", None, ["a=last#1", "b=last"], {"a": (0, 1, 2, 3)}),
    ],
)  # fmt: skip
def test_special_tokens_the_last_one_the_rest_and_texts_are_spans(model, text, pair, given, expected) -> None:
    loaded, tokenizer = (sharp_gpt2(), gpt2_tokenizer()) if model == "gpt2" else (sharp_bert(), bert_tokenizer())
    analysis = attnviz.analyze(text, loaded, tokenizer=tokenizer, pair=pair, spans=given, syntax=False)
    assert analysis.spans is not None
    assert expected.items() <= {span.name: span.tokens for span in analysis.spans.spans}.items()
    assert analysis.spans.lookback(analysis.heads[0].id) is None


def test_the_lookback_ratio_is_that_of_the_paper() -> None:
    """As its code has it: means over context and over new tokens, of each query that is new."""
    model = chat_model()
    analysis = attnviz.analyze("the cat that", model, tokenizer=chat_tokenizer(), generate=4, syntax=False)
    assert analysis.continuation is not None
    assert analysis.spans is not None
    attention, first = plain(model, analysis.tokens.ids), analysis.continuation.first
    for head in analysis.heads:
        ratios = []
        for query in range(first, len(analysis.tokens)):
            row = attention[head.id.layer, head.id.head, query, : query + 1]
            context, new = row[:first].mean(), row[first:].mean()
            ratios.append(context / (context + new))
        assert analysis.spans.lookback(head.id) == pytest.approx(np.mean(ratios), abs=SUMS_32)
        assert analysis.spans.lookback_uniform(head.id) == pytest.approx(0.5)


def test_uniform_attention_is_over_what_a_window_leaves() -> None:
    model = sharp_llama("mistral", sliding_window=4)
    spans = {"begin": "#1-#3", "end": "#8-#10"}
    analysis = attnviz.analyze(TEXT, model, tokenizer=sentencepiece_tokenizer(), spans=spans, syntax=False)
    assert analysis.spans is not None
    ends = analysis.spans.between(analysis.heads[0].id, 1, 1)
    expected = [sum(8 <= k <= 10 for k in range(q - 3, q + 1)) / 4 for q in (8, 9, 10)]
    assert ends.uniform == pytest.approx(np.mean(expected))
    assert (1, 0) not in analysis.spans.pairs


def test_only_the_queries_that_are_measured_count() -> None:
    options: Any = {"tokenizer": gpt2_tokenizer(), "spans": {"begin": "the cat", "end": "away"}, "syntax": False}
    whole, last = (attnviz.analyze(TEXT, sharp_gpt2(), queries=queries, **options) for queries in (None, "last"))
    assert whole.spans is not None
    assert last.spans is not None
    assert (0, 0) not in last.spans.pairs
    of_last, of_all = (spans.between(whole.heads[3].id, 1, 0) for spans in (last.spans, whole.spans))
    assert (of_last.share, of_last.uniform) == pytest.approx((of_all.last, of_all.last_uniform), abs=SUMS_32)


@pytest.mark.parametrize(
    ("what", "labels"),
    [("cat saw", ["cat", "saw"]), ("the#2", ["the"]), ("CAT", ["cat"]), ("#3-#4", ["the", "dog"]), ("#0", ["the"])],
)
def test_a_span_is_named_as_a_token_is(what: str, labels: list[str]) -> None:
    analysis = attnviz.analyze(TEXT, sharp_gpt2(), tokenizer=gpt2_tokenizer(), spans=[f"it={what}"], syntax=False)
    assert analysis.spans is not None
    assert [analysis.tokens.labels[at] for at in analysis.spans.spans[0].tokens] == labels


@pytest.mark.parametrize(
    "spans",
    [
        "doc=cat", ["cat"], ["=cat"], ["doc="], ["doc=cat", "doc=dog"], ["doc=the"], ["doc=the#3"], ["doc=cat#9"],
        ["doc=house"], ["doc=#3-#99"], ["doc=#4-#3"], {"doc": 3}, ["new=cat"], ["a=[SEP]"], ["a=#0-#99", "b=rest"],
    ],
)  # fmt: skip
def test_what_names_no_span(spans: Any) -> None:
    with pytest.raises(UsageError):
        attnviz.analyze(TEXT, chat_model(), tokenizer=chat_tokenizer(), spans=spans, generate=2, syntax=False)


def test_the_command_writes_what_was_measured(tmp_path: Path) -> None:
    """The CSV file has the lists of heads.json."""
    folder = save_checkpoint(chat_model(), chat_tokenizer(), tmp_path / "model")
    (tmp_path / "chat.json").write_text(json.dumps(MESSAGES), encoding="utf-8")
    words = ["heads", "--chat", str(tmp_path / "chat.json"), "-m", str(folder), "-o", str(tmp_path / "out")]
    result = CliRunner().invoke(app, [*words, "--span", "it=ran", "--figures", "none", "--no-syntax"])
    assert result.exit_code == 0, result.output
    document = json.loads((tmp_path / "out" / "heads.json").read_text())
    assert [span["name"] for span in document["spans"]] == ["system", "user", "assistant", "it"]
    with (tmp_path / "out" / "heads-spans.csv").open() as file:
        rows = {(row["id"], row["from"], row["to"]): row for row in csv.DictReader(file)}
    assert len(rows) == len(document["heads"]) * len(document["span_pairs"])
    numbers = "share", "uniform", "per_token", "content", "content_uniform", "sink", "last", "last_content"
    for pair in document["span_pairs"]:
        for at, head in enumerate(document["heads"]):
            row = rows[head["id"], pair["from"], pair["to"]]
            assert all(float(row[name]) == pair[name][at] for name in numbers)
            assert 0 < head["lookback"] < 1


@pytest.mark.parametrize("words", [[], ["the cat", "--chat", "chat.json"], ["the cat", "--span", "cat"]])
def test_a_mistake_on_the_command_line_is_one_of_usage(words: list[str]) -> None:
    assert CliRunner().invoke(app, ["heads", *words, "-m", "tiny-gpt2", "--figures", "none"]).exit_code == 2


def test_a_profile_of_chats_is_the_mean_over_chats(tmp_path: Path) -> None:
    """All messages of a role are one span; a chat without a role does not count."""
    more = [*MESSAGES, {"role": "user", "content": "and the house ?"}, {"role": "assistant", "content": "away"}]
    chats = [MESSAGES, more, MESSAGES[1:], MESSAGES[:2]]
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, chats)), encoding="utf-8")
    folder = save_checkpoint(chat_model(), chat_tokenizer(), tmp_path / "model")
    options: Any = {"device": "cpu", "syntax": False}
    profile = attnviz.profile_heads(folder, [tmp_path / "chats.jsonl"], batch_size=3, control=False, **options)
    assert profile is not None
    found = {(each.measure, each.source, each.target): each for each in profile.chats}
    expected, uniform, ratios = list[np.ndarray](), list[float](), list[list[float]]()
    for chat in chats:
        analysis = attnviz.analyze(chat=chat, model=folder, **options)
        assert analysis.spans is not None
        of_role: dict[str, list[int]] = {}
        for span in analysis.spans.spans:
            of_role.setdefault(span.name.partition("#")[0], []).extend(span.tokens)
        weights = torch.stack([analysis.layer_patterns(layer) for layer in range(3)]).double().numpy()
        content = [at for at, is_sink in enumerate(analysis.tokens.sink) if not is_sink]
        if {"assistant", "system"} <= of_role.keys():
            rows, columns = of_role["assistant"], [key for key in of_role["system"] if key in content]
            expected.append(weights[:, :, rows][..., columns].sum(-1).mean(-1))
            uniform.append(np.mean([sum(k <= q for k in columns) / sum(k <= q for k in content) for q in rows]))
        lookbacks = [analysis.spans.lookback(head.id) for head in analysis.heads]
        ratios += [[each for each in lookbacks if each is not None]]
    shares, lookback = found["share", "assistant", "system"].scores, found["lookback", "", ""].scores
    assert shares.texts == len(expected) == 2
    np.testing.assert_allclose(shares.scores[0], np.mean(expected, 0), atol=SUMS_32)
    np.testing.assert_allclose(shares.baseline[0], np.mean(uniform))
    known = np.array([ratio for ratio in ratios if ratio])
    assert lookback.texts == len(known) == 3
    np.testing.assert_allclose(lookback.scores.flatten(), known.mean(0), atol=SUMS_32)
    assert ("share", "system", "assistant") not in found


@pytest.mark.parametrize("line", ["{}", '[{"role": "user", "content": "x"}]'])
def test_a_chat_of_a_corpus_that_cannot_be_read_is_named_by_its_line(line: str, tmp_path: Path) -> None:
    template = "{% if messages | length < 2 %}{{ raise_exception('must alternate') }}{% endif %}" + CHATML
    folder = save_checkpoint(chat_model(), chat_tokenizer(template), tmp_path / "model")
    (tmp_path / "chats.jsonl").write_text(f"{json.dumps(MESSAGES)}\n{line}\n", encoding="utf-8")
    with pytest.raises(CorpusError, match=r"chats\.jsonl:2"):
        attnviz.profile_heads(folder, [tmp_path / "chats.jsonl"], control=False, device="cpu")


def test_each_line_of_a_file_of_chats_is_analysed(tmp_path: Path) -> None:
    folder = save_checkpoint(chat_model(), chat_tokenizer(), tmp_path / "model")
    (tmp_path / "chats.jsonl").write_text(f"{json.dumps(MESSAGES)}\n{json.dumps(MESSAGES[:2])}\n", encoding="utf-8")
    words = ["heads", "--chat", str(tmp_path / "chats.jsonl"), "--each-line", "-m", str(folder), "--no-syntax"]
    result = CliRunner().invoke(app, [*words, "-o", str(tmp_path / "out"), "--figures", "none"])
    assert result.exit_code == 0, result.output
    [lines] = (tmp_path / "out").rglob("heads.jsonl")
    one, other = map(json.loads, lines.read_text(encoding="utf-8").splitlines())
    alone = json.loads(json.dumps(attnviz.analyze(chat=MESSAGES, model=folder, syntax=False).document()))
    assert (one["spans"], one["span_pairs"]) == (alone["spans"], alone["span_pairs"])
    assert [span["name"] for span in other["spans"]] == ["system", "user"]


def test_a_span_may_be_named_in_what_the_model_wrote() -> None:
    given: dict[str, Any] = {"model": chat_model(), "tokenizer": chat_tokenizer(), "generate": 4, "syntax": False}
    written = attnviz.analyze("the cat that", **given)
    piece = written.continuation.text.strip()
    last = attnviz.analyze("the cat that", spans={"it": piece}, **given).spans.spans[-1]
    assert last.name == "it"
    assert set(last.tokens) <= set(range(written.continuation.first, len(written.tokens)))
