"""Plug-ins: what somebody else registers, in a program or in a file for ``--plugin``."""

import json
import re
import shlex
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import BertModel, NemotronConfig, NemotronForCausalLM, SeedOssConfig, SeedOssForCausalLM
from typer.testing import CliRunner, Result

import attnviz
from attnviz.cli.program import app
from attnviz.commands.heads.findings import _LABELS, heads_named
from attnviz.figures.families import FAMILIES as COLOURED
from attnviz.figures.families import family_of_label
from attnviz.measures.patterns import FAMILIES, NAMES, OWN_WORDS, PATTERNS, REGISTRY, SHARES, PatternSpec
from attnviz.measures.statistics import SCALARS
from attnviz.models.families import ARCHITECTURES
from attnviz.models.families.base import Architecture
from attnviz.models.families.llama import Llama, Qwen2
from attnviz.plugins import run_file
from attnviz.present.report import FIGURES, views_of
from attnviz.present.view import Drawing, ViewOptions
from tests.support import llamas
from tests.support.corpora import sentences
from tests.support.models import gpt2_tokenizer, save_checkpoint
from tests.support.results import result_of
from tests.support.tolerances import SUMS_32

TEXT = "one , two , three ! the cat , the dog ran away ."
PAGE = Path(__file__).resolve().parents[2] / "examples" / "guide" / "extending.md"
pytestmark = pytest.mark.usefixtures("fresh_plugins")

BACK = PatternSpec("two_back", "two-back", lambda text: text.distances == -2, "two {unit}s back", "local",
                   specific=True)  # fmt: skip


MINE = """
import attnviz
import torch
from attnviz.figures.style import Style
from attnviz.measures.patterns import PatternSpec
from attnviz.models.families.llama import Llama
from attnviz.present.view import Drawing
from dataclasses import dataclass
from matplotlib.figure import Figure

def on_punctuation(text):
    keys = torch.tensor([not any(map(str.isalnum, label)) for label in text.labels])
    return keys.expand(len(text.distances), -1)

class SeedOss(Llama):
    name = "seed_oss"
    class_prefix = "SeedOss"

@dataclass(frozen=True)
class Spread:
    stem: str
    caption: str
    entropy: list

def plans(analysis, options):
    heads = analysis.select(options.select)
    yield Spread("spread", f"{analysis.figure_context.model}: entropy.", [head.statistics["entropy"] for head in heads])

def figure(plan, style, vector):
    drawn = Figure(figsize=(4, 3), layout="constrained")
    drawn.add_subplot(xlabel="entropy (nats)").plot(plan.entropy)
    return drawn

SPREAD = Drawing(plans, figure)
attnviz.register(PatternSpec("punctuation", "punctuation", on_punctuation, "punctuation", "other", column="Punct",
                             specific=True, reads_text=True))
attnviz.register(SeedOss)
attnviz.register(SPREAD, "heads.spread")
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A file with a pattern, a family and a figure, which was run."""
    path = tmp_path / "mine.py"
    path.write_text(MINE, encoding="utf-8")
    run_file(path)
    return path


@pytest.fixture(scope="module")
def seed_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(llamas.FAMILIES, "seed_oss", (SeedOssConfig, SeedOssForCausalLM, {"head_dim": 16}))
        return save_checkpoint(llamas.sharp_llama("seed_oss"), gpt2_tokenizer(), tmp_path_factory.mktemp("m") / "seed")


@pytest.fixture(scope="module")
def nemotron_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        settings = {"head_dim": 16, "attention_bias": True, "mlp_bias": True}
        patch.setitem(llamas.FAMILIES, "nemotron", (NemotronConfig, NemotronForCausalLM, settings))
        folder = tmp_path_factory.mktemp("m") / "nemotron"
        return save_checkpoint(llamas.sharp_llama("nemotron"), gpt2_tokenizer(), folder)


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def document_of(folder: Path) -> dict:
    return json.loads((folder / "heads.json").read_bytes())


