"""README and guide say what the program does: commands and snippets run as written; options and numbers are its own."""

import ast
import importlib.util
import json
import re
import shlex
import subprocess
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from transformers import AutoTokenizer, BertConfig, BertModel, GPT2Config, GPT2LMHeadModel
from typer.main import get_command
from typer.testing import CliRunner

import attnviz
from attnviz.cli.program import app
from attnviz.judge.rules import BROAD_SHARE, HALF_OF_THE_REST, MAJORITY, MARGIN, SINK_ONLY, SINK_SHARE
from attnviz.judge.verdicts import ENOUGH, LEAST_N, LEAST_TYPES
from attnviz.language.universal import RELATIONS, SUBTYPES
from attnviz.measures.patterns import PATTERNS
from attnviz.measures.statistics import STATISTICS
from attnviz.models import sources
from attnviz.models.sources import find_checkpoint
from attnviz.present.report import views_of
from attnviz.reference.tolerances import FLOAT32_STEPS, TOLERANCES
from tests.conftest import needs_minilm, needs_parser
from tests.support.classifiers import sharp_classifier
from tests.support.corpora import examples, sentences, treebank
from tests.support.encoder_decoders import saved
from tests.support.llamas import cached_smollm2, sharp_llama
from tests.support.models import bert_tokenizer, gpt2_tokenizer, save_checkpoint, sharp_gpt2
from tests.support.relatives import RELATIVES, roberta_tokenizer, sharp
from tests.support.sounds import sharp_whisper, tone, whisper_tokenizer

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "examples" / "guide"
PAGES = {path: path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *sorted(GUIDE.glob("*.md"))]}
README = PAGES[ROOT / "README.md"]
KINDS = "heads compare profile explain outputs ablate patch rollout why circuits check card models".split()

BLOCK = re.compile(r"^```(?P<kind>\w+)\n(?P<body>.*?)^```(?:\n\n```text\n(?P<output>.*?)^```)?", re.M | re.S)
BLOCKS = [(path.stem, block) for path, page in PAGES.items() for block in BLOCK.finditer(page)]
LINES = [
    (line, block["output"] or "") for _, block in BLOCKS if block["kind"] == "sh" for line in block["body"].splitlines()
]
INSTALL = [line for line, _ in LINES if line.startswith("python3 -m venv")]
WALK = (ROOT / "examples" / "walkthrough.sh").read_text(encoding="utf-8").replace("|\n  attnviz", "| attnviz")
LINES += [
    (line.replace("$out", "out").removesuffix(" |"), "")
    for line in WALK.splitlines()
    if " attnviz heads " in f" {line}"
]
COMMANDS: dict[str, str] = {}
HELPS = [get_command(app), *get_command(app).commands.values()]  # type: ignore[attr-defined]
LINES += [(line.strip(), "") for each in HELPS for line in (each.help or "").splitlines() if "    attnviz " in line]
for line, output in LINES:
    command = line.rpartition("&& .venv/bin/")[2].replace(" -m ./", " --model ./").replace("en_ewt-ud-dev", "corpus")
    if not line.endswith("pytest"):
        COMMANDS[command] = COMMANDS.get(command) or output
SNIPPETS = [(stem, block["body"]) for stem, block in BLOCKS if block["kind"] == "python"]
DRAWS = re.compile(r"--(figures|format|map|json)|^attnviz (models|check)")
NEEDS_PROFILE = re.compile(r"--show|card (L2H\d|--all)( --figures claim.*)?$|--select det")


def page(name: str) -> str:
    return PAGES[GUIDE / f"{name}.md"]


def section(name: str, title: str) -> str:
    return page(name).split(f"\n## {title}\n")[1].split("\n## ")[0]


