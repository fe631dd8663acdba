"""Plug-ins: what somebody else registers, in a program or in a file for ``--plugin``."""

import json
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import BertModel, Jais2Config, Jais2ForCausalLM, PersimmonConfig, PersimmonForCausalLM
from typer.testing import CliRunner, Result

import attnviz
from attnviz.analysis.findings import _LABELS, heads_named
from attnviz.cli.program import app
from attnviz.figures.families import FAMILIES as COLOURED
from attnviz.figures.families import family_of_label
from attnviz.measures.patterns import FAMILIES, PATTERNS, PatternSpec, own_words, shares
from attnviz.measures.statistics import scalars
from attnviz.models.families import ARCHITECTURES
from attnviz.models.families.base import Architecture, like
from attnviz.models.families.llama import Llama, Qwen2
from attnviz.models.families.neox import GPTNeoX
from attnviz.plugins import run_file
from attnviz.present.report import FIGURES, views_of
from attnviz.present.view import Drawing, ViewOptions
from tests.support import llamas
from tests.support.corpora import sentences
from tests.support.models import gpt2_tokenizer, save_checkpoint
from tests.support.results import result_of
from tests.support.tolerances import SUMS_32

TEXT = "one , two , three ! the cat , the dog ran away ."
pytestmark = pytest.mark.usefixtures("fresh_plugins")

BACK = PatternSpec(
    "two_back", "two-back", lambda text: text.distances == -2, "two {unit}s back", "local", specific=True
)
JAIS2 = {
    **{"name": "jais2", "class_prefix": "Jais2", "norm_kind": "layer", "epsilon_setting": "layer_norm_eps"},
    "network_names": ("up_proj", None, None, "down_proj"),
}
"""Layer norms, relu², and a network without a gate (Inception 2025)."""
MINE = """
import attnviz
import torch
from attnviz.measures.patterns import PatternSpec
from attnviz.models.families.llama import Llama
from attnviz.present.view import Drawing
from dataclasses import dataclass
from matplotlib.figure import Figure

def on_punctuation(text):
    keys = torch.tensor([not any(map(str.isalnum, label)) for label in text.labels])
    return keys.expand(len(text.distances), -1)

Jais2 = type("Jais2", (Llama,), {jais2})

@dataclass(frozen=True)
class Spread:
    stem: str
    caption: str
    entropy: list

    def figure(self, style):
        drawn = Figure(figsize=(4, 3), layout="constrained")
        drawn.add_subplot(xlabel="entropy (nats)").plot(self.entropy)
        return drawn

def plans(analysis, options):
    yield Spread("spread", "Entropy.", [head.statistics["entropy"] for head in analysis.select(options.select)])

attnviz.register(PatternSpec("punctuation", "punctuation", on_punctuation, "punctuation", "other", column="Punct",
                             specific=True, reads_text=True))
attnviz.register(Jais2)
attnviz.register(Drawing(plans), "heads.spread")
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A file with a pattern, a family and a figure, which was run."""
    path = tmp_path / "mine.py"
    path.write_text(MINE.replace("{jais2}", repr(JAIS2)), encoding="utf-8")
    run_file(path)
    return path