@pytest.mark.draws
def test_a_pattern_of_a_file_is_measured_judged_named_and_drawn(mine, bert_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    out = tmp_path / "out"
    done = run("heads", TEXT, "--plugin", mine, "-m", bert_folder, "--no-syntax", "-o", out, "--figures",
               "map,overview", "--map", "punctuation", "--top", 0)  # fmt: skip
    assert done.exit_code == 0, done.output
    assert (out / "map-punctuation.png").stat().st_size
    assert "Punct" in done.stdout
    document = document_of(out)
    assert document["plugins"] == [{"kind": "pattern", "name": "punctuation", "origin": "attnviz.register"}]
    assert "punctuation" in (out / "heads.csv").read_text().partition("\n")[0].split(",")
    labels = [token["text"] for token in document["tokens"]]
    on = torch.tensor([label in (",", ".", "!") for label in labels])
    content = torch.tensor([not token["special"] for token in document["tokens"]])
    model = BertModel.from_pretrained(bert_folder, attn_implementation="eager").eval()
    ids = torch.tensor([[token["id"] for token in document["tokens"]]])
    with torch.no_grad():
        patterns = torch.stack(model(ids, output_attentions=True).attentions)[:, 0][..., content, :]
    shares = patterns[..., on].sum((-1, -2)) / patterns[..., content].sum((-1, -2))
    assert [head["punctuation"] for head in document["heads"]] == pytest.approx(shares.flatten().tolist(), abs=SUMS_32)
    baselines = [head["baseline"]["punctuation"] for head in document["heads"]]
    assert baselines == pytest.approx([float(on.sum() / content.sum())] * 12)


def test_a_head_of_a_new_pattern_gets_its_label_and_its_colour(mine):
    tokens = "one , two , three ! the cat , the dog ran away .".split()
    on = torch.tensor([token in ",.!" for token in tokens]).double()
    weights = torch.stack([(on / on.sum()).expand(len(on), -1), torch.full((len(on), len(on)), 1 / len(on)).double()])
    drawn = attnviz.draw(weights, tokens)
    assert [head.label for head in drawn.heads] == ["punctuation", "broad"]
    assert heads_named(["punctuation"], drawn.heads) == {drawn.heads[0].id}
    assert family_of_label("punctuation").name == "other"
    assert drawn.page().count("punctuation") > 2


def test_a_pattern_of_a_file_is_a_role_over_a_corpus(mine, bert_folder, tmp_path):
    corpus = sentences(tmp_path / "corpus.txt", 12)
    done = run("profile", corpus, "-m", bert_folder, "--no-syntax", "--no-control", "--no-store", "--figures", "roles",
               "-o", tmp_path / "out")  # fmt: skip
    assert done.exit_code == 0, done.output
    document = json.loads((tmp_path / "out" / "profile.json").read_bytes())
    assert sum(role["role"] == "punctuation" for role in document["roles"]) == 12
    assert [plugin["name"] for plugin in document["plugins"]] == ["punctuation"]
    of_none = run("profile", "--repeats", "-m", bert_folder, "--no-control", "--no-store", "--figures", "none", "-o",
                  tmp_path / "of-none")  # fmt: skip
    assert "give a corpus" in of_none.stdout


def test_an_unfinished_profile_goes_on_with_the_same_patterns_alone(bert_folder, tmp_path, saved_at_once):
    corpus, kept = sentences(tmp_path / "corpus.txt", 12), tmp_path / "kept"

    def profile(stop: bool) -> object:
        def progress(what: str, done: int, total: int) -> None:
            if stop and done >= 4:
                signal.raise_signal(signal.SIGINT)

        return attnviz.profile_heads(bert_folder, [corpus], syntax=False, control=False, batch_size=4, unfinished=kept,
                                     progress=progress)  # fmt: skip

    with pytest.raises(KeyboardInterrupt):
        profile(stop=True)
    assert kept.exists()
    attnviz.register(BACK)
    with pytest.raises(attnviz.OutputError, match="two-back"):
        profile(stop=False)


def test_a_family_of_a_file_is_verified_shown_and_said(mine, seed_folder, tmp_path):
    result = attnviz.analyze("one two three", seed_folder)
    assert result.verification.level == 4
    assert result.document()["plugins"][0] == {
        "kind": "architecture", "name": "seed_oss", "origin": "attnviz.register",
    }  # fmt: skip
    assert attnviz.explain("one two three", seed_folder).document()["plugins"][0]["name"] == "seed_oss"
    (entry,) = [
        each for each in json.loads(run("models", "--families", "--json").stdout)["families"] if "plugin" in each
    ]
    assert (entry["architecture"], entry["level"], entry["plugin"]) == ("seed_oss", None, "attnviz.register")
    assert {*entry["commands"].values()} == {"untried"}
    said = " ".join(run("models", "--families").stdout.split())
    assert "seed_oss ? ? ? ? ? ? ? ?" in said
    assert "From plug-ins: seed_oss (attnviz.register). ?: not tried" in said
    assert run("models", seed_folder, "--json").exit_code == 0


def test_a_wrong_declaration_is_caught_by_the_verification(seed_folder):
    with pytest.raises(attnviz.ArchitectureError, match="expected one of: albert, bart"):
        attnviz.analyze("one two three", seed_folder)
    attnviz.register(type("Wrong", (Llama,), {"name": "seed_oss", "class_prefix": "SeedOss", "causal": False}))
    with pytest.raises(attnviz.VerificationError):
        attnviz.analyze("one two three", seed_folder)
    attnviz.register(type("Right", (Llama,), {"name": "seed_oss", "class_prefix": "SeedOss"}))
    assert attnviz.analyze("one two three", seed_folder).verification.level == 4


NEMOTRON = {
    "name": "nemotron", "class_prefix": "Nemotron", "norm_kind": "layer, 1 + w", "epsilon_setting": "norm_eps",
    "network_names": ("up_proj", None, None, "down_proj"), "partial_rotary": True,
}  # fmt: skip
"""Layer norms of which 1 is left out, relu², and a network without a gate (Parmar et al. 2024)."""


def test_a_family_of_another_kind_of_norm_and_activation_is_a_declaration_too(nemotron_folder):
    attnviz.register(type("Nemotron", (Llama,), NEMOTRON))
    assert attnviz.analyze("one two three", nemotron_folder).verification.level == 4
    explained, _ = (attnviz.explain("one two three", nemotron_folder, layer=layer) for layer in (0, 1))
    assert explained.activation == "relu2"
    assert "(1 + γ)" in explained.report(200, verbose=True)


@pytest.mark.parametrize(
    ("attribute", "wrong", "word"),
    [
        ("epsilon_setting", "rms_norm_eps", "norm_eps"),
        ("network_names", Llama.network_names, "gate_proj"),
        ("norm_names", ("ln", None, None, None), "ln"),
        ("projection_names", ("qkv", "o_proj"), "qkv"),
        ("layers_at", "h", "layers"),
        ("class_prefix", "Nemotrom", "NemotronModel"),
    ],
)
def test_a_declaration_that_names_what_is_not_there_is_one_message(nemotron_folder, attribute, wrong, word):
    attnviz.register(type("Nemotron", (Llama,), {**NEMOTRON, attribute: wrong}))
    with pytest.raises(attnviz.ArchitectureError, match=rf"nemotron.*{attribute}.*{word}"):
        attnviz.explain("one two three", nemotron_folder)


def test_a_setting_that_the_relative_has_and_the_family_lacks_is_named(nemotron_folder):
    attnviz.register(type("Nemotron", (Qwen2,), NEMOTRON))
    with pytest.raises(attnviz.ArchitectureError, match="NemotronConfig has no 'layer_types'"):
        attnviz.analyze("one two three", nemotron_folder)


@pytest.mark.draws
def test_the_commands_of_the_guide_run_as_written(bert_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text(encoding="utf-8")
    for name, content in re.findall(r"^```py\n# (\w+\.py)\n(.*?)^```", page, re.M | re.S):
        Path(name).write_text(content, encoding="utf-8")
    lines = re.findall(r"^\$ attnviz (.+ --plugin .+)$", page, re.M)
    assert lines
    for line in lines:
        done = run(*shlex.split(line), "--model", bert_folder, "--device", "cpu")
        assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    "mask",
    [
        lambda text: torch.ones(text.n, text.n),
        lambda text: torch.ones(text.n, dtype=torch.bool),
        lambda _: 3,
        lambda text: (text.distances == -2).to_sparse(),
        lambda text: (text.distances == -2).to("meta"),
    ],
)
def test_a_mask_of_another_shape_or_kind_is_refused_by_name(bert_folder, mask):
    attnviz.register(replace(BACK, mask=mask))
    with pytest.raises(attnviz.UsageError, match=r"two.back"):
        attnviz.analyze(TEXT, bert_folder, syntax=False)


class OddError(BaseException):
    pass


@pytest.mark.parametrize("error", [SystemExit(0), OddError("one\ntwo"), ZeroDivisionError()], ids=repr)
def test_whatever_a_mask_raises_is_one_line(bert_folder, tmp_path, error):
    def fail(_: object) -> None:
        print("printed by a plug-in")
        raise error

    attnviz.register(replace(BACK, mask=fail))
    done = run("heads", TEXT, "-m", bert_folder, "--no-syntax", "--figures", "none", "--json", "-o", tmp_path / "out")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "the pattern 'two-back' cannot be used" in done.stderr
    assert done.stderr.count("\n") == 2


def test_an_error_that_cannot_say_what_it_is_is_one_line():
    class SilentError(Exception):
        def __str__(self) -> str:
            raise ValueError

    attnviz.register(BACK)
    with pytest.raises(attnviz.AttnvizError, match="SilentError"), REGISTRY.errors_named("two-back"):
        raise SilentError


def test_a_registered_pattern_may_be_replaced_and_earlier_results_stay(bert_folder, tmp_path):
    before = attnviz.analyze(TEXT, bert_folder, syntax=False)
    attnviz.register(BACK)
    assert "two_back" in SHARES
    after = attnviz.analyze(TEXT, bert_folder, syntax=False)
    assert after.heads[0].statistics["two_back"] != after.heads[0].statistics["previous"]
    attnviz.register(replace(BACK, mask=lambda text: text.distances == -1))
    again = attnviz.analyze(TEXT, bert_folder, syntax=False)
    assert again.heads[0].statistics["two_back"] == again.heads[0].statistics["previous"]
    assert again.document()["plugins"] == [{"kind": "pattern", "name": "two-back", "origin": "attnviz.register"}]
    before.save(tmp_path, figures=["overview", "map"], maps=["two_back"])
    assert json.loads((tmp_path / "heads.json").read_bytes())["heads"][0]["two_back"] is None
    assert before.report(200)
    attnviz.unregister("two-back")
    assert "two_back" not in SHARES
    with pytest.raises(attnviz.UsageError, match="nothing was registered as 'two-back'"):
        attnviz.unregister("two-back")


def test_a_name_and_a_mask_are_a_pattern(bert_folder):
    attnviz.register("two-back", lambda text: text.distances == -2)
    found = attnviz.analyze(TEXT, bert_folder, syntax=False)
    attnviz.register(BACK)
    again = attnviz.analyze(TEXT, bert_folder, syntax=False)
    scores, expected = ([head.statistics["two_back"] for head in each.heads] for each in (found, again))
    assert scores == expected
    assert max(scores) > 0
    with pytest.raises(attnviz.UsageError, match="as a function"):
        attnviz.register("two-back")


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("my.py", "", "registers nothing"),
        ("my.py", "x = (", "SyntaxError"),
        ("my.py", "raise SystemExit", "SystemExit"),
        ("my.py", "import attnviz\nattnviz.register('Two', lambda text: None)", "small letters"),
        ("my.txt", "", "my.txt"),
        ("my.py", None, "nothing at my.py"),
    ],
)
def test_a_file_that_registers_nothing_is_one_line(tmp_path, monkeypatch, name, content, word):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path(name).write_text(content, encoding="utf-8")
    done = run("heads", TEXT, "--plugin", name)
    assert done.exit_code == 2
    assert word in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_registered_figure_is_drawn_and_must_keep_to_its_files(bert_folder, mine, tmp_path):
    spread = FIGURES["heads.spread"]
    attnviz.register(spread, "rollout.spread")
    assert [view.name for view in views_of("rollout")][-1] == "spread"
    drawn = attnviz.rollout(f"spread {TEXT}", bert_folder).document(figures=["spread-x.png"])["plugins"]
    assert drawn == [{"kind": "figure", "name": "rollout.spread", "origin": "attnviz.register"}]
    assert "plugins" not in attnviz.rollout("the spread seed_oss punctuation", bert_folder).document(["overview.png"])
    analysis = attnviz.analyze(TEXT, bert_folder, syntax=False)
    assert analysis.figure("spread").axes[0].get_xlabel() == "entropy (nats)"
    outside = Drawing(lambda *given: (replace(plan, stem="overview") for plan in spread.plans(*given)), spread.figure)
    attnviz.register(outside, "heads.outside")
    with pytest.raises(attnviz.UsageError, match="'outside' has a picture 'overview'"):
        analysis.save(tmp_path / "out", figures=["outside"])