def typed(command: str) -> tuple[list[str], str | None]:
    """The arguments of ``attnviz`` in a line of a shell, and what is piped into it."""
    first, _, after = command.partition(" | ")
    words = shlex.split(first)
    said = f"{words[-1]}\n" if words[0] in ("echo", "printf") else None
    if said:
        words = shlex.split(after)
    return words[words.index("attnviz") + 1 :], said


def in_hub(cache: Path, name: str, folder: Path) -> None:
    """A model in the cache of the hub, of every revision that the guide names."""
    repository = cache / f"models--{name.replace('/', '--')}"
    (repository / "snapshots").mkdir(parents=True)
    (repository / "snapshots" / ("0" * 40)).symlink_to(folder, target_is_directory=True)
    (repository / "refs").mkdir()
    for revision in ("main", "step0", "step256", "step512", "step1000"):
        (repository / "refs" / revision).write_text("0" * 40)


@pytest.fixture(scope="module")
def user_files(bert_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that commands of the guide name, made small; a cache of the hub with six models; a tiny smollm2."""
    folder = tmp_path_factory.mktemp("user")
    treebank(folder / "corpus.conllu", 8)
    treebank(folder / "en_ewt-ud-train.conllu", 8, seed=1)
    examples(folder / "gap-development.tsv", 5)
    sentences(folder / "novel.txt", 5)
    blocks = {(name, block["kind"]): block["body"] for name, block in BLOCKS}
    chat = blocks["spans", "json"]
    pairs = "one two three four one two,one two four three one two, three, four\n"
    pair = {"premise": "the cat ran away", "hypothesis": "a cat ran", "gold": 1}
    contents = {
        "pairs.txt": "the cat ||| die Katze\na dog ||| ein Hund\n",
        "gold.txt": "0-0 1-1\n0?0 1-1\n",
        "claims.toml": blocks["check", "toml"],
        "chat.json": chat,
        "chats.jsonl": f"{' '.join(chat.split())}\n" * 2,
        "reviews.csv": "review,label\nthe cat ran away,good\nit was in the house,bad\n",
        "pairs.csv": f"clean,corrupt,answer,foil\n{pairs}",
        "mnli.jsonl": json.dumps(pair) + "\n",
    }
    for name, content in contents.items():
        (folder / name).write_text(content, encoding="utf-8")
    np.save(folder / "distances.npy", 7 * np.abs(np.arange(32) - np.arange(32)[:, None]) % 23 + 3.8)
    tone(folder / "speech.wav")

    words = AutoTokenizer.from_pretrained(find_checkpoint("tiny-gpt2").folder)
    gpt2 = GPT2Config(vocab_size=len(words), n_embd=48, n_layer=12, n_head=12, n_positions=128)
    heard = whisper_tokenizer()
    parts_of_speech = {"num_labels": 2, "id2label": {0: "NOUN", 1: "VERB"}, "label2id": {"NOUN": 0, "VERB": 1}}
    boundaries = {"num_labels": 2, "id2label": None, "label2id": None}
    tuned = BertModel.from_pretrained(bert_folder)
    tuned.embeddings.word_embeddings.weight.data *= 0.9
    pieces = AutoTokenizer.from_pretrained(find_checkpoint("minilm").folder)
    sizes = {"vocab_size": len(pieces), "hidden_size": 54, "num_hidden_layers": 3, "intermediate_size": 48}
    small = BertConfig(**sizes, num_attention_heads=9, initializer_range=0.4)
    models = {
        "roberta": (sharp("roberta"), roberta_tokenizer()),
        "pythia": (sharp_llama("gpt_neox"), gpt2_tokenizer()),
        "gpt2-small": (GPT2LMHeadModel(gpt2), words),
        "whisper": (sharp_whisper(heard), heard),
        "my-classifier": sharp_classifier("bert"),
        "my-tagger": sharp_classifier("bert", "ForTokenClassification", **parts_of_speech),
        "my-reader": sharp_classifier("bert", "ForQuestionAnswering", **boundaries),
        "my-esm2": (sharp("esm"), RELATIVES["esm"].tokenizer),
        "my-gpt2": (sharp_gpt2(model_class=GPT2LMHeadModel), gpt2_tokenizer()),
        "my-bert": (BertModel(small), pieces),
        "my-fine-tuned-bert": (tuned, bert_tokenizer()),
    }
    for name, (model, tokenizer) in models.items():
        save_checkpoint(model, tokenizer, folder / name)
    in_hub(folder / "hub", "bert-base-uncased", bert_folder)
    in_hub(folder / "hub", "roberta-base", folder / "roberta")
    in_hub(folder / "hub", "Helsinki-NLP/opus-mt-en-de", saved("marian", folder / "marian"))
    in_hub(folder / "hub", "EleutherAI/pythia-70m", folder / "pythia")
    in_hub(folder / "hub", "gpt2", folder / "gpt2-small")
    in_hub(folder / "hub", "openai/whisper-tiny", folder / "whisper")
    cached_smollm2(folder / "cache")
    if importlib.util.find_spec("peft"):
        import peft

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # peft's, of transformers' old names
            base, config = BertModel.from_pretrained(bert_folder), peft.LoraConfig(target_modules="all-linear")
            peft.get_peft_model(base, config).save_pretrained(folder / "my-lora")
    return folder


@pytest.fixture
def place(user_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own with the user's files."""
    for path in user_files.iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "en_ewt-ud-dev.conllu").symlink_to(user_files / "corpus.conllu")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