@pytest.fixture(scope="module")
def jais2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = {"head_dim": 16, "attention_bias": True, "mlp_bias": True}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(llamas.FAMILIES, "jais2", (Jais2Config, Jais2ForCausalLM, settings))
        model = llamas.sharp_llama("jais2")
    return save_checkpoint(model, gpt2_tokenizer(), tmp_path_factory.mktemp("models") / "jais2")


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.draws
def test_a_pattern_of_a_file_is_measured_judged_named_and_drawn(mine, bert_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    out = tmp_path / "out"
    drawing = ["--figures", "map", "--map", "punctuation", "--top", 0]
    done = run("heads", TEXT, "--plugin", mine, "-m", bert_folder, "--no-syntax", "-o", out, *drawing)
    assert done.exit_code == 0, done.output
    assert (out / "map-punctuation.png").stat().st_size
    assert "Punct" in done.stdout
    document = json.loads((out / "heads.json").read_bytes())
    assert document["plugins"] == [{"kind": "pattern", "name": "punctuation", "origin": "attnviz.register"}]
    assert "punctuation" in (out / "heads.csv").read_text().partition("\n")[0].split(",")
    on = torch.tensor([token["text"] in (",", ".", "!") for token in document["tokens"]])
    content = torch.tensor([not token["special"] for token in document["tokens"]])
    model = BertModel.from_pretrained(bert_folder, attn_implementation="eager").eval()
    ids = torch.tensor([[token["id"] for token in document["tokens"]]])
    with torch.no_grad():
        patterns = torch.stack(model(ids, output_attentions=True).attentions)[:, 0][..., content, :]
    shares = patterns[..., on].sum((-1, -2)) / patterns[..., content].sum((-1, -2))
    assert [head["punctuation"] for head in document["heads"]] == pytest.approx(shares.flatten().tolist(), abs=SUMS_32)
    baselines = [head["baseline"]["punctuation"] for head in document["heads"]]
    assert baselines == pytest.approx([float(on.sum() / content.sum())] * 12)


@pytest.mark.usefixtures("mine")
def test_a_head_of_a_new_pattern_gets_its_label_and_its_colour():
    tokens = "one , two , three ! the cat , the dog ran away .".split()
    on = torch.tensor([token in ",.!" for token in tokens]).double()
    weights = torch.stack([(on / on.sum()).expand(len(on), -1), torch.full((len(on), len(on)), 1 / len(on)).double()])
    drawn = attnviz.draw(weights, tokens)
    assert [head.label for head in drawn.heads] == ["punctuation", "broad"]
    assert heads_named(["punctuation"], drawn.heads) == {drawn.heads[0].id}
    assert family_of_label("punctuation").name == "other"
    assert drawn.page().count("punctuation") > 2


@pytest.mark.usefixtures("mine")
def test_a_pattern_of_a_file_is_a_role_over_a_corpus(bert_folder, tmp_path):
    corpus = sentences(tmp_path / "corpus.txt", 12)
    document = attnviz.profile_heads(bert_folder, [corpus], syntax=False, control=False).document()
    assert sum(role["role"] == "punctuation" for role in document["roles"]) == 12
    assert [plugin["name"] for plugin in document["plugins"]] == ["punctuation"]


def test_an_unfinished_profile_goes_on_with_the_same_patterns_alone(bert_folder, tmp_path, saved_at_once):
    corpus, kept = sentences(tmp_path / "corpus.txt", 12), tmp_path / "kept"
    options = {"syntax": False, "control": False, "batch_size": 4, "unfinished": kept}

    def stop(what: str, done: int, total: int) -> None:
        if done >= 4:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        attnviz.profile_heads(bert_folder, [corpus], progress=stop, **options)
    assert kept.exists()
    attnviz.register(BACK)
    with pytest.raises(attnviz.OutputError, match="two-back"):
        attnviz.profile_heads(bert_folder, [corpus], **options)


@pytest.mark.usefixtures("mine")
def test_a_family_of_a_file_is_verified_and_told(jais2_folder):
    result = attnviz.analyze("one two three", jais2_folder)
    assert result.verification.level == 4
    assert result.document()["plugins"][0] == {"kind": "architecture", "name": "jais2", "origin": "attnviz.register"}
    explained = attnviz.explain("one two three", jais2_folder, layer=1)
    assert explained.stages.parameters.activation.name == "relu2"
    assert explained.document()["plugins"][0]["name"] == "jais2"
    families = json.loads(run("models", "--families", "--json").stdout)["families"]
    (entry,) = [family for family in families if "plugin" in family]
    assert (entry["architecture"], entry["level"], entry["plugin"]) == ("jais2", None, "attnviz.register")
    assert {*entry["commands"].values()} == {"untried"}


def test_a_wrong_declaration_is_caught_by_the_verification(jais2_folder):
    with pytest.raises(attnviz.ArchitectureError, match="jais2"):
        attnviz.analyze("one two three", jais2_folder)
    attnviz.register(type("Wrong", (Llama,), {**JAIS2, "causal": False}))
    with pytest.raises(attnviz.VerificationError):
        attnviz.analyze("one two three", jais2_folder)


class Persimmon(GPTNeoX, name="persimmon", prefix="Persimmon"):
    """Elsen et al. 2023: GPT-NeoX with a norm of each head's queries and keys."""

    final_norm_at = "final_layernorm"
    words_at = "embed_tokens"
    attention_at = "self_attn"
    head_norm_names = ("q_layernorm", "k_layernorm")


def test_a_family_that_attnviz_lacks_is_one_class():
    settings = {"hidden_act": "relu2", "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    settings["rope_parameters"]["partial_rotary_factor"] = 0.5
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    tokenizer = gpt2_tokenizer()
    model = PersimmonForCausalLM(PersimmonConfig(vocab_size=len(tokenizer), **sizes, **settings)).eval()
    for name, parameter in model.named_parameters():
        if "query_key_value" in name or "layernorm" in name:
            parameter.data.add_(torch.randn_like(parameter), alpha=0.4)
    attnviz.register(Persimmon)
    assert attnviz.analyze("one two three", model, tokenizer=tokenizer, syntax=False).verification.level == 4
    attnviz.register(like(Persimmon, "persimmon", "Persimmon", head_norm_names=()))
    with pytest.raises(attnviz.VerificationError):
        attnviz.analyze("one two three", model, tokenizer=tokenizer, syntax=False)


@pytest.mark.parametrize(
    ("base", "changes", "word"),
    [
        (Llama, {"epsilon_setting": "rms_norm_eps"}, "norm_eps"),
        (Llama, {"network_names": Llama.network_names}, "gate_proj"),
        (Llama, {"norm_names": ("ln", None, None, None)}, "ln"),
        (Llama, {"projection_names": ("qkv", "o_proj")}, "qkv"),
        (Llama, {"layers_at": "h"}, "layers"),
        (Llama, {"class_prefix": "Jais3"}, "Jais2Model"),
        (Qwen2, {}, "layer_types"),
    ],
)
def test_a_declaration_that_names_what_is_not_there_is_one_message(jais2_folder, base, changes, word):
    attnviz.register(type("Jais2", (base,), {**JAIS2, **changes}))
    with pytest.raises(attnviz.ArchitectureError, match=word) as refused:
        attnviz.explain("one two three", jais2_folder)
    assert all(attribute in str(refused.value) for attribute in changes)


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


class SilentError(Exception):
    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize("error", [SystemExit(0), OddError("one\ntwo"), SilentError()], ids=lambda e: type(e).__name__)
def test_whatever_a_mask_raises_is_one_line(bert_folder, tmp_path, error):
    def fail(_: object) -> None:
        print("printed by a plug-in")
        raise error

    attnviz.register(replace(BACK, mask=fail))
    done = run("heads", TEXT, "-m", bert_folder, "--no-syntax", "--figures", "none", "--json", "-o", tmp_path / "out")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "'two-back'" in done.stderr
    assert done.stderr.count("\n") == 2


def test_a_registered_pattern_may_be_replaced_and_earlier_results_stay(bert_folder, tmp_path):
    def scores(result, name="two_back"):
        return [head.statistics[name] for head in result.heads]

    before = attnviz.analyze(TEXT, bert_folder, syntax=False)
    attnviz.register(BACK)
    assert "two_back" in shares()
    after = attnviz.analyze(TEXT, bert_folder, syntax=False)
    attnviz.register("two-back", BACK.mask)  # a name and a mask are a pattern
    assert max(scores(after)) > 0
    assert scores(attnviz.analyze(TEXT, bert_folder, syntax=False)) == scores(after) != scores(after, "previous")
    attnviz.register(replace(BACK, mask=lambda text: text.distances == -1))
    again = attnviz.analyze(TEXT, bert_folder, syntax=False)
    assert scores(again) == scores(again, "previous")
    assert [plugin["name"] for plugin in again.document()["plugins"]] == ["two-back"]
    before.save(tmp_path, figures=["map"], maps=["two_back"])
    assert json.loads((tmp_path / "heads.json").read_bytes())["heads"][0]["two_back"] is None
    assert before.report(200)
    attnviz.unregister("two-back")
    assert "two_back" not in shares()
    with pytest.raises(attnviz.UsageError, match="two-back"):
        attnviz.unregister("two-back")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("my.py", ""),
        ("my.py", "x = ("),
        ("my.py", "raise SystemExit"),
        ("my.py", "import attnviz\nattnviz.register('Two', lambda text: None)"),
        ("my.txt", ""),
        ("my.py", None),
    ],
)
def test_a_file_that_registers_nothing_is_one_line(tmp_path, monkeypatch, name, content):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path(name).write_text(content, encoding="utf-8")
    done = run("heads", TEXT, "--plugin", name)
    assert (done.exit_code, done.stderr.count("\n"), name in done.stderr) == (2, 1, True)


