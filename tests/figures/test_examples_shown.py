"""Examples as people see them: printed from a stored profile, drawn, on the page."""

import copy
import json
from dataclasses import replace
from io import StringIO

import pytest
from matplotlib.patches import PathPatch
from rich.console import Console
from typer.testing import CliRunner

from attnviz.cli.program import app
from attnviz.commands.profile.examples_view import examples_figure, plan_examples
from attnviz.commands.profile.measure import profile_heads
from attnviz.commands.profile.show import chosen_examples, example_tables, examples_document
from attnviz.errors import AttnvizError, UsageError
from attnviz.figures import Style
from attnviz.models.checkpoint import from_loaded
from attnviz.models.head_ids import HeadId
from attnviz.models.sources import Source
from attnviz.present.documents import json_text
from attnviz.present.view import ViewOptions
from attnviz.profiles.parts import merged
from attnviz.profiles.store import find_profile, profile_file_name, read_profile, store_profile
from tests.conftest import needs_minilm
from tests.support import corpora
from tests.support.encoder_decoders import sharp, unigram_tokenizer
from tests.support.models import bert_tokenizer, sharp_bert

pytest.importorskip("conllu", reason="needs the extra profile")


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    """Of a model whose L0H1 is said to pass two roles."""
    folder = tmp_path_factory.mktemp("corpora")
    paths = [corpora.treebank(folder / "trees.conllu", 60), corpora.examples(folder / "gap.tsv", 20)]
    found = profile_heads(from_loaded(sharp_bert(), bert_tokenizer()), paths, control=False, examples=3)
    (example, *_) = [each for each in found.examples if each.role.startswith("syntactic:")]
    roles = [role for role in found.roles if (role.id, role.role) == (example.id, example.role)]
    passed = [replace(role, passed=True) for role in roles]
    return replace(found, roles=(*passed, *(role for role in found.roles if role not in roles)))