@pytest.fixture
def stand_in(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no number is shown, and none of a stored profile is needed: a model with minilm's words and fewer heads."""
    small = replace(find_checkpoint("minilm"), folder=place / "my-bert", sha256=None)
    monkeypatch.setitem(sources.BUILT_IN, "minilm", lambda _: small)


def missing(shown: str, printed: str) -> list[str]:
    """The parts of an output block, between lines of dots, that the program did not print in this order."""
    rest = "\n".join(line.rstrip() for line in printed.splitlines())
    lacking = []
    for part in (each.strip("\n") for each in re.split(r"^ *\.\.\.$", shown, flags=re.M)):
        before, _, after = rest.partition(part) if part else ("", "", rest)
        lacking += [] if part in rest else [part]
        rest = after or before
    return lacking


@pytest.mark.thorough
@needs_minilm
@needs_parser
@pytest.mark.usefixtures("undrawn")  # every view of every command is drawn in test_results
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_run_as_written_and_print_what_is_shown(command, place, request):
    words, said = typed(command)
    kind = words[0]
    if "--adapter" in words:
        pytest.importorskip("peft", reason="needs the extra adapters (peft)")
    if not (COMMANDS[command] or kind == "models" or NEEDS_PROFILE.search(command)):
        request.getfixturevalue("stand_in")
    if not (COMMANDS[command] or "--init" in words):
        request.getfixturevalue("few_repeats")
    if kind != "models" and "--show" not in words:
        words += [] if "--device-map" in words else ["--device", "cpu"]
        words += [] if DRAWS.search(command) else ["--figures", "none"]
    if "--init" in words:
        (place / "claims.toml").unlink()
    if "--published" in words:  # of a random model nothing holds
        done = CliRunner().invoke(app, [*words, "--limit", "30"] if "wang-2022" in words else words)
        assert "check.csv" in done.stderr, done.output
    else:
        done = CliRunner().invoke(app, words, input=said)
        assert done.exit_code == 0, done.output
    assert missing(COMMANDS[command], done.stdout) == []


@pytest.mark.thorough
@needs_minilm
def test_the_lesson_computes_a_row_as_the_screen_does() -> None:
    text = (GUIDE / "lesson.md").read_text(encoding="utf-8").partition("## Answers")[2]
    answer = text.partition("\n2. ")[2].partition("\n3. ")[0]
    numbers = re.findall(r"\d\.\d{4}", answer)
    assert len(numbers) == 10
    printed = attnviz.explain("The cat", "minilm", token="cat").report(100)
    assert [number for number in numbers if number not in printed] == []


def test_no_command_escapes_the_tests() -> None:
    assert len(COMMANDS) >= 25
    assert [line for line in COMMANDS if " attnviz " not in f" {line}"] == []
    text = [block["body"] for _, block in BLOCKS if block["kind"] == "text"]
    assert [body for body in text if re.search(r"^(attnviz|python|torchrun) ", body, re.M)] == []


@pytest.mark.thorough
@needs_minilm
@needs_parser
@pytest.mark.usefixtures("undrawn", "fresh_plugins", "place")
@pytest.mark.parametrize(("name", "code"), SNIPPETS, ids=[f"{name}-{i}" for i, (name, _) in enumerate(SNIPPETS)])
def test_snippets_run_as_written_and_give_what_they_say(name: str, code: str, request: pytest.FixtureRequest) -> None:
    assert re.search(r"^import attnviz$", code, re.M)
    said = re.findall(r"^(.+?)  # → (.+)$", code, re.M)
    if not said:
        request.getfixturevalue("stand_in")
        request.getfixturevalue("few_repeats")
    names: dict[str, object] = {}
    exec(compile(code, f"{name}.md", "exec"), names)
    for expression, value in said:
        assert str(eval(expression, names)) == value


def test_the_glossary_says_relations_in_the_words_of_the_program() -> None:
    said = re.findall(r"^- `([a-z:]+)`: (.+) → (.+)$", page("glossary"), re.MULTILINE)
    known = {**RELATIONS, **SUBTYPES}
    assert len(said) >= 15
    assert [name for name, dependent, head in said if known[name] != (dependent, head)] == []


def test_the_ablation_shown_is_that_of_the_gallery() -> None:
    (shown,) = [block["body"] for name, block in BLOCKS if name == "ablate" and block["kind"] == "text"]
    printed = (ROOT / "examples" / "gallery" / "ablate-tiny-gpt2" / "tables.txt").read_text(encoding="utf-8")
    assert missing(shown, printed) == []


def messages() -> Iterator[str]:
    """The strings of the program, with … in place of what is filled in."""

    def text(node: ast.expr) -> str:
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        return "".join(part.value if isinstance(part, ast.Constant) else "…" for part in parts)

    for path in (ROOT / "attnviz").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
                yield text(node)


def test_the_messages_of_troubleshooting_are_the_messages_of_the_program() -> None:
    shown = re.findall(r"^\| `(.+?)` \|", page("troubleshooting").split("\n## No error")[0], re.M)
    known = list(messages())
    assert len(shown) >= 10
    assert [message for message in shown if not any(message in each for each in known)] == []


def test_links_lead_somewhere_and_the_index_has_every_page() -> None:
    assert f"version = {{{attnviz.__version__}}}" in README
    assert [path.name for path in PAGES if path.parent == GUIDE and path.stem not in page("README")] == []
    for path, content in PAGES.items():
        for target in re.findall(r"\]\((?!https?:)([^)]+)\)", content):
            name, _, anchor = target.partition("#")
            found = (path.parent / name).resolve() if name else path
            assert found.exists(), target
            titles = re.findall(r"^#+ (.*)$", PAGES.get(found, ""), re.M)
            anchors = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]
            assert not anchor or anchor in anchors, target