@pytest.mark.parametrize(
    ("extension", "name", "word"),
    [
        (replace(BACK, name="previous-token"), "", "attnviz has one"),
        (replace(BACK, name="local-back"), "", "no use for"),
        (replace(BACK, name="back-2"), "", "small letters"),
        (replace(BACK, name="special", statistic="special"), "", "no use for"),
        (replace(BACK, statistic="back"), "", "two_back"),
        (replace(BACK, family="locall"), "", "family"),
        (replace(BACK, chosen=True), "", "chosen"),
        (Llama, "", "attnviz has one"),
        (type("Odd", (Llama,), {**NEMOTRON, "norm_kind": "layer norm"}), "", "norm_kind"),
        (type("Odd", (Llama,), {**NEMOTRON, "norm_names": (None,)}), "", "norm_names"),
        (type("Odd", (Llama,), {"name": "nemotron"}), "", "class_prefix"),
        (PatternSpec, "", "missing"),
        (Architecture, "", "class_prefix"),
        (replace(BACK, name=3), "", "string"),
        (Drawing(lambda *_: iter(()), lambda *_: None), "heads.map", "COMMAND.NAME"),
        (3, "", "found 3"),
    ],
)
def test_what_cannot_be_registered_is_refused_with_the_reason(extension, name, word):
    with pytest.raises(attnviz.UsageError, match=word):
        attnviz.register(extension, name)
    assert len(PATTERNS) == 7
    assert not FIGURES
    assert ARCHITECTURES["llama"].causal


def test_the_words_that_no_pattern_may_begin_with_are_those_of_attnviz():
    fields = [field.name for field in result_of("heads").table(ViewOptions()).fields]
    own = [*SCALARS, *fields, *_LABELS, *NAMES.values(), "sink", "broad", "offset", "total", "rows", "apart"]
    own.append("syntactic")
    assert {re.split("[-_: ]", name)[0] for name in own} - {*OWN_WORDS, ""} == set()
    assert {*FAMILIES} <= {family.name for family in COLOURED}