@pytest.mark.usefixtures("mine")
def test_a_registered_figure_is_drawn_and_must_keep_to_its_files(bert_folder, tmp_path):
    spread = FIGURES["heads.spread"]
    attnviz.register(spread, "rollout.spread")
    assert [view.name for view in views_of("rollout")][-1] == "spread"
    drawn = attnviz.rollout(f"spread {TEXT}", bert_folder).document(figures=["spread-x.png"])["plugins"]
    assert drawn == [{"kind": "figure", "name": "rollout.spread", "origin": "attnviz.register"}]
    assert "plugins" not in attnviz.rollout("the spread jais2 punctuation", bert_folder).document(["overview.png"])
    analysis = attnviz.analyze(TEXT, bert_folder, syntax=False)
    assert analysis.figure("spread").axes[0].get_xlabel() == "entropy (nats)"
    outside = Drawing(lambda *given: (replace(plan, stem="overview") for plan in spread.plans(*given)))
    attnviz.register(outside, "heads.outside")
    with pytest.raises(attnviz.UsageError, match="outside"):
        analysis.save(tmp_path / "out", figures=["outside"])


@pytest.mark.parametrize("plans", [lambda *_: iter([object()]), lambda *_: 1 / 0])
def test_whatever_a_figure_raises_is_one_line(plans, bert_folder, tmp_path):
    attnviz.register(Drawing(plans), "heads.broken")
    analysis = attnviz.analyze(TEXT, bert_folder, syntax=False)
    for draw in (analysis.figure, lambda name: analysis.save(tmp_path / "out", figures=[name])):
        with pytest.raises(attnviz.UsageError, match=r"heads\.broken"):
            draw("broken")


