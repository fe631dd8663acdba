"""Command lines: what cannot be done is one message and an exit code; what can be done, command by command.

What all commands share is held by test_cli, for heads.
"""

import copy
import json
import shlex
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertForMaskedLM
from typer.testing import CliRunner, Result

import attnviz
from attnviz.cli.options import GROUPS
from attnviz.cli.program import app
from attnviz.errors import VerificationError
from attnviz.models import opening, sources
from attnviz.reference import attention as reference
from attnviz.reference.attention import transformed_values
from attnviz.reference.layer import ACTIVATIONS
from tests.conftest import SENTENCE
from tests.support.ablations import masked_token_model, next_token_model
from tests.support.command_line import FUNCTIONS, PARAMETERS, flag_for
from tests.support.corpora import sentences, treebank
from tests.support.models import bert_tokenizer, save_checkpoint, sharp_bert

TEXT, OTHER = "the cat that i saw ran away", "the dog that i saw ran away"
TOO_LONG = "the cat " * 40


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, bert_folder: Path, gpt2_folder: Path) -> dict[str, Path]:
    """Checkpoints by name; of ``tuned`` one head of the last layer is turned round, ``loud`` heads drown b_O."""
    place, tuned = tmp_path_factory.mktemp("models"), copy.deepcopy(sharp_bert())
    with torch.no_grad():
        tuned.encoder.layer[2].attention.self.query.weight[8:16] *= -1
    masked = sharp_bert(model_class=BertForMaskedLM)
    return {
        "bert": bert_folder,
        "gpt2": gpt2_folder,
        "tuned": save_checkpoint(tuned, bert_tokenizer(), place / "fine-tuned"),
        "masked": save_checkpoint(masked, bert_tokenizer(), place / "masked"),
        "loud-bert": save_checkpoint(*masked_token_model(), place / "tiny-bert"),
        "loud-gpt2": save_checkpoint(*next_token_model(), place / "tiny-gpt2"),
    }


