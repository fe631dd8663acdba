"""What the page is made of: packed patterns, budget, policy; what it does is seen in test_page_browser.py."""

import base64
import json
import re
import zlib
from collections import Counter
from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
import torch

import attnviz
from attnviz.commands.heads.first_look import kinds_sentence, summary_entry
from attnviz.commands.heads.page_view import page_data
from attnviz.language.syntax import Arc, Parse
from attnviz.models.checkpoint import from_loaded
from attnviz.models.head_ids import HeadId
from attnviz.page.page import ERROR, MODULES, PackedPattern, pack, script_text
from attnviz.present.view import ViewOptions
from tests.support.drawn import drawing_of
from tests.support.encoder_decoders import SOURCE, TARGET, sharp, unigram_tokenizer
from tests.support.hand_made import PARSE, by_design, first_pattern, hand_made, previous_pattern
from tests.support.stored import PROFILE
from tests.support.tolerances import SUMS_32


def data_of(html: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def filled(pattern: torch.Tensor, packing: PackedPattern, size: int = 64) -> PackedPattern:
    """It has been given the pattern in blocks of so many rows."""
    for first in range(0, len(pattern), size):
        packing.add(first, pattern[first : first + size])
    return packing


def packed(pattern: torch.Tensor, triangle: bool, size: int = 64) -> str:
    return filled(pattern, PackedPattern(triangle), size).text()


def unpacked(text: str, n: int, triangle: bool, rows: int | None = None) -> np.ndarray:
    kept = np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8)
    roots = np.zeros((rows or n, n), np.uint8)
    roots[np.tril_indices(n) if triangle else ...] = kept if triangle else kept.reshape(roots.shape)
    return (roots / 255.0) ** 2


def peaked(n: int, triangle: bool = False) -> torch.Tensor:
    """A pattern of few large weights, and many small ones."""
    rows = torch.rand(n, n, generator=torch.Generator().manual_seed(1)) ** 9
    rows = rows.tril() if triangle else rows
    return rows / rows.sum(-1, keepdim=True)


@pytest.mark.parametrize("triangle", [False, True])
def test_packed_weights_are_within_the_error_that_the_page_states(triangle: bool) -> None:
    pattern = peaked(40, triangle)
    error = np.abs(unpacked(packed(pattern, triangle), 40, triangle) - pattern.numpy())
    assert error.max() <= ERROR
    assert (error <= np.sqrt(pattern.numpy()) / 255 + 4e-6).all()  # small weights keep their digits


@pytest.mark.parametrize("triangle", [False, True])
@pytest.mark.parametrize("size", [1, 7])
def test_a_pattern_that_comes_in_blocks_is_packed_as_a_whole_one(triangle: bool, size: int) -> None:
    pattern = peaked(100, triangle)
    packing = PackedPattern(triangle)
    for first in range(0, 100, size):  # hidden keys lack
        packing.add(first, pattern[first : first + size, : min(100, first + size) if triangle else 100])
    assert packing.text() == packed(pattern, triangle, size=100)


def test_above_the_budget_the_first_heads_are_kept() -> None:
    noise = {HeadId(0, i): torch.rand(50, 50) for i in range(6)}
    ranked = [HeadId(0, i) for i in (4, 1, 0, 2, 3, 5)]
    one = len(packed(noise[HeadId(0, 4)], False))

    def kept(budget: int) -> list[int]:
        def patterns(ids: Any) -> Any:
            return ((id, [filled(noise[id], PackedPattern(False))]) for id in ids)

        of = pack(ranked, patterns, 2500, budget)
        return [head.head for head in of]

    assert kept(10 * one) == [4, 1, 0, 2, 3, 5]
    assert kept(int(2.5 * one)) == [4, 1]
    assert kept(1) == [4]


def test_a_page_above_the_budget_says_so_and_keeps_the_statistics_of_all() -> None:
    result = hand_made()
    data = page_data(result, ViewOptions(select=("L1H1",), budget=10))
    assert [len(head["patterns"]) for head in data["heads"]] == [0, 0, 0, 1]
    for said in (data["notes"][0], data["caption"]):
        assert "1 of 4 heads" in said
    entropy = next(each for each in data["statistics"] if each["key"] == "entropy")
    assert entropy["values"] == pytest.approx([head.statistics["entropy"] for head in result.heads], abs=SUMS_32)


def test_patterns_and_what_it_begins_with_are_those_of_the_analysis() -> None:
    data = data_of(hand_made().page(attnviz.figures.Style(scale="log"), select="L1H0", drop_special=True, token="cat"))
    assert data["start"] == {"head": "L1H0", "scale": "log", "drop": True, "token": [2]}
    for head, pattern in zip(data["heads"], by_design(6).reshape(4, 6, 6), strict=True):
        (place,) = head["patterns"]
        np.testing.assert_allclose(unpacked(data["patterns"][place]["data"], 6, False), pattern, atol=ERROR)
    long = hand_made(labels=[str(i) for i in range(60)], special=(), patterns=by_design(60))
    assert data_of(long.page())["start"]["scale"] == "log"  # on the other nearly all would look like 0


@pytest.mark.parametrize(
    ("select", "first"),
    [(["L1H1,L0H0"], "L1H1"), (["L1H0", "L0H1"], "L1H0"), (["L1"], "L1H0"), (["previous", "L1H1"], "L1H1")],
)
def test_the_head_whose_id_was_named_first_is_opened(select: list[str], first: str) -> None:
    data = data_of(hand_made().page(select=select))
    assert data["start"]["head"] == first
    assert len(data["patterns"]) == 4


RESTING = 0.7 * first_pattern(6) + 0.3 * previous_pattern(6)
"""On [CLS], and with the rest of its attention on the previous token."""


