"""``attnviz compare`` as its users meet it: options, files, messages, exit codes."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner, Result

from attnviz.cli.program import app
from tests.models import bert_tokenizer, save_checkpoint, sharp_bert

TEXT, OTHER = "the cat that i saw ran away", "the dog that i saw ran away"


@pytest.fixture(scope="module")
def tuned_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny BERT with one head of its last layer turned round."""
    model = copy.deepcopy(sharp_bert())
    with torch.no_grad():
        model.encoder.layer[2].attention.self.query.weight[8:16] *= -1
    return save_checkpoint(model, bert_tokenizer(), tmp_path_factory.mktemp("tuned") / "fine-tuned")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs ``attnviz compare`` in an empty folder, without figures unless asked for."""
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments: str, figures: bool = False, stdin: str | None = None) -> Result:
        options = ["--no-syntax", *([] if figures else ["--no-figures"])]
        return CliRunner().invoke(app, ["compare", *arguments, *options], input=stdin)

    return invoke


@pytest.fixture
def models(bert_folder: Path, tuned_folder: Path) -> list[str]:
    return ["-m", str(bert_folder), "-m", str(tuned_folder)]


def document(folder: str = "out") -> dict[str, Any]:
    content: dict[str, Any] = json.loads((Path(folder) / "compare.json").read_text(encoding="utf-8"))
    return content


def test_two_models_on_one_text(run: Any, models: list[str]):
    result = run(TEXT, *models, "-o", "out")
    assert result.exit_code == 0, result.output
    content = document()
    assert content["compared"] == "models"
    assert len({model["weights_sha256"] for model in content["models"]}) == 2
    first, *others = content["heads"]
    assert first["id"] == "L2H1"
    assert first["distance"] > 0
    assert first["beyond_rounding"]
    assert all(head["divergence"] == 0 for head in others)
    assert "A: tiny-bert\nB: fine-tuned\n" in result.stdout
    assert "Heads (12, the" in result.stdout
    assert result.stdout.count("Verified 12 heads") == 2
    assert "Wrote 2 files to out" in result.stderr


def test_words_and_options_reach_both_sides(run: Any, bert_folder: Path):
    texts = ("the unbelievable cat", "the white cat")
    options = ["--pair", "he ran", "--words", "--local-window", "2", "--dtype", "float64"]
    result = run(*texts, "-m", str(bert_folder), *options, "-o", "out")
    assert result.exit_code == 0, result.output
    content = document()
    assert [len(words) for words in content["words"]] == [8, 8]
    assert content["pairs"] == ["he ran", "he ran"]
    assert content["options"]["local_window"] == 2
    assert [model["dtype"] for model in content["models"]] == ["float64"] * 2


def test_a_text_may_come_from_standard_input(run: Any, bert_folder: Path):
    result = run("-", OTHER, "-m", str(bert_folder), "-o", "out", stdin=f"{TEXT}\n")
    assert result.exit_code == 0, result.output
    assert document()["texts"] == [TEXT, OTHER]


@pytest.mark.draws
def test_figures_are_written_in_every_format_theme_and_width(run: Any, models: list[str]):
    options = ["--top", "1", "--format", "png,svg", "--theme", "dark", "--width", "84mm", "--scale", "per-head"]
    result = run(TEXT, *models, "-o", "out", *options, figures=True)
    assert result.exit_code == 0, result.output
    names = ["compare", "compare-map", "differences/L02H01"]
    assert document()["figures"] == [f"{name}.{kind}" for name in names for kind in ("png", "svg")]
    for name in names:
        with Image.open(f"out/{name}.png") as picture:
            assert picture.width == round(84 / 25.4 * 300)
            assert picture.getpixel((0, 0)) == (0x14, 0x14, 0x14)
    assert Path("out/captions.md").read_text(encoding="utf-8").count("**compare") == 2


def test_one_model_is_loaded_once(run: Any, bert_folder: Path, models: list[str], monkeypatch: pytest.MonkeyPatch):
    from attnviz.model import opening

    loaded = []
    load = opening.load_checkpoint
    monkeypatch.setattr(opening, "load_checkpoint", lambda source, *rest: loaded.append(source) or load(source, *rest))
    result = run(TEXT, OTHER, "-m", str(bert_folder), "-o", "out", "--dtype", "float64")
    assert result.exit_code == 0, result.output
    assert len(loaded) == 1
    assert [model["dtype"] for model in document()["models"]] == ["float64"] * 2
    assert run(TEXT, *models, "-o", "out").exit_code == 0
    assert len(loaded) == 3


@pytest.mark.usefixtures("undrawn")
def test_figures_are_chosen_by_name(run: Any, models: list[str]):
    for option, drawn in (("map", ["compare-map.png"]), ("none", []), ("all", ["compare.png", "compare-map.png"])):
        result = run(TEXT, *models, "-o", option, "--figures", option, "--select", "L2H1", figures=True)
        assert result.exit_code == 0, result.output
        single = ["differences/L02H01.png", "compare.html"] if option == "all" else []
        assert document(option)["figures"] == [*drawn, *single]


@pytest.mark.usefixtures("undrawn")
def test_twelve_heads_are_drawn_unless_others_are_asked_for(run: Any, models: list[str]):
    result = run(TEXT, *models, "-o", "out", "--select", "L2", figures=True)
    assert result.exit_code == 0, result.output
    content = document()
    assert len(content["heads"]) == 4
    assert [name for name in content["figures"] if "/" in name] == [f"differences/L02H0{head}.png" for head in range(4)]
    assert "Heads (4, the most different first)" in result.stdout
    assert "Heads (3 of 12" in run(TEXT, *models, "-o", "out", "--top", "3").stdout


@pytest.mark.usefixtures("undrawn")
def test_json_prints_the_document_quiet_nothing_and_another_comparison_replaces_files(run: Any, models: list[str]):
    assert run(TEXT, *models, "-o", "out", "--top", "1", "--quiet", figures=True).output == ""
    Path("out/mine.txt").write_text("mine")
    result = run(OTHER, *models, "-o", "out", "--json", "--overwrite")
    assert json.loads(result.stdout) == document()
    assert "removed 5 files of an earlier run" in result.stderr
    assert sorted(path.name for path in Path("out").iterdir()) == ["compare.csv", "compare.json", "mine.txt"]


# --- what goes wrong: one line on standard error, nothing written


@pytest.mark.parametrize(
    ("texts", "n_models", "found"),
    [
        ([TEXT], 0, "found 1 text and 1 model"),
        ([TEXT, OTHER], 2, "found 2 texts and 2 models"),
        ([TEXT, OTHER, TEXT], 1, "found 3 texts and 1 model"),
        ([TEXT], 3, "found 1 text and 3 models"),
    ],
)
def test_exactly_one_of_the_two_forms(run: Any, bert_folder: Path, texts: list[str], n_models: int, found: str):
    result = run(*texts, *["-m", str(bert_folder)] * n_models)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert "expected one text and two models, or two texts and one model: attnviz compare TEXT --model M1" in line
    assert found in line


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["the cat", "the cat ran"], 1, "the texts have 4 and 5 tokens, 2 special tokens included; expected as many"),
        (["the unbelievable cat", "the white cat"], 1, "equally long (5): compare words (--words, words=True)"),
        (["-", "-"], 2, "both texts are -, but standard input can be read only once"),
        ([TEXT, " "], 1, "TEXT is empty or blank"),
        ([TEXT, OTHER, "-o", ""], 2, "-o is empty"),
        ([TEXT, OTHER, "--theme", "red"], 2, "unknown theme 'red': expected one of light, dark"),
        ([TEXT, OTHER, "--scale", "log", "--figures", "all"], 2, "a logarithmic scale cannot show: expected shared or"),
        ([TEXT, OTHER, "--figures", "pair"], 2, "unknown figure 'pair': expected any of overview, map, differences"),
        ([TEXT, OTHER, "--select", "L9"], 2, "the model has layers 0 to 2"),
        ([TEXT, OTHER, "--dtype", "int8"], 2, "int8"),
        ([TEXT, OTHER, "--revision", "a", "--revision", "b"], 2, "a --revision for each of 1 models"),
        ([TEXT, OTHER, "--revision", "main"], 2, "revision"),
        (["the " * 60, "the " * 60], 1, "the model has 40 positions"),
    ],
)
def test_what_cannot_be_done_is_told_in_one_line_and_leaves_nothing_behind(
    run: Any, bert_folder: Path, arguments: list[str], code: int, message: str
):
    result = run(*arguments, "-m", str(bert_folder), figures="--figures" in arguments)
    (line,) = result.stderr.splitlines()
    assert message in line
    assert result.exit_code == code
    assert not Path("attnviz-out").exists()


def test_a_side_that_does_not_verify_is_exit_code_3(run: Any, models: list[str], monkeypatch: pytest.MonkeyPatch):
    from attnviz.attention import reference

    joined_output, outputs = reference.joined_output, []

    def wrong(*given: Any) -> Any:
        outputs.append(joined_output(*given))
        return outputs[-1] + (len(outputs) > 3)

    monkeypatch.setattr(reference, "joined_output", wrong)
    result = run(TEXT, *models, "-o", "out")
    assert result.exit_code == 3
    assert len(outputs) == 6  # the first side verified, the second did not
    assert "the recomputed heads do not reproduce the model: 3 of 3 layers differ" in result.stderr
    assert not Path("out").exists()


def test_revisions_belong_to_the_models_in_order(run: Any, models: list[str], monkeypatch: pytest.MonkeyPatch):
    from attnviz.model import sources

    asked = []
    find = sources.find_checkpoint
    monkeypatch.setattr(
        sources, "find_checkpoint", lambda name, revision, *_: asked.append(revision) or find(name, None)
    )
    assert run(TEXT, *models, "--revision", "-", "--revision", "v2", "-o", "out").exit_code == 0
    assert asked == [None, "v2"]
