"""Adapters of peft, merged at load: patterns are those of peft's own model with the adapter beside the weights."""

import copy
import json
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import attnviz
from attnviz.cli.program import app
from attnviz.errors import ArchitectureError, CheckpointError, UsageError, VerificationError
from attnviz.inputs.text import tokenize
from attnviz.models import sources
from attnviz.models.sources import find_checkpoint, weights_sha256
from tests.support.encoder_decoders import SOURCE, TARGET, saved
from tests.support.families import first_of
from tests.support.hub import CONFIG, SECOND, Hub, files_of, put
from tests.support.llamas import sentencepiece_tokenizer, sharp_llama
from tests.support.models import bert_tokenizer, gpt2_tokenizer, save_checkpoint, sharp_bert, sharp_gpt2
from tests.support.spoiled import change_json
from tests.support.tolerances import SHARP_32

peft = pytest.importorskip("peft", reason="needs the extra adapters (peft)")
thorough = pytest.mark.thorough

TEXT = "the cat that i saw ran away"
HUB_ID = "someone/lora"


def analyzed(base: Path, adapter: Path, **options: Any) -> Any:
    return attnviz.analyze(TEXT, base, adapter=adapter, device="cpu", syntax=False, **options)


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bases")
    save_checkpoint(sharp_bert(model_class=transformers.BertForMaskedLM), bert_tokenizer(), folder / "bert")
    save_checkpoint(sharp_gpt2(model_class=transformers.GPT2LMHeadModel), gpt2_tokenizer(), folder / "gpt2")
    for family, width in (("llama", 48), ("mixtral", 37)):  # of 37 torch multiplies no experts at once
        save_checkpoint(sharp_llama(family, intermediate_size=width), sentencepiece_tokenizer(), folder / family)
    saved("bart", folder)
    return folder


def adapted(
    folder: Path, model_class: Any, to: Path, method: str = "Lora", *, scale: float = 0.3, **settings: Any
) -> Any:
    """Train nothing: draw the weights of an adapter, save it, and return peft's model with it, never merged."""
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft's, of transformers' old names
        model = model_class.from_pretrained(folder, attn_implementation="eager", experts_implementation="eager")
        beside = peft.get_peft_model(model, getattr(peft, f"{method}Config")(**settings))
    with torch.no_grad():
        for parameter in beside.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * scale)
    beside.save_pretrained(to)
    return beside.eval()


