"""Attention between spans: by hand, by a plain loop over what transformers returns, and in blocks."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import attnviz
from attnviz.cli.program import app
from attnviz.errors import CorpusError, UsageError
from attnviz.measures.spans import SpanLayout, SpanTally
from attnviz.models.spans import Span
from tests.support.blocks import in_blocks
from tests.support.chats import CHATML, MESSAGES, chat_model, chat_tokenizer
from tests.support.llamas import sentencepiece_tokenizer, sharp_llama
from tests.support.models import bert_tokenizer, gpt2_tokenizer, save_checkpoint, sharp_bert, sharp_gpt2
from tests.support.tolerances import SHARP_32, SUMS_32

TEXT = "the cat saw the dog and it ran away"


def tallied(pattern: torch.Tensor, layout: SpanLayout, size: int) -> SpanTally:
    tally = SpanTally(layout)
    for first in range(0, pattern.shape[1], size):
        tally.add(first, pattern[:, first : first + size])
    return tally


@pytest.mark.parametrize("size", [1, 2, 5])
def test_shares_and_lookback_of_a_pattern_made_by_hand(size: int) -> None:
    """Whatever the blocks of rows."""
    pattern = torch.tensor(
        [
            [1.0, 0, 0, 0, 0],
            [0.5, 0.5, 0, 0, 0],
            [0.2, 0.3, 0.5, 0, 0],
            [0.1, 0.2, 0.3, 0.4, 0],
            [0, 0.6, 0, 0.3, 0.1],
        ]
    )[None]
    layout = SpanLayout((Span("read", (1, 2)), Span("answer", (3, 4))), 5, first_new=3)
    tally = tallied(pattern, layout, size)
    torch.testing.assert_close(
        tally.means["shares"][0], torch.tensor([[(0.5 + 0.8) / 2, 0], [(0.5 + 0.6) / 2, (0.4 + 0.4) / 2]]).double()
    )
    torch.testing.assert_close(tally.means["last_shares"][0], torch.tensor([[0.8, 0], [0.6, 0.4]]).double())
    first = (0.6 / 3) / (0.6 / 3 + 0.4 / 1)
    second = (0.6 / 3) / (0.6 / 3 + 0.4 / 2)
    assert float(tally.means["lookback"][0]) == pytest.approx((first + second) / 2)


def plain(model: Any, ids: tuple[int, ...]) -> np.ndarray:
    """The model's own attention, [n_layers, n_heads, n, n]."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        found = model(torch.tensor([ids]), output_attentions=True).attentions
    return torch.stack(found)[:, 0].double().numpy()


def test_shares_of_a_chat_are_those_of_a_plain_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    in_blocks(monkeypatch, 7)
    model = chat_model()
    analysis = attnviz.analyze(chat=MESSAGES, model=model, tokenizer=chat_tokenizer(), syntax=False)
    attention, found = plain(model, analysis.tokens.ids), analysis.spans
    assert found is not None
    assert len(found.pairs) == 6
    for head in analysis.heads:
        weights = attention[head.id.layer, head.id.head]
        for source, target in found.pairs:
            rows, columns = (list(found.spans[each].tokens) for each in (source, target))
            share = found.between(head.id, source, target)
            assert share.share == pytest.approx(
                np.mean([sum(weights[q, k] for k in columns) for q in rows]), abs=SUMS_32
            )
            assert share.per_token == pytest.approx(share.share / len(columns))
            assert share.uniform == pytest.approx(np.mean([sum(k <= q for k in columns) / (q + 1) for q in rows]))
            assert share.last == pytest.approx(sum(weights[rows[-1], k] for k in columns), abs=SUMS_32)
            assert share.last_uniform == pytest.approx(sum(k <= rows[-1] for k in columns) / (rows[-1] + 1))