@pytest.fixture
def run(folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a line in an empty folder, with models by their names in ``folders``, into ``out``."""
    monkeypatch.chdir(tmp_path)

    def typed(command: str, *arguments: str, model: str = "", out: str = "out", stdin: str | None = None) -> Result:
        of_models = [word for name in filter(None, model.split("+")) for word in ("-m", str(folders.get(name, name)))]
        of_output = ["-o", out] if out else []
        return CliRunner().invoke(app, [command, *arguments, *of_models, *of_output], input=stdin)

    return typed


def document(command: str, folder: str = "out") -> Any:
    return json.loads(Path(folder, f"{command}.json").read_text(encoding="utf-8"))


def names(folder: str = "out") -> set[str]:
    return {path.name for path in Path(folder).iterdir()}


def on_one_line(result: Result) -> str:
    return " ".join((result.stdout + result.stderr).replace("│", " ").split())


# --- what cannot be done

OF_THE_COMMAND_LINE = "model revision adapter tokenizer source_language target_language each_line show plugin".split()
INSTEAD_OF_A_TEXT = ["audio", "chat"]
USES = {
    "heads": "TEXT -m bert --no-syntax", "compare": "TEXT OTHER -m bert --no-syntax", "explain": "TEXT -m bert",
    "rollout": "TEXT -m bert", "patch": "'the cat' --corrupt 'the dog' -m gpt2",
    "why": "TEXT -m bert --head L2H1",
    "circuits": "-m bert", "check": "claims.toml -m bert", "card": "L2H1 TEXT -m bert",
    "outputs": "TEXT -m loud-bert", "ablate": "TEXT -m gpt2", "profile": "trees.conllu -m bert", "models": "",
}  # fmt: skip
"""What stands in a line of the table for three dots."""

REFUSED: list[tuple[str, int, str]] = [
    # texts
    ("heads '' -m bert", 1, "TEXT is empty"),
    ("heads \u200b -m bert", 1, "no tokens"),
    ("heads ... --pair '  '", 1, "pair is blank"),
    ("heads TEXT -m gpt2 --pair b", 1, "segments"),
    ("heads LONG -m bert", 1, "40 positions"),
    ("compare - - -m bert", 2, "standard input"),
    ("ablate nowhere.conllu -m gpt2", 1, "nowhere.conllu"),
    ("heads The cat", 2, "in quotes"),
    ("compare The cat ran", 2, "in quotes"),
    ("heads caf\udce9 -m gpt2", 1, "0xe9"),
    ("ablate caf\udce9 -m gpt2", 1, "0xe9"),
    ("outputs cat -m gpt2 --answer \udce9", 1, "--answer"),
    ("compare TEXT", 2, "two models"),
    ("compare TEXT OTHER -m bert -m bert", 2, "2 models"),
    ("compare 'the cat' 'the cat ran' -m bert", 1, "4 and 5 tokens"),
    ("compare 'the unbelievable cat' 'the white cat' -m bert", 1, "--words"),
    ("profile -m bert", 2, "nothing to measure"),
    ("profile broken.txt -m bert", 1, "broken.txt:1"),
    ("profile empty.txt -m bert", 1, "empty.txt"),
    ("ablate -m gpt2", 2, "nothing to measure"),
    ("ablate '' -m gpt2", 1, "empty or blank"),
    # models
    ("heads TEXT -m ./nothing", 1, "found nothing"),
    ("heads TEXT -m no-such-model", 1, "minilm"),
    ("heads TEXT -m ''", 2, "--model is empty"),
    ("models ./nothing", 1, "config.json"),
    ("models ''", 2, "NAME is empty"),
    ("models --families --verify", 2, "--verify"),
    ("heads ... --revision main", 2, "revisions"),
    ("compare ... --revision a --revision b", 2, "--revision"),
    ("heads ... --device gpu", 2, "cuda"),
    ("heads ... --dtype int8", 2, "float32"),
    ("heads TEXT -m bert --parser zz", 1, "'zz'"),
    ("heads TEXT -m bert --parser spacy", 1, "Installed"),  # a package, but no pipeline
    # heads, layers, tokens
    ("heads ... --select L3H0", 2, "layers 0 to 2"),
    ("explain ... --layer 3", 2, "no layer 3"),
    ("explain ... --head L0H7", 2, "L0H7"),
    ("heads ... --token zebra", 2, "zebra"),
    ("explain ... --token saw#0", 2, "saw#1"),
    ("outputs TEXT -m bert --token cat", 2, "--token"),
    ("rollout ... --token '#9'", 2, "#8"),
    ("rollout ... --residual 2", 2, "--residual"),
    ("ablate ... --method magic", 2, "magic"),
    ("patch cat -m gpt2", 2, "--corrupt"),
    ("patch TEXT --corrupt '  ' -m gpt2", 1, "blank"),
    ("patch 'the cat' --corrupt 'the dog ran' -m gpt2", 1, "“ran”"),
    ("patch cat --corrupt cat -m gpt2", 1, "same"),
    ("patch ... --foil ' dog'", 2, "--answer"),
    ("patch ... --metric loss", 2, "--answer"),
    ("patch ... --label good", 2, "classification"),
    ("patch ... --at zebra", 2, "zebra"),
    ("patch ... --direction up", 2, "up"),
    ("patch 'the cat' --corrupt 'the dog' -m bert", 2, "predict"),
    ("patch lines.txt -m gpt2", 1, "columns"),
    ("patch ... --site stream", 2, "resid_pre"),
    ("patch ... --site mlp_out --to logits", 2, "--to"),
    ("patch ... --site resid_mid --select L0H0", 2, "--select"),
    ("patch ... --by position --at '#9'", 2, "#9"),
    ("patch ... --to L1H0", 2, "L2H1.k"),
    ("patch ... --to L9H0.k", 2, "L9H0"),
    ("patch ... --to L0H0.q", 2, "earlier"),
    ("patch ... --from L1 --to L1H0.v", 2, "L1H0"),
    ("patch ... --from L0", 2, "--to"),
    ("patch ... --to logits --select L0", 2, "--select"),
    ("patch ... --to logits --self-repair", 2, "--to"),
    ("patch ... --self-repair", 2, "--answer"),
    ("patch 'the cat' --corrupt 'the dog' -m loud-bert --to logits", 2, "norm"),
    ("heads ... --generate 0", 2, "--generate"),
    ("heads ... --top -1", 2, "--top"),
    ("heads ... --no-such-option", 2, "--no-such-option"),
    ("profile ... --limit 0", 2, "--limit"),
    ("card L2H1 TEXT --all -m bert", 2, "--all"),
    ("card -m bert", 2, "--all"),
    # figures
    ("heads ... --format gif", 2, "gif"),
    ("heads ... --figures all,none", 2, "alone"),
    ("heads ... --figures none,heads", 2, "alone"),
    ("heads ... --figures pictures", 2, "pictures"),
    ("heads ... --figures overview,", 2, "commas"),
    ("heads ... --relation own", 2, "the parse"),
    ("ablate ... --figures curve --no-curve", 2, "curve"),
    ("outputs TEXT -m bert --figures effects", 2, "effects"),
    ("compare ... --theme red", 2, "red"),
    ("heads ... --width 1in", 2, "2 to 40"),
    ("explain ... --width 2in", 2, "2 inches"),
    ("heads ... --map colour", 2, "colour"),
    # natural mistakes: the nearest name, what was meant
    ("heads ... --select syntatic", 2, "syntactic?"),
    ("heads ... --figures overvew", 2, "overview?"),
    ("heads ... --map entrpy", 2, "entropy?"),
    ("heads TEXT -m minlm", 1, "minilm?"),
    ("models bert-lage", 1, "bert-large?"),
    ("heads --chat a.json --chat b.json -m bert", 2, "--chat"),
    *((f"{command} ... --select L2,sink", 2, "--select") for command in ("compare", "ablate", "outputs")),
    *((f"{command} folder", 1, "folder") for command in ("heads", "ablate", "rollout")),
    *((f"heads {name}", 1, "--each-line") for name in ("two.txt", "corpus.conllu", "notes")),
    *((f"outputs TEXT {twice}", 2, "") for twice in ("--at cat --token sat", "--answer a --label b", "-o a -o a")),
    ("outputs TEXT -m tiny-gpt2 --model minilm", 2, ""),
    # folders
    ("heads ... -o ' '", 2, "-o"),
    ("heads ... -o 'a\0b'", 2, "-o"),
    ("heads ... --out=~nobody-of-this-name/x", 2, "nobody-of-this-name"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "code", "message"), REFUSED)
def test_what_cannot_be_done_is_one_message_and_nothing_is_written(run, folders, line, code, message):
    if line.startswith("profile"):
        pytest.importorskip("conllu", reason="needs the extra profile")
    treebank(Path("trees.conllu"), 5)
    sentences(Path("lines.txt"), 5)
    Path("broken.txt").write_bytes(b"the \xff cat\n")
    Path("empty.txt").write_text("\n \n")
    Path("folder").mkdir()
    Path("notes").touch()
    before, texts = names("."), {"TEXT": SENTENCE, "OTHER": OTHER, "LONG": TOO_LONG}
    words = shlex.split(line.replace("...", USES[line.partition(" ")[0]]))
    result = run(*(texts.get(word, str(folders.get(word, word))) for word in words), out="", stdin="x")
    assert (result.exit_code, result.stdout, type(result.exception)) == (code, "", SystemExit), result.exception
    assert message in on_one_line(result)
    assert result.stderr.count("\n") == 1 or result.stderr.startswith("Usage: ")  # typer's own has more
    assert names(".") == before


def test_a_tilde_in_a_folders_name_is_the_home(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A shell leaves it in ``--out=~/x``."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for command, *arguments in map(str.split, ("models tiny-gpt2", "heads cat -m tiny-gpt2 --figures none")):
        ran = run(command, *arguments, f"--out=~/of {command}", out="")
        assert ran.exit_code == 0, ran.output
    attnviz.analyze(SENTENCE, "tiny-gpt2").save("~/of save", figures=[])
    assert {path.name for path in (tmp_path / "home").iterdir()} == {"of models", "of heads", "of save"}
    assert names(".") == {"home"}


# --- what can be done: what all share

OF_MANY = "text_column pair_column label_column alignments".split()
NEEDED = {
    **{command: [SENTENCE] for command in ("heads", "why", "explain", "outputs", "rollout")},
    **{"patch": ["pairs.csv"], "ablate": ["trees.conllu"], "profile": ["trees.conllu"], "circuits": []},
}
VALUES = {
    **{"select": ["L0"], "role": ["x"], "spans": ["end=away"], "at": ["last"], "sender": ["L0"]},
    **{"residual": 0.25, "method": "zero", "dtype": "float64", "memory": "64M", "direction": "noise"},
    **{"site": "q", "by": "position"},
    **{
        "metric": "kl",
        "export": "headvis",
        "networks": "run",
        "order_by": "kl",
        "frequencies": Path("x"),
        "contacts": Path("x"),
    },
}
"""What is typed for options that do not take every number or text."""


@pytest.mark.parametrize("command", NEEDED)
def test_every_option_of_text_and_measurement_reaches_the_function(run, command, monkeypatch):
    expected, given, words = dict[str, Any](), dict[str, Any](), list[str]()
    left_out = {*OF_THE_COMMAND_LINE, *INSTEAD_OF_A_TEXT, *(OF_MANY if command == "heads" else ())}
    for option in PARAMETERS[command]:
        if option.param_type_name == "argument" or option.rich_help_panel not in GROUPS[:2] or option.name in left_out:
            continue
        if isinstance(option.default, bool):
            expected[option.name] = not option.default
            words.append(flag_for(option, not option.default))
            continue
        value = VALUES.get(option.name, 2 if option.metavar == "N" else "x")
        expected[option.name] = tuple(value) if isinstance(value, list) else value
        words += [option.opts[0], *(value if isinstance(value, list) else [str(value)])]
    function = FUNCTIONS[command][0]

    @wraps(getattr(attnviz, function))
    def stop(*_: Any, **named: Any) -> None:
        given.update(named)
        raise VerificationError("stopped")

    monkeypatch.setattr(attnviz, function, stop)
    treebank(Path("trees.conllu"), 5)
    Path("pairs.csv").write_text("clean,corrupt\nthe cat,the dog\n")
    result = run(command, *NEEDED[command], *words, model="bert")
    assert result.exit_code == 3, result.output
    assert {name: given[name] for name in expected} == expected


def too_large(*given: Any) -> Any:
    return 1.1 * transformed_values(*given)


RUNS = {
    "heads": ("bert", [TEXT, "--no-syntax"]),
    "ablate": ("gpt2", ["the cat ran", "--select", "L2"]),
    "compare": ("bert+tuned", [TEXT, "--no-syntax"]),
    "explain": ("bert", [SENTENCE]),
    "outputs": ("loud-bert", [SENTENCE]),
    "profile": ("bert", ["trees.conllu", "--limit", "9", "--no-control"]),
    "rollout": ("bert", [TEXT]),
    "patch": ("loud-gpt2", ["the cat ran", "--corrupt", "the dog ran"]),
    "why": ("bert", [TEXT, "--head", "L2H1", "--depth", "2"]),
}


@pytest.mark.draws
@pytest.mark.parametrize("command", RUNS)
def test_json_is_the_document(run: Any, command: str):
    pytest.importorskip("conllu", reason="needs the extra profile")
    treebank(Path("trees.conllu"), 40)
    model, arguments = RUNS[command]
    printed = run(command, *arguments, "--json", "--figures", "none", model=model)
    assert printed.exit_code == 0, printed.output
    assert json.loads(printed.stdout) == document(command)
    assert "(one of 2 files)" in printed.stderr


@pytest.mark.parametrize(
    ("command", "model", "place", "wrong"),
    [
        ("outputs", "loud-gpt2", "attnviz.reference.attention.head_outputs", lambda A, v, W, gate: v @ W),
        ("rollout", "bert", "attnviz.commands.rollout.transformed_values", too_large),
        ("explain", "bert", ACTIVATIONS, ACTIVATIONS["relu"]),
    ],
)
def test_what_does_not_verify_is_exit_code_3_and_writes_nothing(run, command, model, place, wrong, monkeypatch):
    if isinstance(place, dict):
        monkeypatch.setitem(place, "gelu", wrong)
    else:
        monkeypatch.setattr(place, wrong)
    result = run(command, SENTENCE, model=model, out="")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (3, "", 1)
    assert names(".") == set()


# --- compare


COMPARED = ("compare", TEXT, "--no-syntax", "--figures", "none")


def test_one_model_is_loaded_once_and_revisions_belong_to_the_models_in_order(run, monkeypatch):
    loaded, asked = [], []
    load, find = opening.load_checkpoint, sources.find_checkpoint
    monkeypatch.setattr(opening, "load_checkpoint", lambda source, *rest: loaded.append(source) or load(source, *rest))
    monkeypatch.setattr(sources, "find_checkpoint", lambda name, at, *_: asked.append(at) or find(name, None))
    assert run(*COMPARED, OTHER, "--dtype", "float64", model="bert").exit_code == 0
    assert len(loaded) == 1
    assert [model["dtype"] for model in document("compare")["models"]] == ["float64"] * 2
    asked.clear()
    assert run(*COMPARED, "--revision", "-", "--revision", "v2", model="bert+tuned").exit_code == 0
    assert (len(loaded), asked) == (3, [None, "v2"])


def test_a_second_side_that_does_not_verify_is_exit_code_3(run: Any, monkeypatch: pytest.MonkeyPatch):
    joined_output, outputs = reference.joined_output, []

    def wrong(*given: Any) -> Any:
        outputs.append(joined_output(*given))
        return outputs[-1] + (len(outputs) > 3)

    monkeypatch.setattr(reference, "joined_output", wrong)
    result = run(*COMPARED, model="bert+tuned")
    assert (result.exit_code, len(outputs) > 3, Path("out").exists()) == (3, True, False)


def test_induction_heads_of_tiny_gpt2_promote_the_next_word():
    """After “one two three four five one two three four” the heads of layer 1 copy what followed “four”."""
    text = "one two three four five one two three four"
    result = attnviz.head_outputs(text, "tiny-gpt2", device="cpu", answer=" five", foil=" the").effects
    assert result.predicted.text == "five"
    effects = result.heads
    strongest = sorted(effects, key=effects.__getitem__, reverse=True)[:4]
    assert {head.layer for head in strongest} == {1}
    assert sum(effects[head] for head in strongest) > 0.5 * result.difference