def script(path: str) -> Any:
    """A module that is no part of a package."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_llms_txt_and_the_navigation_of_the_site_have_every_page() -> None:
    site = script(".ci/guide_site.py")
    pages = {path.relative_to(ROOT).as_posix() for path in PAGES}
    index = "examples/guide/README.md"
    assert set(re.findall(r"^- \[[^]]+\]\(([^)]+)\)", site.llms_txt(), re.M)) == pages - {index}
    config = site.on_config(SimpleNamespace())
    assert pages - set(re.findall(r"'([\w/.-]+\.md)'", str(config.nav))) == set()


def test_the_two_commands_install_with_the_constraints_of_ci_which_runs_the_second_as_written() -> None:
    first, second = INSTALL
    assert first.startswith("python3 -m venv .venv && .venv/bin/pip install -c .ci/constraints.txt")
    assert f"<!-- command: demo -->\n```sh\n{first}\n```" in README
    assert second.endswith("-m pytest")
    extract = re.search(r"command=\$\((awk .*? README\.md)\)", (ROOT / ".ci" / "run").read_text("utf-8"), re.S)
    assert extract is not None
    found = subprocess.run(extract[1], shell=True, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    assert found == second


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("check", "models")])
def test_figures_are_named_by_help_and_guide_as_by_the_program(kind: str) -> None:
    names = [view.name for view in views_of(kind)]
    assert [name for name in names if f"`{name}`" not in page(kind)] == []
    printed = " ".join(CliRunner().invoke(app, [kind, "--help"], terminal_width=500).stdout.split())
    assert ", ".join(names) in printed


def test_the_options_of_the_guide_are_the_options_of_the_program() -> None:
    assert script("examples/make_options_table.py").page() == page("options")


def row(name: str, title: str, first: str) -> str:
    """The row of a table of the guide that begins with this name."""
    (found,) = [line for line in section(name, title).splitlines() if line.startswith(f"| `{first}`")]
    return found


@pytest.mark.parametrize(
    ("label", "numbers"),
    [
        ("sink", [SINK_SHARE, round(MARGIN * 100)]),
        ("previous-token", [MAJORITY, round(MARGIN * 100), SINK_ONLY]),
        ("induction", [MAJORITY, round(MARGIN * 100), LEAST_TYPES]),
        ("syntactic:nsubj", [round(MARGIN * 100), ENOUGH, LEAST_N]),
        ("local", [HALF_OF_THE_REST, SINK_ONLY]),
        ("broad", [round(BROAD_SHARE, 2)]),
    ],
)
def test_the_thresholds_of_the_guide_are_the_thresholds_of_the_program(label: str, numbers: list[float]) -> None:
    stated = re.findall(r"[\d.]*\d", row("numbers", "Labels", label).split("|")[2])
    assert [number for number in numbers if str(number) not in stated] == []


def test_the_guide_has_a_row_of_every_pattern_with_its_source() -> None:
    assert [spec.name for spec in PATTERNS.values() if spec.source not in row("numbers", "Patterns", spec.name)] == []


def test_the_guide_has_a_row_of_every_statistic_with_its_source() -> None:
    rows = [
        re.split(r"(?<!\\)\|", line)
        for line in section("numbers", "Statistics of a head").splitlines()
        if line[:1] == "|"
    ]
    sources = {cells[1].split()[0].strip("`…"): cells[3].strip() for cells in rows}
    sourced = {statistic.name: statistic.source for statistic in STATISTICS.natives.values() if statistic.source}
    assert sourced == {name: sources[name] for name in sourced}


def test_the_tolerances_of_the_guide_are_the_tolerances_of_the_program() -> None:
    text = section("verification", "Tolerances")
    halves = [TOLERANCES[torch.float16].output, TOLERANCES[torch.bfloat16].output]
    for tolerance in [*(each.pattern for each in TOLERANCES.values()), *halves, FLOAT32_STEPS.pattern]:
        assert f"{tolerance:.0e}".replace("e-0", "e-") in text


def test_the_families_of_the_guide_are_those_that_are_declared() -> None:
    assert script("examples/make_families_table.py").table() in page("models")


@pytest.mark.thorough
@needs_minilm
def test_the_python_example_runs(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = (ROOT / "examples" / "explore_heads.py").read_text(encoding="utf-8")
    exec(compile(code, "explore_heads.py", "exec"), {})
    assert "the model is still set to sdpa" in capsys.readouterr().out