@pytest.mark.parametrize("model", ["gpt2", "bert"])
def test_content_and_sinks_are_those_of_a_plain_loop(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sink counts in no span's content; uniform attention is over the content that a query sees."""
    in_blocks(monkeypatch, 4)
    loaded, tokenizer = (sharp_gpt2(), gpt2_tokenizer()) if model == "gpt2" else (sharp_bert(), bert_tokenizer())
    analysis = attnviz.analyze(
        TEXT, loaded, tokenizer=tokenizer, spans={"one": "#0-#3", "two": "#4-#6", "end": "last"}, syntax=False
    )
    attention, found, sinks = plain(loaded, analysis.tokens.ids), analysis.spans, analysis.tokens.sinks
    assert found is not None
    n, causal = len(analysis.tokens), model == "gpt2"
    for head in analysis.heads:
        weights = attention[head.id.layer, head.id.head]
        for source, target in found.pairs:
            rows, columns = (found.spans[each].tokens for each in (source, target))
            share, content = found.between(head.id, source, target), [k for k in columns if k not in sinks]
            seen = {q: [k for k in range(n) if k not in sinks and (k <= q or not causal)] for q in rows}
            even = [len(set(content) & set(seen[q])) / max(1, len(seen[q])) for q in rows]
            assert share.content == pytest.approx(np.mean([sum(weights[q, content]) for q in rows]), abs=1e-5)
            assert share.content_uniform == pytest.approx(np.mean(even))
            assert share.sink == pytest.approx(np.mean([sum(weights[q, list(sinks)]) for q in rows]), abs=1e-5)
            assert share.last_content == pytest.approx(sum(weights[rows[-1], content]), abs=1e-5)
            assert share.last_content_uniform == pytest.approx(even[-1])
            assert share.to_sinks == (not content)
            whole = (share.share, share.uniform)
            assert share.judged == (whole if share.to_sinks else (share.content, share.content_uniform))


def test_a_head_that_rests_on_the_first_token_reads_no_span() -> None:
    """The one that does is named, though it gives less."""
    rests, reads = torch.zeros(2, 6, 6).double()
    rests[:, 0] = 1
    reads[:, 0] = torch.tensor([1, 1, 1, 1, 0.5, 0.5])
    reads[4:, 2] = 0.5
    layout = SpanLayout((Span("one", (0, 1, 2)), Span("two", (4, 5))), 6, None, frozenset({0}))
    tally = tallied(torch.stack([rests, reads]), layout, 3)
    assert tally.means["shares"][:, 1, 0].tolist() == [1, 1]
    assert tally.means["content"][:, 1, 0].tolist() == [0, 0.5]
    assert tally.means["sink"][:, 1].tolist() == [1, 0.5]


def test_an_only_span_is_measured_against_the_rest() -> None:
    analysis = attnviz.analyze(TEXT, sharp_gpt2(), tokenizer=gpt2_tokenizer(), spans=["it=cat saw"], syntax=False)
    assert analysis.spans is not None
    one, rest = analysis.spans.spans
    assert (rest.name, rest.given) == ("rest", "")
    assert sorted((*one.tokens, *rest.tokens)) == list(range(len(analysis.tokens)))


def test_special_tokens_the_last_one_and_the_rest_are_spans() -> None:
    options: dict[str, Any] = {"tokenizer": bert_tokenizer(), "pair": "it saw the dog", "syntax": False}
    given = ["[CLS]", "[SEP]#2", "end=[SEP]#2", "last", "others=rest"]
    analysis = attnviz.analyze("the cat ran", sharp_bert(), spans=given, **options)
    assert analysis.spans is not None
    found = {span.name: span.tokens for span in analysis.spans.spans}
    n = len(analysis.tokens)
    own, last = {"text": (1, 2, 3), "pair": (5, 6, 7, 8)}, (n - 1,)
    assert found == own | {"[CLS]": (0,), "[SEP]#2": last, "end": last, "last": last, "others": (4,)}
    words = attnviz.analyze("last but last", sharp_gpt2(), tokenizer=gpt2_tokenizer(), spans=["a=last#1"], syntax=False)
    assert words.spans is not None
    assert 0 in words.spans.spans[0].tokens
    typed = attnviz.analyze("the [ cls ] [cls] cat", sharp_bert(), spans=["a=[CLS]"], tokenizer=bert_tokenizer())
    assert typed.spans is not None
    assert typed.spans.spans[0].tokens == (0,)  # not the text in another case
    with pytest.raises(UsageError):  # the whole text, which leaves no rest
        attnviz.analyze("the cat ran", sharp_bert(), spans=["a=#0-#4"], tokenizer=bert_tokenizer())
    for wrong in (["a=[SEP]"], ["[SEP]"], ["[SEP]#3"], ["a=[MASK]"], ["a=#0-#9", "b=rest"]):
        with pytest.raises(UsageError):
            attnviz.analyze("the cat ran", sharp_bert(), spans=wrong, **options)


def test_the_lookback_ratio_is_that_of_the_paper() -> None:
    """As its code has it: means over context and over new tokens, of each query that is new."""
    model, first = chat_model(), 0
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


def test_both_texts_of_a_pair_are_spans() -> None:
    analysis = attnviz.analyze(
        "the cat ran", sharp_bert(), tokenizer=bert_tokenizer(), pair="it saw the dog", words=True, syntax=False
    )
    assert analysis.spans is not None
    assert [(span.name, span.tokens) for span in analysis.spans.spans] == [("text", (1, 2, 3)), ("pair", (5, 6, 7, 8))]
    assert analysis.spans.pairs == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert analysis.spans.lookback(analysis.heads[0].id) is None


def test_only_the_queries_that_are_measured_count() -> None:
    options: dict[str, Any] = {"spans": {"begin": "the cat", "end": "away"}, "syntax": False}
    tokenizer, model = gpt2_tokenizer(), sharp_gpt2()
    whole = attnviz.analyze(TEXT, model, tokenizer=tokenizer, **options)
    last = attnviz.analyze(TEXT, model, tokenizer=tokenizer, queries="last", **options)
    assert whole.spans is not None
    assert last.spans is not None
    head = whole.heads[3].id
    found = last.spans.between(head, 1, 0)
    assert (0, 0) not in last.spans.pairs
    assert found.share == pytest.approx(whole.spans.between(head, 1, 0).last, abs=SUMS_32)
    assert found.uniform == pytest.approx(whole.spans.between(head, 1, 0).last_uniform)


@pytest.mark.parametrize(
    ("what", "labels"),
    [
        ("cat saw", ["cat", "saw"]),
        ("the#2", ["the"]),
        ("CAT", ["cat"]),
        ("#3-#4", ["the", "dog"]),
        ("#0", ["the"]),
    ],
)
def test_a_span_is_named_as_a_token_is(what: str, labels: list[str]) -> None:
    analysis = attnviz.analyze(TEXT, sharp_gpt2(), tokenizer=gpt2_tokenizer(), spans=[f"it={what}"], syntax=False)
    assert analysis.spans is not None
    span = analysis.spans.spans[0]
    assert [analysis.tokens.labels[at] for at in span.tokens] == labels


@pytest.mark.parametrize(
    ("spans", "word"),
    [
        ("doc=cat", "NAME"),
        (["cat"], "NAME"),
        (["=cat"], "NAME"),
        (["doc="], "NAME"),
        (["doc=cat", "doc=dog"], "two spans"),
        (["doc=the"], "2 times"),
        (["doc=the#3"], "2 times.* the#1, the#2"),
        (["doc=cat#9"], "1 time;.* cat#1"),
        (["doc=house"], "house"),
        (["doc=#3-#99"], "#99"),
        (["doc=#4-#3"], "first one first"),
        ({"doc": 3}, "NAME"),
        (["new=cat"], "by itself"),
    ],
)
def test_what_names_no_span(spans: Any, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        attnviz.analyze(TEXT, chat_model(), tokenizer=chat_tokenizer(), spans=spans, generate=2, syntax=False)


def test_the_command_writes_and_prints_what_was_measured(tmp_path: Path) -> None:
    """The CSV file has the lists of heads.json; the table names the head that reads most from the answer."""
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
    for pair in document["span_pairs"]:
        for at, head in enumerate(document["heads"]):
            row = rows[head["id"], pair["from"], pair["to"]]
            numbers = "share", "uniform", "per_token", "content", "content_uniform", "sink", "last", "last_content"
            assert all(float(row[name]) == pair[name][at] for name in numbers)
    (pair,) = [each for each in document["span_pairs"] if (each["from"], each["to"]) == ("assistant", "system")]
    best = max(zip(pair["content"], document["heads"], strict=True), key=lambda each: each[0])
    assert f" of {len(document['span_pairs'])} pairs" in result.stdout
    line = next(line for line in result.stdout.splitlines() if line.split()[:2] == ["assistant", "system"])
    assert line.split()[2:4] == [best[1]["id"], f"{best[0]:.2f}"]
    assert all(0 < head["lookback"] < 1 for head in document["heads"])


@pytest.mark.parametrize("words", [[], ["the cat", "--chat", "chat.json"], ["the cat", "--span", "cat"]])
def test_a_mistake_on_the_command_line_is_one_of_usage(words: list[str]) -> None:
    assert CliRunner().invoke(app, ["heads", *words, "-m", "tiny-gpt2", "--figures", "none"]).exit_code == 2


def test_a_profile_of_chats_is_the_mean_over_chats(tmp_path: Path) -> None:
    """All messages of a role are one span; a chat without a role does not count; the control is measured, too."""
    more = [*MESSAGES, {"role": "user", "content": "and the house ?"}, {"role": "assistant", "content": "away"}]
    chats = [MESSAGES, more, MESSAGES[1:], [*MESSAGES[:2]]]
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, chats)), encoding="utf-8")
    folder = save_checkpoint(chat_model(), chat_tokenizer(), tmp_path / "model")
    profile = attnviz.profile_heads(folder, [tmp_path / "chats.jsonl"], batch_size=3, device="cpu", syntax=False)
    assert profile is not None
    found = {(each.measure, each.source, each.target): each.scores for each in profile.chats}
    expected, uniform, ratios = list[np.ndarray](), list[float](), list[list[float | None]]()
    for chat in chats:
        analysis = attnviz.analyze(chat=chat, model=folder, device="cpu", syntax=False)
        assert analysis.spans is not None
        of_role: dict[str, list[int]] = {}
        for span in analysis.spans.spans:
            of_role.setdefault(span.name.partition("#")[0], []).extend(span.tokens)
        weights = torch.stack([analysis.layer_patterns(layer) for layer in range(3)]).double().numpy()
        if {"assistant", "system"} <= set(of_role):
            rows, columns = of_role["assistant"], of_role["system"]
            content = [at for at, is_sink in enumerate(analysis.tokens.sink) if not is_sink]
            expected.append(weights[:, :, rows][..., [key for key in columns if key in content]].sum(-1).mean(-1))
            uniform.append(
                np.mean(
                    [
                        sum(key <= query and key in content for key in columns) / sum(key <= query for key in content)
                        for query in rows
                    ]
                )
            )
        ratios.append([analysis.spans.lookback(head.id) for head in analysis.heads])
    shares = found["share", "assistant", "system"]
    assert shares.texts == len(expected) == 2
    np.testing.assert_allclose(shares.scores[0], np.mean(expected, 0), atol=SUMS_32)
    np.testing.assert_allclose(shares.baseline[0], np.mean(uniform))
    known = [ratio for ratio in ratios if None not in ratio]
    assert found["lookback", "", ""].texts == len(known) == 3
    np.testing.assert_allclose(
        found["lookback", "", ""].scores.flatten(), np.mean(np.array(known, float), 0), atol=SUMS_32
    )
    assert ("share", "system", "assistant") not in found
    assert "assistant" in profile.report(100)
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', profile.page(), re.DOTALL)
    assert data is not None
    spans = json.loads(data[1])["spans"]
    named = {(spans["names"][each["from"]], spans["names"][each["to"]]): each for each in spans["pairs"]}
    pair = named["assistant", "system"]
    np.testing.assert_allclose(pair["values"], shares.scores.flatten(), atol=SHARP_32)