@pytest.fixture(scope="module")
def saved(profile, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    profile.save(folder, figures=[])
    return folder


def show(*arguments):
    return CliRunner().invoke(app, ["profile", *map(str, arguments)])


def first(profile):
    return next(each for each in profile.examples if each.role.startswith("syntactic:"))


def test_examples_of_a_head_are_printed_without_a_corpus(profile, saved):
    of = first(profile)
    done = show(saved, "--show", of.id)
    assert done.exit_code == 0, done.stderr
    assert f"{of.id} {of.role.removeprefix('syntactic:')}" in done.stdout
    assert f"{of.best[0].weight:.2f}" in done.stdout
    assert f"[{of.best[0].query.text}]" in done.stdout
    assert f"{{{of.failures[0].key.text}}}" in done.stdout
    assert f"({of.failures[0].gold[1].text})" in done.stdout
    assert show(saved / "profile.json", "--show", of.id).stdout == done.stdout


def test_heads_and_roles_are_chosen_together(profile, saved):
    of = first(profile)
    name = of.role.removeprefix("syntactic:")
    both = json.loads(show(saved, "--show", f"{of.id},{name}", "--json").stdout)
    assert [(each["id"], each["role"]) for each in both["examples"]["roles"]] == [(str(of.id), of.role)]
    every = json.loads(show(saved, "--show", of.role, "--json").stdout)
    assert [each["id"] for each in every["examples"]["roles"]] == [
        str(each.id) for each in profile.examples if each.role == of.role
    ]
    assert both["model"]["n_heads"] == 4


def test_layers_and_all_relations_are_shown(profile, saved):
    of = first(profile)
    content = json.loads(show(saved, "--show", f"L{of.id.layer}", "--show", "syntactic", "--json").stdout)
    assert [each["id"] for each in content["examples"]["roles"]] == [
        str(each.id) for each in profile.examples if each.id.layer == of.id.layer and "syntactic" in each.role
    ]


@pytest.mark.parametrize("given", [("--figures", "examples"), ("--select", "L0H0")])
def test_a_figure_of_examples_that_cannot_be_is_refused_before_anything_is_measured(tmp_path, given):
    path = corpora.treebank(tmp_path / "trees.conllu", 3)
    for asked in ((path, "--examples", "0"), ("--repeats",)):
        done = show(*asked, *given, "-m", "no-such-model", "-o", tmp_path / "out")
        assert done.exit_code == 2
        assert "the figure examples needs a corpus and --examples above 0" in done.stderr


def test_bad_names_are_one_line_each(saved, profile, tmp_path):
    document = json.loads((saved / "profile.json").read_text())
    none, damaged, other, broken = (tmp_path / f"{name}.json" for name in ("none", "damaged", "other", "broken"))
    broken.write_text('{"a":')
    none.write_text(json.dumps(document | {"examples": None}))
    damaged.write_text(json.dumps(document | {"examples": {"texts": [], "roles": [{}]}}))
    other.write_text("[]")
    no_roles = tmp_path / "no-roles.json"
    no_roles.write_text(json.dumps(document | {"roles": [1]}))
    of = first(profile)
    elsewhere = next(each.role for each in profile.examples if each.id != of.id and each.role not in {
        role.role for role in profile.examples if role.id == of.id})  # fmt: skip
    for arguments, found in (
        ((saved, "--show", "L9H0"), "the model has no head L9H0; it has L0H0 to L2H3"),
        ((saved, "--show", "amod"), "expected a role or relation with examples ("),
        ((saved, "--show", of.id, "--show", elsewhere), "there are no examples of"),
        ((none, "--show", "L0H0"), "has no examples: expected one of a corpus, with --examples above 0"),
        (
            (damaged, "--show", "L0H0"),
            "damaged.json is damaged: expected a string for examples.roles[0].id, found nothing; "
            "make it again with attnviz profile, or name the folder of a profile.",
        ),
        ((tmp_path / "missing.json", "--show", "L0H0"), "No such file or directory"),
        ((tmp_path, "--show", "L0H0"), "expected a profile.json at"),
        ((saved / "profile.csv", "--show", "L0H0"), "--show reads no corpus"),
        ((broken, "--show", "L0H0"), "is damaged: found broken JSON (Expecting value: line 1 column 6 (char 5));"),
        ((other, "--show", "L0H0"), "other.json is damaged: expected an object for the document, found a list;"),
        ((no_roles, "--show", "L0H0"), "no-roles.json is damaged: expected an object for roles[0], found 1;"),
        ((saved, "--show", "L9"), "layers such as L2 or a head such as L2H8 or 2.8, found 'L9'"),
        (
            (saved, "--show", "L0H0", "--figures", "roles", "--limit", "3", "--no-control", "--theme", "dark"),
            "--show prints examples and writes no files: leave out --limit, --no-control, --figures, --theme.",
        ),
        (("--show", "L0H0", "-m", "tiny-gpt2"), "no profile of tiny-gpt2 is stored: make one"),
        ((saved, "--show", ""), "expected names with commas between"),
    ):
        done = show(*arguments)
        assert done.exit_code in (1, 2), (arguments, done.output)
        assert found in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
        assert done.stdout == ""


def small(document):
    """A profile with one of everything that is read again, and none of the matrices."""
    of, kept = document["examples"], document["examples"]["roles"][0]
    (best, *_), text = kept["best"], of["texts"][kept["best"][0]["text"]]
    examples = {"texts": [text], "roles": [kept | {"best": [best | {"text": 0}], "deciles": [], "failures": []}]}
    whole = document | {
        "examples": examples | {"licences": {text["corpus"]: "CC0"}},
        "published": [],
        "verification": {},
    }
    whole |= {"statistics": {}, "syntax": {"gold": True}, "coreference": {}}
    whole["roles"] = [role for role in document["roles"] if (role["id"], role["role"]) == (kept["id"], kept["role"])]
    return merged(whole, None, "2026-11-22").document


def places(value, at=()):
    """Where every value of a document stands, its own place first."""
    yield at
    for key, below in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(below, (*at, key))


GONE = object()


def spoiled(document, at, other):
    """A copy with another value there, or none."""
    whole = below = copy.deepcopy(document)
    for key in at[:-1]:
        below = below[key]
    below[at[-1]] = other
    if other is GONE:
        del below[at[-1]]
    return whole


def test_no_damage_of_a_profile_is_a_traceback(profile, tmp_path, user_folder):
    """Every value gone, or of another kind or size: it is shown, or refused in a line, and so is a stored one."""
    document, named = small(json.loads(json.dumps(profile.document()))), tmp_path / "profile.json"
    stored, source = user_folder / profile_file_name(document), Source("m", tmp_path, None, profile.weights_sha256)
    shape, run = stored.name.rpartition("-")[0], {**document, "roles": [], "corpora": [], "examples": None}
    user_folder.mkdir(parents=True)
    shown, refused = 0, 0
    for at in filter(None, places(document)):
        for other in (GONE, None, "x", [], {}, -5, 99, float("nan"), True, "\ud800\x1b"):
            text = json.dumps(spoiled(document, at, other))
            named.write_text(text)
            stored.write_text(text)
            told = []
            store_profile(run, "2026-11-23", warn=told.append)
            stored.write_text(text)
            found = find_profile(source, shape, told.append)
            assert (found is None) == (len(told) == 2), (at, other, told)
            try:
                read = read_profile(named)
                chosen = chosen_examples(read, ["det"])
            except AttnvizError as error:
                refused += len(str(error).splitlines())
                continue
            shown += 1
            json_text(examples_document(read, chosen), 2).encode()
            console = Console(file=StringIO())
            console.print(*example_tables(read, chosen, 100))
            console.file.getvalue().encode()
    assert shown > 100
    assert refused > 500
    assert shown + refused == 10 * len(list(places(document))[1:])  # each error is one line


def test_a_profile_of_an_encoder_decoder_is_shown(tmp_path):
    tokenizer, path = unigram_tokenizer(), corpora.treebank(tmp_path / "trees.conllu", 30)
    model = from_loaded(sharp("t5", len(tokenizer)), tokenizer)
    profile_heads(model, [path], control=False, examples=2).save(tmp_path / "out", figures=[])
    done = show(tmp_path / "out", "--show", "E1H2")
    assert (done.exit_code, done.stdout[:4]) == (0, "E1H2"), done.output
    assert "layers such as E1 or a head such as E0H0, found 'L1'" in show(tmp_path / "out", "--show", "L1").stderr


def test_a_stored_profile_is_read_by_the_weights_of_its_model(profile, bert_folder, user_folder):
    weights = profile_heads(bert_folder, [], repeats=True, control=False).weights_sha256
    document = profile.document()
    document["model"] = document["model"] | {"weights_sha256": weights}
    store_profile(document, "2026-11-22")
    of = first(profile)
    done = show("--show", of.id, "-m", bert_folder)
    assert done.exit_code == 0, done.stderr
    assert f"{of.id} {of.role.removeprefix('syntactic:')}" in done.stdout


@needs_minilm
def test_the_shipped_profile_is_read_and_names_its_licence():
    done = show("--show", "L2H8", "--show", "det")
    assert done.exit_code == 0, done.stderr
    assert "L2H8 det dep→head (score 0.81, baseline 0.59, n = 1,817" in done.stdout
    assert "CC BY-SA 4.0" in " ".join(done.stdout.split())


# --- drawn


def test_each_head_with_a_role_has_a_picture_and_selected_ones_without(profile):
    passed = [head for head, roles in profile.passed_roles().items() if roles]
    stems = [plan.stem for plan in plan_examples(profile, ViewOptions())]
    assert stems == [f"examples/{head.file_stem}" for head in passed]
    (chosen,) = plan_examples(profile, ViewOptions(select=("L2H3",)))
    assert chosen.stem == "examples/L02H03"
    with pytest.raises(UsageError, match="there are no examples of L2H3"):
        next(iter(plan_examples(replace(profile, examples=profile.examples[:1]), ViewOptions(select=("L2H3",)))))
    with pytest.raises(UsageError, match="there is no figure 'examples': this profile has no examples"):
        replace(profile, examples=()).figure("examples")


@pytest.mark.parametrize("width", [7.0, 3.3])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_arcs_and_words_fit_and_hits_and_misses_differ_in_shape_and_colour(profile, width, theme):
    style = Style(theme, width=width)
    plan = next(plan_examples(profile, ViewOptions(style=style)))
    figure = examples_figure(plan, style)
    figure.draw_without_rendering()
    (ax,) = figure.axes
    ends = [line for line in ax.lines if line.get_markerfacecolor() != style.greys.paper]
    colours = {line.get_marker(): line.get_color() for line in ends}
    examples = [strip.example for _, strips in plan.roles for strip in strips]
    assert {each.hit for each in examples} == {True, False}
    assert set(colours) == {"o", "X"}
    assert colours["o"] != colours["X"]
    arcs = [patch for patch in ax.patches if isinstance(patch, PathPatch)]
    assert len(arcs) == len(examples) + sum(not each.hit and each.gold is not None for each in examples)
    page, (legend,) = figure.bbox, figure.legends
    assert legend.get_window_extent().x0 == pytest.approx(ax.texts[0].get_window_extent().x0, abs=0.03 * figure.dpi)
    for text in ax.texts:
        box = text.get_window_extent()
        assert page.x0 <= box.x0
        assert box.x1 <= page.x1
        assert text.get_fontsize() >= 5.5


def test_a_pair_far_apart_is_drawn_with_an_ellipsis_between(profile):
    of = first(profile)
    example = replace(of.best[0], text="start " + "very " * 80 + "end", hit=True, gold=None, gold_weight=None)
    ends = [type(example.query)("start", 0, 5), type(example.query)("end", len(example.text) - 3, len(example.text))]
    wide = replace(of, best=(replace(example, query=ends[0], key=ends[1]),), deciles=(), failures=())
    style = Style(width=3.3)
    changed = replace(profile, examples=(wide,))
    figure = examples_figure(next(plan_examples(changed, ViewOptions(style=style, select=(str(of.id),)))), style)
    words = [text.get_text() for text in figure.axes[0].texts]
    assert {"start", "…", "end"} <= set(words)
    assert HeadId.parse(str(of.id)) == of.id
