"""Examples as people see them: printed from a stored profile, drawn, on the page."""

import copy
import json
from dataclasses import replace
from io import StringIO

import pytest
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from rich.console import Console
from typer.testing import CliRunner

from attnviz.cli.program import app
from attnviz.commands.profile.measure import profile_heads
from attnviz.commands.profile.show import (
    StoredPictures,
    chosen_examples,
    example_tables,
    examples_document,
    named_examples,
)
from attnviz.commands.profile.views import ROLES, plan_relations
from attnviz.errors import AttnvizError
from attnviz.figures import Style
from attnviz.figures.card import draw_sentences
from attnviz.models.checkpoint import from_loaded
from attnviz.models.sources import Source
from attnviz.present.documents import json_text
from attnviz.present.view import ViewOptions
from attnviz.profiles.parts import merged
from attnviz.profiles.store import find_profile, profile_file_name, read_profile, store_profile
from tests.support import corpora
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
    passed = [replace(role, holds=True) for role in roles]
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


def test_examples_of_a_head_are_printed_without_a_corpus(profile, saved, bert_folder):
    of = first(profile)
    done = show(saved, "--show", of.id, "--top", 0)
    assert done.exit_code == 0, done.stderr
    best, failure = of.best[0], of.failures[0]
    marked = f"[{best.query.text}]", f"{{{failure.key.text}}}", f"({failure.gold[1].text})"
    shown = (f"{of.id} {of.role.removeprefix('syntactic:')}", f"{best.weight:.2f}", *marked)
    assert [part for part in shown if part not in done.stdout] == []
    assert show(saved / "profile.json", "--show", of.id, "--top", 0).stdout == done.stdout
    document = profile.document()  # a stored one is found by the weights of its model
    weights = profile_heads(bert_folder, [], repeats=True, control=False).weights_sha256
    store_profile(document | {"model": document["model"] | {"weights_sha256": weights}}, "2026-11-22")
    assert shown[0] in show("--show", of.id, "-m", bert_folder).stdout


@pytest.mark.parametrize(("given", "each"), [((), 2), (("--top", 1), 1), (("--top", 0), 3)])
def test_a_few_examples_of_each_group_are_shown_unless_more_are_asked_for(profile, saved, given, each):
    of = first(profile)
    lines = show(saved, "--show", of.id, "--show", of.role, *given).stdout.splitlines()
    names = [line.split()[0] for line in lines if line.split()[:1] in (["best"], ["failure"])]
    assert names == ["best"] * each + ["failure"] * each


def paper_rows(saved, name):
    table = show(saved, "--show", name, "--table", "md").stdout
    return [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]


def test_the_roles_of_a_stored_profile_are_a_table_again_without_a_measurement(profile, saved):
    passed = [role for role in profile.roles if role.holds]
    header, _, *rows = paper_rows(saved, "syntactic")
    assert header == ["relation", "head", "direction", "score [low, high]", "baseline", "n"]  # without a control
    of = [role for role in passed if role.relation]
    assert [row[:2] for row in rows] == [[role.relation, str(role.id)] for role in of]
    assert [row[4].partition(" ")[2] for row in rows] == [max(role.baselines, key=role.baselines.get) for role in of]
    assert len(paper_rows(saved, "roles")) == 2 + len(passed)
    content = json.loads(show(saved, "--show", "roles", "--json").stdout)
    assert [(each["id"], each["role"]) for each in content["roles"]] == [(str(x.id), x.role) for x in passed]


def test_a_stored_profile_draws_the_pictures_of_the_run_that_measured(profile, saved, tmp_path):
    stored = StoredPictures(read_profile(saved), "", {})
    plans = [plan for each in (profile, stored) for plan in plan_relations(each, ViewOptions())]
    not_read = {"threshold": "", "p": None, "q": None}
    measured, drawn = (
        [(row.relation, row.n, row.largest_guess, vars(row.verdict) | not_read) for row in plan.rows] for plan in plans
    )
    assert (drawn, len(drawn) > 3) == (measured, True)
    maps = [next(ROLES.plans(each, ViewOptions())).maps[0] for each in (profile, stored)]
    assert (maps[0].texts, maps[0].layers) == (maps[1].texts, maps[1].layers)
    drawing = ("--figures", "all", "--format", "svg", "--width", "column", "-o", tmp_path / "drawn")
    done = show(saved, "--show", "roles", *drawing)
    assert (done.exit_code, (tmp_path / "drawn" / "relations.svg").exists()) == (0, True), done.output
    assert 'width="237.6pt"' in (tmp_path / "drawn" / "roles.svg").read_text()
    assert (tmp_path / "drawn" / "profile.csv").read_text() == (saved / "profile.csv").read_text()
    assert show(tmp_path / "drawn", "--show", "roles").stdout == show(saved, "--show", "roles").stdout
    (passed, *_) = [each for each in profile.roles if each.holds]
    table = ("--show", str(passed.id), "--show", passed.role, "--table", "md")
    show(saved, *table, "-o", tmp_path / "table")
    assert (tmp_path / "table" / "profile.md").read_text() == show(saved, *table).stdout


def test_the_relation_of_a_sentence_is_in_the_short_table_however_rare_it_is(profile):
    rare = profile.judged_relations[-1]
    held = replace(rare.verdict, holds=True)
    others = [replace(role, holds=False) for role in profile.roles if (role.id, role.role) != (held.id, held.role)]
    of_one = replace(profile, roles=(held, *others))
    below_the_rule = of_one.report().partition("Relations (")[2].partition("──\n")[2]
    assert below_the_rule.startswith(f"{rare.relation} ")