@pytest.mark.parametrize(
    ("line", "word"), [("{}", "chats.jsonl:2"), ('[{"role": "user", "content": "x"}]', "chats.jsonl:2.*alternate")]
)
def test_a_chat_of_a_corpus_that_cannot_be_read_is_named_by_its_line(line: str, word: str, tmp_path: Path) -> None:
    template = "{% if messages | length < 2 %}{{ raise_exception('must alternate') }}{% endif %}" + CHATML
    folder = save_checkpoint(chat_model(), chat_tokenizer(template), tmp_path / "model")
    (tmp_path / "chats.jsonl").write_text(f"{json.dumps(MESSAGES)}\n{line}\n", encoding="utf-8")
    with pytest.raises(CorpusError, match=word):
        attnviz.profile_heads(folder, [tmp_path / "chats.jsonl"], control=False, device="cpu")


def test_each_line_of_a_file_of_chats_is_analysed(tmp_path: Path) -> None:
    folder = save_checkpoint(chat_model(), chat_tokenizer(), tmp_path / "model")
    (tmp_path / "chats.jsonl").write_text(f"{json.dumps(MESSAGES)}\n{json.dumps(MESSAGES[:2])}\n", encoding="utf-8")
    words = ["heads", "--chat", str(tmp_path / "chats.jsonl"), "--each-line", "-m", str(folder)]
    result = CliRunner().invoke(app, [*words, "-o", str(tmp_path / "out"), "--figures", "none", "--no-syntax"])
    assert result.exit_code == 0, result.output
    [lines] = (tmp_path / "out").rglob("heads.jsonl")
    one, other = map(json.loads, lines.read_text(encoding="utf-8").splitlines())
    alone = json.loads(json.dumps(attnviz.analyze(chat=MESSAGES, model=folder, syntax=False).document()))
    assert one["spans"] == alone["spans"]
    assert one["span_pairs"] == alone["span_pairs"]
    assert [head["lookback"] for head in one["heads"]] == [head["lookback"] for head in alone["heads"]]
    assert "span_pairs" in result.stdout
    assert [span["name"] for span in other["spans"]] == ["system", "user"]
    assert "lookback" not in other["heads"][0]
