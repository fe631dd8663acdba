"""The page of a layer: its numbers are those of the verified steps; clicks show those of another token and head."""

import base64
import re
from typing import Any

import numpy as np
import pytest
import torch

from attnviz.commands.explain import Explanation, explain, page_data
from attnviz.present.view import ViewOptions
from tests.conftest import needs_minilm
from tests.page.conftest import explained
from tests.support.browser import WIDTHS, Page, needs_browser
from tests.support.explained import of_bert, of_gpt2
from tests.support.llamas import sentencepiece_tokenizer, sharp_llama
from tests.support.models import sharp_bert
from tests.support.relatives import RELATIVES, checkpoint_of
from tests.support.tolerances import SHARP_32, SUMS_32

SHOWN = 2e-4  # numbers are shown with four digits after the point


def unpacked(packed: dict[str, Any]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(packed["data"]), "<f4").reshape(packed["shape"])


def of_family(family: str, text: str = "the cat that i saw ran") -> Explanation:
    if family in ("bert", "gpt2"):
        return {"bert": of_bert, "gpt2": of_gpt2}[family](text, layer=1)
    if family in RELATIVES:
        return explain(text, checkpoint_of(family), layer=1)
    return explain(text, sharp_llama(family), tokenizer=sentencepiece_tokenizer(), layer=1)


SLOW = ("granite", "gpt_neox", "olmo2", "mpnet", "llama")


@pytest.mark.parametrize(
    "family",
    ["bert", "gpt2", "gemma2", "gpt_oss", "deberta-v2", *(pytest.param(f, marks=pytest.mark.thorough) for f in SLOW)],
)
def test_the_steps_on_the_page_follow_from_one_another(family: str) -> None:
    data = page_data(of_family(family), ViewOptions())
    numbers = {name: unpacked(packed) for name, packed in data["numbers"].items()}
    vectors = {name: unpacked(entry["numbers"]) for name, entry in data["vectors"].items()}
    scores = np.einsum("hqd,hkd->hqk", numbers["query"], numbers["key"]) * data["scale"]
    np.testing.assert_allclose(sum((numbers[name] for name in data["added"]), scores), numbers["scores"], atol=SHARP_32)
    exponentials = np.exp(numbers["capped" if "capped" in numbers else "scores"]) * numbers["mask"]
    total = exponentials.sum(-1, keepdims=True) + np.exp(numbers.get("sinks", np.array([-np.inf])))[:, None, None]
    np.testing.assert_allclose(exponentials / total, numbers["pattern"], atol=SUMS_32)
    np.testing.assert_allclose(numbers["pattern"] @ numbers["value"], numbers["weighted"], atol=SHARP_32)
    of_heads = numbers["outputs"].sum(0) + numbers.get("output_bias", 0)
    np.testing.assert_allclose(of_heads, vectors["attention_output"], atol=SHARP_32)
    np.testing.assert_allclose(np.linalg.norm(numbers["outputs"], axis=-1), numbers["output_lengths"], rtol=SHARP_32)
    for name, terms in data["sums"].items():
        np.testing.assert_allclose(sum(factor * vectors[of] for of, factor in terms), vectors[name], atol=1e-3)


def test_above_the_bounds_the_page_says_what_is_left_out() -> None:
    result = of_bert("the cat saw a dog . " * 20, {"max_position_embeddings": 200}, token="#70")
    data = page_data(result, ViewOptions())
    assert len(data["tokens"]["labels"]) == 48
    assert data["tokens"]["first"] + data["start"]["token"] == 70
    assert data["tokens"]["left_out"] == len(result.tokens) - 48
    assert f"48 of {len(result.tokens)} tokens" in " ".join(data["notes"])
    weights = unpacked(data["numbers"]["pattern"])
    first = data["tokens"]["first"]
    np.testing.assert_array_equal(weights, result.tensor("pattern")[:, first : first + 48, first : first + 48])
    wide = of_bert(changes={"intermediate_size": 600})
    data = page_data(wide, ViewOptions())
    assert data["vectors"]["expanded"]["numbers"]["shape"] == [len(wide.tokens), 512]
    assert "the first 512" in " ".join(data["notes"])
    heads = of_bert(changes={"hidden_size": 640})
    query = page_data(heads, ViewOptions())["vectors"]["query"]
    np.testing.assert_array_equal(unpacked(query["numbers"]), heads.tensor("query")[:, ::2])  # of all heads
    lengths = wide.tensor("expanded").norm(dim=-1)  # of all numbers
    np.testing.assert_allclose(unpacked(data["vectors"]["expanded"]["lengths"]), lengths, rtol=SUMS_32)


@needs_minilm
@pytest.mark.thorough
def test_the_page_of_minilm_on_10_tokens_is_below_2_mb() -> None:
    result = explain("The cat that I saw ran away .", "minilm", device="cpu")
    assert len(result.tokens) == 10
    assert len(result.page()) < 2_000_000


def numbers_in(rows: list[list[str]]) -> list[list[float]]:
    """The cells that are numbers, row by row."""
    return [[float(cell.replace("−", "-")) for cell in row if re.fullmatch(r"−?\d+\.\d+", cell)] for row in rows]