@pytest.fixture
def mine(bases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    adapted(bases / "bert", transformers.BertModel, tmp_path / "mine", target_modules=["query"])
    return tmp_path / "mine"


QK = ["query", "key"]
_BY_LAYER = {"rank_pattern": {"bert.encoder.layer.1.attention.self.query": 2}}
_BY_LAYER |= {"alpha_pattern": {r"^bert\.encoder\.layer\.0\.attention\.self\.key": 40}}
_ONE_LAYER = {"layers_to_transform": [1], "layers_pattern": "layer", "exclude_modules": ".*(key|.)+_"}
_BY_PATTERN = {"target_modules": r"bert\..*\.attention\.self\.(query|key)", "task_type": "SEQ_CLS"}
_TOKENS = {"method": "TrainableTokens", "target_modules": ["word_embeddings"], "token_indices": list(range(5, 20))}
_OF_BERT: list[dict[str, Any]] = [
    {"target_modules": [*QK, "value", "dense"], "r": 4, "lora_alpha": 3},
    {"use_rslora": True, "bias": "all"},
    {"use_dora": True},
    _ONE_LAYER,
    _TOKENS,
    {"init_lora_weights": "pissa"},
    {"method": "LNTuning", "target_modules": ["LayerNorm"]},
    *({"method": method} for method in ("LoHa", "LoKr")),
    {"method": "OFT", "oft_block_size": 8, "r": 0},
    {"method": "IA3", "target_modules": ["key", "value"], "feedforward_modules": []},
]
_EXPERTS = {"target_modules": ["q_proj"], "target_parameters": ["mlp.experts.gate_up_proj"]}
KINDS: list[tuple[str, Any, dict[str, Any]]] = [
    *(("bert", transformers.BertModel, {"target_modules": QK} | settings) for settings in _OF_BERT),
    ("bert", transformers.BertForMaskedLM, {"target_modules": QK} | _BY_LAYER),
    ("bert", transformers.BertForSequenceClassification, _BY_PATTERN),
    ("gpt2", transformers.GPT2LMHeadModel, {"target_modules": ["c_attn"], "task_type": "CAUSAL_LM"}),
    ("gpt2", transformers.GPT2Model, {"target_modules": ["c_attn", "wte"]}),  # without its head
    ("mixtral", transformers.AutoModelForCausalLM, _EXPERTS),
    ("llama", transformers.AutoModelForCausalLM, {"target_modules": "all-linear", "task_type": "CAUSAL_LM"}),
]


@pytest.mark.draws
@pytest.mark.parametrize(("base", "model_class", "settings"), first_of(KINDS, KINDS[0], KINDS[-4]))
def test_patterns_are_those_with_the_adapter_beside_the_weights(bases, tmp_path, base, model_class, settings):
    beside = adapted(bases / base, model_class, tmp_path / "mine", **settings)
    analysis = analyzed(bases / base, tmp_path / "mine")
    own = beside(input_ids=torch.tensor([analysis.tokens.ids]), output_attentions=True).attentions
    without = attnviz.analyze(TEXT, bases / base, device="cpu", syntax=False)
    torch.testing.assert_close(analysis.attention(), torch.cat(own), atol=SHARP_32, rtol=0)
    assert (analysis.attention() - without.attention()).abs().max() > 0.01  # the adapter does something
    assert analysis.verification.level == 4


@thorough
def test_an_encoder_decoder_in_another_number_format(bases: Path, tmp_path: Path):
    settings = {"target_modules": ["q_proj", "v_proj"], "task_type": "SEQ_2_SEQ_LM"}
    beside = adapted(bases / "bart", transformers.AutoModelForSeq2SeqLM, tmp_path / "bart", **settings).double()
    how: dict[str, Any] = {"target": TARGET, "device": "cpu", "syntax": False}
    analysis = attnviz.analyze(SOURCE, adapter=tmp_path / "bart", dtype="float64", **how)
    ids = {"input_ids": analysis.tokens.ids, "decoder_input_ids": analysis.target.tokens.ids}
    own = beside(**{name: torch.tensor([each]) for name, each in ids.items()}, output_attentions=True)
    torch.testing.assert_close(analysis.pattern("X1H2"), own.cross_attentions[1][0, 2], atol=SHARP_32, rtol=0)


def test_an_adapter_whose_scaling_is_ignored_is_noticed(bases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from peft.tuners.lora.layer import Linear

    adapted(bases / "bert", transformers.BertModel, tmp_path / "mine", target_modules=QK, r=8, lora_alpha=32)
    weights = Linear.get_delta_weight
    monkeypatch.setattr(Linear, "get_delta_weight", lambda self, name: weights(self, name) / self.scaling[name])
    with pytest.raises(VerificationError, match=r"encoder\.layer\.0\..*query"):
        analyzed(bases / "bert", tmp_path / "mine")


HEADS = [
    ("bert", transformers.BertForSequenceClassification, "SEQ_CLS"),
    ("gpt2", transformers.GPT2ForSequenceClassification, "SEQ_CLS"),
    ("bert", transformers.BertForTokenClassification, "TOKEN_CLS"),
    ("bert", transformers.BertForQuestionAnswering, "QUESTION_ANS"),
    (
        "gpt2",
        transformers.GPT2LMHeadModel,
        "CAUSAL_LM",
    ),  # which shares its weights with the adapted embeddings, and keeps its own
]


@pytest.mark.parametrize(("base", "model_class", "task"), first_of(HEADS, HEADS[0], HEADS[-1]))
def test_logits_are_read_from_the_head_that_an_adapter_brings(bases, tmp_path, base, model_class, task):
    if (base, task) == ("bert", "SEQ_CLS"):
        base = "bare"  # with its pooler
        save_checkpoint(sharp_bert(), bert_tokenizer(), bases / base)
    names = QK if base != "gpt2" else ["c_attn"] + ["wte"] * (task == "CAUSAL_LM")
    beside = adapted(bases / base, model_class, tmp_path / "mine", target_modules=names, task_type=task)
    found = attnviz.head_outputs(TEXT, bases / base, adapter=tmp_path / "mine", device="cpu")
    checkpoint = found.checkpoint
    inputs = tokenize(checkpoint, TEXT).model_inputs(torch.device("cpu"))
    with torch.no_grad():
        own, states = beside(**inputs), checkpoint.model(**inputs)[0][0]
        if task == "SEQ_CLS":
            assert found.effects.classes
            states = states[checkpoint.classifier.position(inputs["input_ids"][0].tolist())]
            given = checkpoint.classifier.head(states)
        else:
            given = (checkpoint.language_head if task == "CAUSAL_LM" else checkpoint.prediction_head)(states)
    logits = own.logits if task != "QUESTION_ANS" else torch.stack([own.start_logits, own.end_logits], -1)
    torch.testing.assert_close(given, logits[0], atol=SHARP_32, rtol=SHARP_32)


def test_an_adapter_in_memory_is_merged_in_a_copy(bases: Path, tmp_path: Path):
    beside = adapted(bases / "bert", transformers.BertModel, tmp_path / "mine", target_modules=QK).train()
    before = copy.deepcopy(beside.state_dict())
    analysis = attnviz.analyze(TEXT, beside, tokenizer=bert_tokenizer(), syntax=False)
    assert beside.training
    after = beside.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    own = beside.eval()(input_ids=torch.tensor([analysis.tokens.ids]), output_attentions=True).attentions
    torch.testing.assert_close(analysis.attention(), torch.cat(own), atol=SHARP_32, rtol=SHARP_32)
    with pytest.raises(ArchitectureError):  # without peft's own class around it
        attnviz.analyze(TEXT, beside.base_model.model, tokenizer=bert_tokenizer())


def test_a_copy_that_is_merged_otherwise_is_refused(bases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    beside = adapted(bases / "bert", transformers.BertModel, tmp_path / "mine", target_modules=QK)
    monkeypatch.setattr("peft.tuners.lora.Linear.get_delta_weight", lambda layer, _: torch.zeros_like(layer.weight))
    with pytest.raises(VerificationError):
        attnviz.analyze(TEXT, beside, tokenizer=bert_tokenizer())


# --- what is refused

Spoil = Callable[[Path], Any]
WEIGHTS, CONFIG_FILE = "adapter_model.safetensors", "adapter_config.json"


def settings_of(**changes: Any) -> Spoil:
    return lambda folder: change_json(folder / CONFIG_FILE, **changes)


def weights_of(change: Callable[[dict[str, torch.Tensor]], Any]) -> Spoil:
    def spoil(folder: Path) -> None:
        weights = load_file(folder / WEIGHTS)
        change(weights)
        save_file(weights, folder / WEIGHTS)

    return spoil


def pickled(folder: Path) -> None:
    torch.save(load_file(folder / WEIGHTS), folder / "adapter_model.bin")
    (folder / WEIGHTS).unlink()


def replaced_by(make: Callable[[Path], object], name: str = WEIGHTS) -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return spoil


PATTERN = "(.|.)+z"
PATTERNS = {"target_modules": ["query", PATTERN], "modules_to_save": [PATTERN], "layers_pattern": PATTERN}
PATTERNS |= {"rank_pattern": {PATTERN: 4}, "alpha_pattern": {PATTERN: 4}, "exclude_modules": [[PATTERN]]}
SETTINGS = {"alora_invocation_tokens": [1, 2], "layer_replication": [[0, 2]], "megatron_config": {"a": 1}}
SETTINGS |= {"init_lora_weights": "corda", "loftq_config": {"loftq_bits": 4}, "of_the_future": 1}
REFUSED: list[tuple[Spoil, type[Exception], str]] = [
    (pickled, CheckpointError, "pickle"),
    *((replaced_by(lambda _: None, name), CheckpointError, name) for name in (WEIGHTS, CONFIG_FILE)),
    (lambda folder: folder.rename(f"{folder}-moved"), CheckpointError, "mine"),
    (replaced_by(lambda file: file.symlink_to("nowhere")), CheckpointError, WEIGHTS),
    (replaced_by(lambda file: file.mkdir()), CheckpointError, WEIGHTS),
    *((settings_of(peft_type=kind), ArchitectureError, kind) for kind in ("PREFIX_TUNING", "VERA", "NONE_SUCH")),
    *((settings_of(**{name: value}), ArchitectureError, name) for name, value in SETTINGS.items()),
    *((settings_of(**{name: value}), ArchitectureError, "pattern") for name, value in PATTERNS.items()),
    (settings_of(r=10**9), CheckpointError, "r = 1000000000"),
    (settings_of(rank_pattern={"query": 10**9}), CheckpointError, "rank_pattern"),
    (settings_of(target_modules=["key"]), CheckpointError, "base model"),
    (weights_of(lambda all: all.pop(next(name for name in all if "lora_B" in name))), CheckpointError, "missing"),
    (weights_of(lambda weights: next(iter(weights.values())).fill_(torch.nan)), CheckpointError, "finite"),
]


@pytest.mark.parametrize(("spoil", "error", "word"), REFUSED)
def test_what_cannot_be_merged_is_refused_by_name(bases: Path, mine: Path, spoil: Spoil, error: Any, word: str):
    spoil(mine)
    with pytest.raises(error, match=word):
        analyzed(bases / "bert", mine)


def test_a_setting_of_peft_imports_nothing_and_a_pattern_of_it_takes_no_time(bases, mine, monkeypatch):
    without = analyzed(bases / "bert", mine)
    mine.with_name("evil.py").write_text("raise SystemExit('it ran')\n")
    monkeypatch.syspath_prepend(str(mine.parent))
    settings_of(target_modules=PATTERN, exclude_modules=PATTERN, megatron_core="evil")(mine)
    assert torch.equal(analyzed(bases / "bert", mine).pattern("L0H0"), without.pattern("L0H0"))
    settings_of(megatron_config={"a": 1})(mine)
    with pytest.raises(ArchitectureError, match="megatron_config"):
        analyzed(bases / "bert", mine)
    assert "evil" not in sys.modules


@pytest.mark.parametrize(
    "options",
    [
        {"model": sharp_bert(), "tokenizer": bert_tokenizer(), "adapter": "./mine"},
        {"adapter": "./mine", "device_map": "auto"},
        {"adapter": " "},
    ],
)
def test_an_adapter_goes_with_a_model_by_name_on_one_device(mine: Path, monkeypatch, options):
    with pytest.raises(UsageError):
        attnviz.analyze(TEXT, **options)
    monkeypatch.setattr(sources.importlib.util, "find_spec", lambda *_: None)
    with pytest.raises(CheckpointError, match=r"attnviz\[adapters\]"):
        attnviz.analyze(TEXT, adapter="./mine")


def test_the_base_is_named_by_the_adapter_or_by_the_user(bases: Path, mine: Path):
    base = str(bases / "bert")
    by_config = find_checkpoint(adapter=mine)
    assert (by_config.name, by_config.adapter.name, by_config.adapter.kind) == (base, str(mine), "LORA")
    assert find_checkpoint(str(mine)) == find_checkpoint(base, adapter=mine) == by_config
    hashes = {weights_sha256(source) for source in (by_config, find_checkpoint(base))}
    settings_of(lora_alpha=1)(mine)
    assert len(hashes | {weights_sha256(find_checkpoint(adapter=mine))}) == 3
    settings_of(base_model_name_or_path="/nowhere/base")(mine)
    with pytest.raises(CheckpointError, match="/nowhere/base"):
        find_checkpoint(adapter=mine)
    settings_of(base_model_name_or_path=None)(mine)
    with pytest.raises(CheckpointError):
        find_checkpoint(str(mine))
    (mine / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(CheckpointError):
        find_checkpoint(str(mine))


def test_an_adapter_of_the_hub_is_taken_from_the_cache_or_downloaded(bases, mine, monkeypatch):
    settings_of(base_model_name_or_path="someone/base", revision=SECOND)(mine)
    hub = Hub(mine.parent / "hub", monkeypatch)
    put(hub.cache, "someone/base", files_of(bases / "bert"), commit=SECOND)
    with pytest.raises(CheckpointError, match=HUB_ID):
        find_checkpoint(adapter=HUB_ID)
    hub.has(files_of(mine), others=["optimizer.pt", "adapter_model.bin"])
    found = find_checkpoint(adapter=HUB_ID)
    assert set(hub.downloaded) == {CONFIG_FILE, WEIGHTS}
    assert (found.name, found.revision, found.adapter.revision) == ("someone/base", SECOND, "a" * 40)
    hub.raises(AssertionError("the hub was asked"))
    assert find_checkpoint(adapter=HUB_ID) == found
    assert attnviz.analyze(TEXT, adapter=HUB_ID, device="cpu", syntax=False).verification.level == 4
    shutil.rmtree(hub.cache / "models--someone--lora")
    hub.has({**CONFIG, CONFIG_FILE: b"{}"}, others=["adapter_model.bin"])
    with pytest.raises(CheckpointError, match="pickle"):
        find_checkpoint(adapter=HUB_ID)


def run(*words: object) -> Any:
    ran = CliRunner().invoke(app, [*map(str, words), "-d", "cpu", "--figures", "none", "--json"])
    assert ran.exit_code == 0, ran.output
    return json.loads(ran.stdout)


@pytest.mark.draws
@pytest.mark.parametrize("command", first_of(["outputs", "heads", "explain", "rollout", "ablate", "profile"]))
def test_every_command_takes_an_adapter_and_names_it(bases, mine, command):
    Path("texts.txt").write_text("the cat ran away\nthe dog saw the house\n")
    text = ["texts.txt", "--no-control"] if command == "profile" else ["the cat ran away"]
    given = ["--adapter", "./mine"] if command in ("heads", "outputs", "profile") else ["-m", "./mine"]
    model = run(command, *text, *given, *["--no-curve"] * (command == "ablate"))["model"]
    assert model["name"] == str(bases / "bert")
    assert {"name": "./mine", "kind": "LORA", "revision": None}.items() <= model["adapter"].items()


@thorough
def test_compare_holds_the_base_against_itself_with_the_adapter(bases, mine):
    Path("texts.txt").write_text(f"{TEXT}\n" * 3)
    for words in ((TEXT, "-m", bases / "bert"), ("--corpus", "texts.txt")):
        document = run("compare", *words, "--adapter", "./mine")
        assert [model.get("adapter", {}).get("name") for model in document["models"]] == [None, "./mine"]
    wrong = CliRunner().invoke(app, ["compare", TEXT, "-m", "a", "-m", "b", "--adapter", "./mine"])
    assert (wrong.exit_code, "--adapter" in wrong.output) == (2, True)