@pytest.mark.parametrize(
    ("extension", "name", "word"),
    [
        (replace(BACK, name="previous-token"), "", "previous-token"),
        (replace(BACK, name="local-back"), "", "local-back"),
        (replace(BACK, name="back-2"), "", "back-2"),
        (replace(BACK, name="special", statistic="special"), "", "special"),
        (replace(BACK, statistic="back"), "", "two_back"),
        (replace(BACK, family="locall"), "", "family"),
        (replace(BACK, chosen=True), "", "chosen"),
        (Llama, "", "llama"),
        (type("Odd", (Llama,), {**JAIS2, "norm_kind": "layer norm"}), "", "norm_kind"),
        (type("Odd", (Llama,), {**JAIS2, "norm_names": (None,)}), "", "norm_names"),
        (type("Odd", (Llama,), {"name": "jais2"}), "", "class_prefix"),
        (PatternSpec, "", "TypeError"),
        (Architecture, "", "class_prefix"),
        (replace(BACK, name=3), "", "string"),
        (Drawing(lambda *_: iter(())), "heads.map", "heads.map"),
        (3, "", "found 3"),
        ("two-back", None, "two-back"),
    ],
)
def test_what_cannot_be_registered_is_refused_by_name(extension, name, word):
    with pytest.raises(attnviz.UsageError, match=word):
        attnviz.register(extension, name)
    assert not PATTERNS.plugins
    assert not FIGURES
    assert ARCHITECTURES["llama"].causal


def test_the_words_that_no_pattern_may_begin_with_are_those_of_attnviz():
    fields = [field.name for field in result_of("heads").table(ViewOptions()).columns]
    more = ["syntactic", "sink", "broad", "offset", "total", "rows", "apart"]
    own = [*scalars(), *fields, *_LABELS, *PATTERNS, *more]
    assert {re.split("[-_: ]", name)[0] for name in own} - {*own_words(), ""} == set()
    assert {*FAMILIES} <= {family.name for family in COLOURED}
