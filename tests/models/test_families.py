"""Which commands take which family: every claim of ``attnviz models --families`` is tried on a tiny random model."""

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import attnviz
from attnviz.cli.program import app
from attnviz.commands.models import listed_families
from attnviz.errors import ArchitectureError
from attnviz.models.families import ARCHITECTURES, COMMANDS, declared_in, llama
from tests.support.families import ENCODER_DECODERS, checkpoint_of, first_of
from tests.support.sounds import tone
from tests.support.tolerances import SHARP_32

TEXT = "the cat saw the dog"
NOT_COMPARED = {"verification", "model", "models", "device", "attnviz", "pairs"}
"""Of documents: what is said of the run itself, and a list whose order rounding decides (its sums are compared)."""

CLAIMS = {family["architecture"]: family["commands"] for family in listed_families().document["families"]}

model = cache(checkpoint_of)


@pytest.mark.parametrize("first", ["llama", "other"])
def test_a_family_that_inherits_a_name_is_none_and_a_name_twice_raises(first: str) -> None:
    class Base(llama.Llama):
        pass

    class Other(Base, name="other", prefix="Other"):
        pass

    class Another(Base, name="other", prefix="Another"):
        pass

    modules = [SimpleNamespace(Base=Base, Other=Other, Llama=llama.Llama), llama]
    if first == "llama":
        modules.reverse()
    found = declared_in(modules)
    assert (type(found["llama"]), type(found["other"])) == (llama.Llama, Other)
    with pytest.raises(ValueError, match="other"):
        declared_in([*modules, SimpleNamespace(Another=Another)])


def target(family: str) -> dict[str, str]:
    return {"target": "a dog"} if family in ENCODER_DECODERS else {}


def analyzed(family: str, folder: Path) -> Any:
    if family == "whisper":
        return attnviz.analyze(audio=tone(folder / "tone.wav"), model=model(family), **target(family))
    return attnviz.analyze(TEXT, model(family), syntax=False, **target(family))


def compared(family: str, _: Path) -> Any:
    one = attnviz.analyze(TEXT, model(family), syntax=False, **target(family))
    return attnviz.compare(one, one)


def profiled(family: str, folder: Path) -> Any:
    corpus = folder / "corpus.txt"
    corpus.write_text(f"{TEXT}\nthe dog ran away\n")
    return attnviz.profile_heads(model(family), [corpus], syntax=False, control=False)


def patched(family: str, _: Path) -> Any:
    headed = model(family, headed=True)
    mask = "" if headed.architecture.causal or headed.stacks else headed.tokenizer.mask_token
    clean, corrupt = ("A C D", "C A D") if family == "esm" else ("the cat saw the dog", "the dog saw the cat")
    return attnviz.patch(f"{clean} {mask}", headed, corrupt=f"{corrupt} {mask}", select="L1")


RUN: dict[str, Callable[[str, Path], Any]] = {
    "heads": analyzed,
    "compare": compared,
    "outputs": lambda family, _: attnviz.head_outputs(TEXT, model(family), **target(family)),
    "ablate": lambda family, _: attnviz.ablate(TEXT, model(family), curve=False, **target(family)),
    "patch": patched,
    "rollout": lambda family, _: attnviz.rollout(TEXT, model(family)),
    "profile": profiled,
    "circuits": lambda family, _: attnviz.circuits(model(family)),
    "card": lambda family, _: attnviz.card(
        "X0H1" if target(family) else "L1H0", TEXT, model(family), circuits=False, syntax=False, **target(family)
    ),
    "explain": lambda family, _: attnviz.explain(TEXT, model(family)),
    "why": lambda family, _: attnviz.why(TEXT, model(family), head="E1H0" if target(family) else "L1H0"),
}


def test_every_family_and_command_is_claimed():
    assert set(CLAIMS) == set(ARCHITECTURES)
    assert set(RUN) == set(COMMANDS)
    assert all(set(parts) == set(COMMANDS) for parts in CLAIMS.values())


WHOLE = ("bert", "llama", "t5", "gpt2", "bart", "whisper", "esm", "gemma3")
"""Families tried with every command."""

UNLIKE = """
albert electra distilbert roberta mpnet gpt_neo gptj bloom gemma2 gpt_oss granite glm4 exaone4 gpt_neox stablelm phi
cohere falcon olmo olmo2 deepseek_v3 jamba lfm2 granitemoehybrid qwen3_next mbart modernbert opt nomic_bert deberta-v2
clip_text_model gemma4_text llama4_text umt5
apertus ministral3 mistral4 hunyuan_v1_dense nemotron granitemoeshared glm_moe_dsa eurobert layoutlm jina_embeddings_v3
""".split()
"""Those that differ in what one of these commands computes beside patterns, which are verified."""

STEPS = ("explain", "outputs", "ablate", "why")
CLAIMED = [
    *((family, command) for command in COMMANDS for family in WHOLE),
    *((family, command) for command in STEPS for family in UNLIKE),
]


@pytest.mark.parametrize(
    ("family", "command"), first_of(CLAIMED, *((family, command) for command in COMMANDS for family in WHOLE[:3]))
)
def test_a_command_takes_what_it_claims_to(family, command, tmp_path, monkeypatch):
    monkeypatch.setattr("attnviz.commands.patch._LEAST", 0.0)  # untrained models hardly tell prompts apart
    part = CLAIMS[family][command]
    if part is None:
        with pytest.raises(ArchitectureError, match=family):
            RUN[command](family, tmp_path)
        return
    result = RUN[command](family, tmp_path)
    (entry,) = result.document()["models"][:1] if command == "compare" else [result.document()["model"]]
    assert entry.get("part", "model") == part
    assert entry["architecture"] == family


@pytest.mark.thorough
@pytest.mark.parametrize("family", sorted(ARCHITECTURES))
def test_a_family_refuses_what_it_does_not_claim(family, tmp_path):
    for command in (command for command, part in CLAIMS[family].items() if part is None):
        with pytest.raises(ArchitectureError, match=family):
            RUN[command](family, tmp_path)


def test_the_list_is_a_document_and_goes_with_no_names():
    ran = CliRunner().invoke(app, ["models", "--families", "--json"])
    (bart,) = (each for each in json.loads(ran.stdout)["families"] if each["architecture"] == "bart")
    assert bart == {"architecture": "bart", "level": 4, "commands": CLAIMS["bart"]}
    ran = CliRunner().invoke(app, ["models", "minilm", "--families"])
    assert (ran.exit_code, ran.stderr.count("\n")) == (2, 1)


def differences(found: Any, expected: Any, at: str = "") -> Iterator[str]:
    if isinstance(expected, dict):
        for key in expected.keys() - NOT_COMPARED:
            yield from differences(found[key], expected[key], f"{at}.{key}")
    elif isinstance(expected, list):
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            yield from differences(one, other, f"{at}[{number}]")
    elif not isinstance(expected, str) and found != pytest.approx(expected, rel=SHARP_32, abs=SHARP_32):
        yield f"{at}: {found!r} for {expected!r}"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("family", sorted(ARCHITECTURES))
def test_a_gpu_gives_the_numbers_of_the_processor(family, tmp_path):
    claimed = [command for command, part in CLAIMS[family].items() if part]
    here = {command: RUN[command](family, tmp_path).document() for command in claimed}
    for module in (model(family).model, model(family).language_head):
        if module is not None:
            module.to("cuda")
    try:
        for command in claimed:
            result = RUN[command](family, tmp_path)
            assert result.checkpoint.device.type == "cuda"
            assert list(differences(result.document(), here[command])) == []
    finally:
        model.cache_clear()