def shown_examples(saved, *names):
    """Head and role of each list of examples that is shown."""
    given = [part for name in names for part in ("--show", name)]
    content = json.loads(show(saved, *given, "--json").stdout)
    assert content["model"]["n_heads"] == 4
    return [(each["id"], each["role"]) for each in content["examples"]["roles"]]


def test_heads_layers_and_roles_are_chosen_together(profile, saved):
    of = first(profile)
    every = [(str(each.id), each.role) for each in profile.examples]
    assert shown_examples(saved, f"{of.id},{of.role.removeprefix('syntactic:')}") == [(str(of.id), of.role)]
    assert shown_examples(saved, of.role) == [each for each in every if each[1] == of.role]
    assert shown_examples(saved, "subject") == shown_examples(saved, "nsubj")
    layer = f"L{of.id.layer}"
    expected = [(id, role) for id, role in every if id.startswith(layer) and "syntactic" in role]
    assert shown_examples(saved, layer, "syntactic") == expected


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ("{saved} --show L9H0", "L9H0"),
        ("{saved} --show amod", "amod"),
        ("{saved} --show=", "name"),
        ("{saved} --show L0H0 --figures roles --no-control", "--no-control"),
        ("{saved} --show sink --table md", "sink"),
        ("{saved} --show L0H3 --table md", "L0H3"),
        ("{saved} --show roles --figures page", "page"),
        ("{old}.json --show roles --figures relations -o {old}", "relations"),
        ("{none}.json --show L0H0", "--examples"),
        ("{missing}.json --show L0H0", "missing.json"),
        ("{saved}/profile.csv --show L0H0", "profile.csv"),
        ("--show L0H0 -m tiny-gpt2", "tiny-gpt2"),
    ],
)
def test_bad_names_are_one_line_each(saved, tmp_path, arguments, word):
    document = json.loads((saved / "profile.json").read_text()) | {"examples": None}
    (tmp_path / "none.json").write_text(json.dumps(document))
    for relation in document["syntax"]["relations"]:
        del relation["best"]["role"]
    (tmp_path / "old.json").write_text(json.dumps(document))
    places = {"saved": saved, "old": tmp_path / "old", "none": tmp_path / "none", "missing": tmp_path / "missing"}
    done = show(*(part.format_map(places) for part in arguments.split()))
    assert (done.exit_code in (1, 2), done.stdout, done.stderr.count("\n")) == (True, "", 1), done.output
    assert word in done.stderr


def small(document):
    """A profile with one of everything that is read again, and none of the matrices."""
    of, kept = document["examples"], document["examples"]["roles"][0]
    (best, *_), text = kept["best"], of["texts"][kept["best"][0]["text"]]
    examples = {"texts": [text], "roles": [kept | {"best": [best | {"text": 0}], "failures": []}]}
    parts = {"statistics": {}, "syntax": {"gold": True}, "coreference": {}, "published": [], "verification": {}}
    whole = document | parts | {"examples": examples | {"licences": {text["corpus"]: "CC0"}}}
    whole["roles"] = [role for role in document["roles"] if (role["id"], role["role"]) == (kept["id"], kept["role"])]
    return merged(whole, None, "2026-11-22").document


def places(value, at=()):
    """Where every value of a document stands, its own place first."""
    yield at
    for key, below in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(below, (*at, key))


GONE = object()


def spoiled(document, at, other):
    whole = below = copy.deepcopy(document)
    for key in at[:-1]:
        below = below[key]
    below[at[-1]] = other
    if other is GONE:
        del below[at[-1]]
    return whole


@pytest.mark.thorough
def test_no_damage_of_a_profile_is_a_traceback(profile, tmp_path, user_folder):
    """Every value gone, or of another kind or size: it is shown, or refused in a line, and so is a stored one."""
    document, named = small(json.loads(json.dumps(profile.document()))), tmp_path / "profile.json"
    others = (GONE, None, "x", [], {}, -5, 99, float("nan"), True, "\ud800\x1b")
    stored, source = user_folder / profile_file_name(document), Source("m", tmp_path, None, profile.weights_sha256)
    shape, run = stored.name.rpartition("-")[0], {**document, "roles": [], "corpora": [], "examples": None}
    user_folder.mkdir(parents=True)
    shown = refused = tried = 0
    for count, at in enumerate(filter(None, places(document))):
        for other in others[count % 5 :: 5]:
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
            json_text(examples_document(read, chosen)).encode()
            console = Console(file=StringIO())
            console.print(*example_tables(read, chosen, 0))
            console.file.getvalue().encode()
        tried += len(others[count % 5 :: 5])
    assert min(shown, refused) > 20
    assert shown + refused == tried  # each error is one line


def test_arcs_of_hits_and_misses_differ_in_shape_and_colour(profile):
    style, sentences = Style("dark"), named_examples(first(profile))
    ax = Figure().subplots()
    draw_sentences(ax, "a heading", sentences, 7.0, style)
    colours = {line.get_marker(): line.get_color() for line in ax.lines if line.get_markerfacecolor() != style.paper}
    examples = [each.example for each in sentences]
    assert {each.hit for each in examples} == {True, False}
    assert set(colours) == {"o", "X"}
    assert colours["o"] != colours["X"]
    arcs = [patch for patch in ax.patches if isinstance(patch, PathPatch)]
    assert len(arcs) == len(examples) + sum(not each.hit and each.gold is not None for each in examples)