def by_the_model(token: int, head: int) -> dict[str, Any]:
    """Scores, weights and what every head writes, from transformers' own modules and plain numpy."""
    model = sharp_bert().eval()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        out = model(torch.tensor([explained().tokens.ids]), output_hidden_states=True, output_attentions=True)
        x, layer = out.hidden_states[1][0], model.encoder.layer[1].attention
        parts = [part(x).view(-1, 4, 8).numpy() for part in (layer.self.query, layer.self.key, layer.self.value)]
    query, key, value = parts
    weights = out.attentions[1][0].numpy()
    written = layer.output.dense.weight.detach().numpy()
    mixed = np.einsum("hk,khd->hd", weights[:, token], value)
    return {
        "scores": key[:, head] @ query[token, head] / np.sqrt(8),
        "weights": weights[head, token],
        "outputs": np.stack([written[:, 8 * each : 8 * each + 8] @ mixed[each] for each in range(4)]),
        "value": value[:, head] * weights[head, token][:, None],
    }


def check_it_shows(page: Page, token: int, head: int) -> None:
    wanted = by_the_model(token, head)
    for step, name, cells in (
        ("scores", "scores", -1),
        ("pattern", "weights", -1),
        ("weighted", "value", slice(-4, None)),
        ("attention_output", "outputs", slice(-4, None)),
    ):
        shown = [row[cells] for row in numbers_in(page.table(f"[data-step={step}]"))]
        np.testing.assert_allclose(shown, wanted[name] if cells == -1 else wanted[name][:, :4], atol=SHOWN)


@needs_browser
@pytest.mark.thorough
def test_a_click_on_a_token_or_a_head_shows_the_numbers_of_another_computation(page: Page) -> None:
    page.as_it_is()
    page.open("explain/explain.html")
    check_it_shows(page, explained().token, 0)
    page.token(4).click()
    page.click("button.head[data-head=L1H2]")
    assert page.text("#head h2") == "L1H2, token ‘\u2068i\u2069’"
    check_it_shows(page, 4, 2)
    page.click("#output-3")
    check_it_shows(page, 4, 3)
    page.click("button.head[data-head=L1H3]")
    page.press("k", "k")
    page.click("#pattern-6")
    assert page.address == "#head=L1H1&token=4&key=6"
    page.driver.refresh()
    page.shows("L1H1, token ‘\u2068i")
    check_it_shows(page, 4, 1)
    assert [entry for entry in page.driver.get_log("browser") if entry["level"] == "SEVERE"] == []


@needs_browser
@pytest.mark.thorough
@pytest.mark.parametrize("family", ["bert", "gpt_oss"])
def test_what_goes_to_other_keys_or_to_a_learned_sink_has_a_line_of_its_own(page: Page, family: str) -> None:
    if family == "bert":
        result = of_bert("the cat saw a dog . " * 20, {"max_position_embeddings": 200}, token="#70", head="L1H2")
    else:
        result = explain("the cat saw", sharp_llama(family), tokenizer=sentencepiece_tokenizer(), head="L1H2")
    kept = range(max(0, result.token - 47), result.token + 1)
    (page.folder / "rest.html").write_text(result.page(), encoding="utf-8")
    page.open("rest.html")
    lines = "[...document.querySelectorAll('[data-step=' + arguments[0] + '] tfoot tr')]"
    feet = f"{lines}.map(line => [...line.cells].map(cell => cell.innerText))"
    rest, total = numbers_in(page.asked(feet, "pattern"))
    missing = 1 - float(result.tensor("pattern")[2, result.token, kept.start : kept.stop].sum())
    assert missing > 0.01
    assert rest[-1] == pytest.approx(missing, abs=SHOWN)
    assert total[-1] == pytest.approx(1, abs=SHOWN)
    assert rest[-2] / total[-2] == pytest.approx(missing, abs=SHOWN)
    values = numbers_in(page.asked(feet, "weighted"))
    np.testing.assert_allclose(values[-1], result.tensor("weighted")[2, result.token, :4], atol=SHOWN)
    if family == "bert":
        rows = numbers_in(page.table("[data-step=weighted]"))
        np.testing.assert_allclose(np.array(rows)[:, -4:].sum(0) + values[0], values[1], atol=5e-3)
    else:
        assert len(values) == 1  # a sink has no value


@needs_browser
@pytest.mark.thorough
@pytest.mark.parametrize("width", [1400, 400])
def test_the_page_fits_every_width_and_can_be_walked_by_keys(page: Page, width: int) -> None:
    page.emulate(width)
    page.open("explain/explain.html")
    assert page.asked("document.documentElement.scrollWidth") <= width
    pictures = page.asked("[...document.querySelectorAll('.picture')].map(e => e.nextElementSibling?.innerText ?? '')")
    assert len(pictures) > 10
    assert all("0" in legend for legend in pictures)  # where the colours begin
    targets = page.boxes("button")
    assert [box for box in targets if min(box["width"], box["height"]) < 24] == []
    page.driver.execute_script("document.querySelector('.token[tabindex=\"0\"]').focus()")
    page.press("\ue014", "\ue007")  # right, Enter
    assert f"token={explained().token + 1}" in page.address
    page.press("j", "j", "j")
    page.driver.execute_script("window.scrollTo(0, document.body.scrollHeight / 2)")
    (head,) = page.boxes("button.head[aria-pressed=true]")
    assert head["left"] >= 0
    assert head["right"] <= width
    assert all(0 <= box["top"] < WIDTHS[width] for box in page.boxes(".token")[:3])  # they stay in view


@needs_browser
@pytest.mark.thorough
def test_it_is_printed_in_light_colours_without_controls_and_nothing_is_cut(page: Page) -> None:
    page.emulate(800, "dark", "print")  # about the width of a sheet
    page.open("explain/explain.html")
    assert (page.canvas("[data-step=input] canvas")[0, 0] == 255).all()
    assert not page.boxes("nav")
    assert all(box["right"] <= 800 for box in page.boxes(".head"))
    page.as_it_is()