def test_a_head_has_the_same_label_marks_and_kinds_in_the_terminal_the_overview_the_page_and_the_summary() -> None:
    result = hand_made(patterns=torch.stack([RESTING, *by_design(6).reshape(4, 6, 6)[1:]]).reshape(2, 2, 6, 6))
    heads = {head["id"]: head for head in page_data(result, ViewOptions())["heads"]}
    assert result.head("L0H0").labelled.shown == heads["L0H0"]["label"] == "sink; previous-token?"
    assert heads["L0H0"]["short"] == "sink; prev?"
    (grid,) = drawing_of("heads", "overview").plans(result, ViewOptions())
    for cell in grid.cells:
        head = heads[str(cell.id)]
        assert (cell.family.name, cell.beside) == (head["family"], head["label"])
        assert head["short"] in (*cell.shorter, "–")
    counts = Counter(kind for head in heads.values() for kind in head["kinds"])
    kinds = summary_entry(result.parts[0], result.heads)["kinds"]
    assert counts == {kind: entry["heads"] for kind, entry in kinds.items() if entry["heads"]}
    assert (counts["local"], counts["sink"]) == (2, 2)
    said = kinds_sentence(result.parts[0], result.heads)
    assert sorted(map(int, re.findall(r"(\d+)(?: of 4 heads)? [a-z]", said.partition(" (")[0]))) == sorted(
        counts.values()
    )


@pytest.mark.parametrize(
    ("parse", "seen"), [(PARSE, None), (replace(PARSE, arcs=(Arc(0, 1, "det"),)), False), (None, None)]
)
def test_marks_of_roles_are_filled_only_where_the_text_shows_the_role(parse: Parse | None, seen: bool | None) -> None:
    result = hand_made(profile=PROFILE, parse=parse)
    heads = page_data(result, ViewOptions())["heads"]
    (grid,) = drawing_of("heads", "overview").plans(result, ViewOptions())
    marks = {str(cell.id): None if cell.right is None else (cell.right[0].name, cell.right[2]) for cell in grid.cells}
    of_page = {head["id"]: (head["role"]["family"], head["role"]["seen"]) for head in heads}
    assert of_page["L0H1"] == ("syntactic", seen)  # nsubj
    for head, drawn in marks.items():
        assert of_page[head] == (("unnamed", True) if drawn is None else drawn)
    kinds = {head["id"]: head["role"]["kinds"] for head in heads}
    assert kinds["L0H0"] == ["local"]  # of previous-token, and of local, once
    assert kinds["L0H1"] == ["syntactic"]


@pytest.fixture(scope="module")
def translated() -> Any:
    tokenizer = unigram_tokenizer()
    checkpoint = from_loaded(sharp("t5", len(tokenizer)), tokenizer)
    return attnviz.analyze(SOURCE, checkpoint, target=TARGET, syntax=False)


def test_every_kind_of_attention_is_between_its_own_texts(translated: Any) -> None:
    data = data_of(translated.page())
    n, m = len(translated.tokens), len(translated.target.tokens)
    source, target = (axis["labels"] for axis in data["axes"])
    assert (source, target[0]) == (list(translated.tokens.labels), "<pad>")
    assert [len(axis["words"]["labels"]) for axis in data["axes"]] == [9 + 1, 5 + 1]
    assert data["kinds"] == ["encoder", "decoder", "cross-attention"]
    assert data["rows"] == ["E0", "E1", "D0", "D1", "D2", "X0", "X1", "X2"]
    between = {"E": (0, 0, False), "D": (1, 1, True), "X": (1, 0, False)}
    for head in data["heads"]:
        assert data["kinds"][head["kind"]][0].upper() == head["id"][0].replace("X", "C")
        assert data["rows"][head["row"]] == head["id"].partition("H")[0]
        found = data["patterns"][head["patterns"][0]]
        assert (found["rows"], found["columns"], found["triangle"]) == between[head["id"][0]]
    statistics = {each["key"]: each for each in data["statistics"]}
    uniform = [part.context.uniform["entropy"] for part in translated.parts]
    assert statistics["entropy"]["uniform"] == pytest.approx(uniform, abs=SUMS_32)
    assert statistics["distance"]["uniform"][2] is statistics["diagonality"]["uniform"][0] is None
    cross = next(head for head in data["heads"] if head["id"] == "X1H2")
    weights = unpacked(data["patterns"][cross["patterns"][0]]["data"], n, False, rows=m)
    np.testing.assert_allclose(weights, translated.pattern("X1H2").numpy(), atol=ERROR)


def test_the_command_gives_the_same_target(translated: Any) -> None:
    result = attnviz.analyze(SOURCE, translated.checkpoint, syntax=False, pair="a dog", target="ein Hund")
    data = data_of(result.page(select="D0H1", token="#2"))
    assert data["command_line"]["options"][2:] == ["--pair", "a dog", "--target", "ein Hund"]
    assert (data["start"]["head"], data["start"]["token"]) == ("D0H1", [2])


def test_nothing_but_the_pages_own_script_and_style_may_run() -> None:
    html = hand_made(name="</script><script>alert(1)</script>", text="<!-- <img src=x onerror=alert(1)>").page()
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', html)
    for kind, tag in (("script", r'<script type="module">(.*?)</script>'), ("style", "<style>(.*?)</style>")):
        (content,) = re.findall(tag, html, re.DOTALL)
        digest = base64.b64encode(sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert html.count("<script") == 2
    assert "<img" not in html
    assert not re.search(r"(?:src|href)=[\"']?http|url\(|@import", html)


@pytest.mark.parametrize("command", MODULES)
def test_the_script_writes_no_markup(command: str) -> None:
    script = script_text(command)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", script)
    assert not re.search(r"^(import|export)\b", script, re.MULTILINE)
