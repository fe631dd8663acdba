"""Rows of some queries alone: the numbers of these rows, verified, in statistics, pictures and files."""

import json

import pytest
import torch

from attnviz.commands.heads.measure import analyze
from attnviz.errors import UsageError, VerificationError
from attnviz.inputs.prompt import find_queries, merge_subwords
from attnviz.inputs.text import tokenize
from attnviz.models.checkpoint import from_loaded
from attnviz.run.checks import LayerComparison
from attnviz.run.verify import verify_attention
from tests.conftest import SENTENCE
from tests.support.models import bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2
from tests.support.tolerances import SUMS_64

MODELS = {"bert": (sharp_bert, bert_tokenizer), "gpt2": (sharp_gpt2, gpt2_tokenizer)}


def checkpoint_of(kind):
    model, tokenizer = MODELS[kind]
    return from_loaded(model().double(), tokenizer())


@pytest.mark.parametrize(
    ("queries", "expected"),
    [("last", [8]), ("-3:", [6, 7, 8]), (" 2:4 ", [2, 3]), (":2", [0, 1]), ("7:99", [7, 8]), ("cat", [2]), ("#4", [4]),
     (5, [5]), ("90:95", None), ("5:5", None), ("dog", None), (9, None), (2.5, None), ("last:", None)],
)  # fmt: skip
def test_queries_are_named_as_stretches_or_as_tokens_of_the_text_or_refused(queries, expected):
    units = merge_subwords(tokenize(checkpoint_of("bert"), SENTENCE), False)
    if expected is None:
        with pytest.raises(UsageError, match=str(queries)):
            find_queries(units, queries)
    else:
        assert list(find_queries(units, queries)) == expected


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize(("words", "memory"), [(False, "1B"), (True, 10**6)])
def test_statistics_are_those_of_the_rows(kind, words, memory):
    checkpoint = checkpoint_of(kind)
    whole = analyze(SENTENCE, checkpoint, syntax=False, words=words, memory=memory)
    part = analyze(SENTENCE, checkpoint, syntax=False, words=words, memory=memory, queries="2:6")
    n, sink = len(whole.units), torch.tensor(whole.units.sink)
    apart = (torch.arange(n) - torch.arange(n)[:, None]).abs().double()
    allowed = whole.context.allowed_rows(0, n).double()
    for head in part.heads:
        full, rows = whole.pattern(head.id), part.pattern(head.id)
        torch.testing.assert_close(rows, full[2:6], rtol=0, atol=SUMS_64)
        content = [query for query in range(2, 6) if not sink[query]]
        expected = {
            "entropy": -torch.xlogy(full, full).sum(1)[2:6].mean(),
            "distance": (full * apart).sum(1)[2:6].mean(),
            "confidence": full.amax(1)[2:6].mean(),
            "sink": full[content][:, sink].sum(1).mean(),
            "current": full.diagonal()[content].sum() / full[content][:, ~sink].sum(),
        }
        for name, value in expected.items():
            assert head.statistics[name] == pytest.approx(float(value), abs=SUMS_64), name
    uniform = allowed / allowed.sum(1, keepdim=True)
    assert part.context.uniform["entropy"] == pytest.approx(float(-torch.xlogy(uniform, uniform).sum(1)[2:6].mean()))
    assert part.parse is None


def test_a_row_that_is_wrong_is_found_and_one_that_nobody_asked_for_is_not_compared(monkeypatch):
    checkpoint, seen = checkpoint_of("gpt2"), []
    checkpoint.model.set_attn_implementation("eager")
    add = LayerComparison.add_rows

    def keep(self, first, pattern, expected, own, random):
        seen.append((self.layer, first, pattern.shape[2]))
        if (self.layer, first) == (1, 4):
            own = own.clone()
            own[0, 2, -1, 1] += 0.1
        return add(self, first, pattern, expected, own, random)

    monkeypatch.setattr(LayerComparison, "add_rows", keep)
    with pytest.raises(VerificationError, match=r"L1H2\), query 5 .*, key 1 "):
        verify_attention(checkpoint, tokenize(checkpoint, SENTENCE), queries=(2, 4, 5))
    assert seen[:2] == [(0, 2, 1), (0, 4, 2)]


VIEWS = ["overview", "heads", "lines", "map", "mean", "text"]


@pytest.mark.draws
def test_every_picture_has_the_rows_and_all_columns(tmp_path, undrawn):
    analysis = analyze(SENTENCE, checkpoint_of("bert"), syntax=False, queries="cat")
    analysis.save(tmp_path, figures=VIEWS, drop_special=True, select="L1", save_attention=True)
    assert {path.stem for path in tmp_path.iterdir()} >= {"overview", "map-entropy", "mean", "text", "heads"}
    document = json.loads((tmp_path / "heads.json").read_text())
    assert document["options"]["queries"] == analysis.options.queries
    assert analysis.pattern("L1H0").shape == (len(analysis.units), len(analysis.keys))
    with pytest.raises(UsageError, match="--queries"):
        analysis.save(tmp_path / "page", figures=["page"])
    with pytest.raises(UsageError, match="--queries"):
        analysis.figure("lines", token="#6")


@pytest.mark.thorough
def test_pictures_of_some_rows_are_drawn(tmp_path):
    analysis = analyze(SENTENCE, checkpoint_of("gpt2"), syntax=False, queries="3:5")
    assert len(analysis.save(tmp_path, figures=VIEWS, formats=["svg"], select="L1H0")["figures"]) >= len(VIEWS)
