"""What Python users meet first: keywords, styles, arrays."""

import inspect
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, get_args, get_overloads

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from transformers import GPT2LMHeadModel

import attnviz
from attnviz.commands.claims import read_claims
from attnviz.errors import AttnvizError, UsageError
from attnviz.figures import Style
from attnviz.measures.role_tokens import role_tokens
from attnviz.models.checkpoint import from_loaded
from attnviz.models.head_ids import HeadId, ids_and_names
from attnviz.options import DrawingOptionNames, ViewOptionNames
from tests.support.corpora import sentences
from tests.support.models import bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2
from tests.support.results import TEXT, result_of
from tests.support.signatures import parameters_of

FUNCTIONS = {name: getattr(attnviz, name) for name in attnviz.__all__ if inspect.isfunction(getattr(attnviz, name))}


class Unwritable:
    """A value whose own function cannot write it."""

    def __repr__(self) -> str:
        raise RuntimeError("not written")


def _refused(call: Callable[..., Any], *positional: Any, **given: Any) -> None:
    with pytest.raises(AttnvizError) as error:
        call(*positional, **given)
    assert "\n" not in str(error.value)


def test_a_wrong_keyword_is_an_error_that_names_the_function_and_the_nearest_one():
    with pytest.raises(UsageError, match=r"analyze.*truncat_.*truncate"):
        attnviz.analyze("the cat", truncat_=True)
    with pytest.raises(UsageError, match=r"report.*widht.*width"):
        result_of("heads").report(widht=60)


def test_arguments_that_are_missing_or_too_many_are_errors_of_attnviz():
    _refused(attnviz.analyze)
    _refused(attnviz.explain, "the cat", "minilm", 3)
    _refused(result_of("heads").figure, "map", Style(width=3.3), theme="dark")


def test_frames_need_pandas(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    _refused(result_of("heads").frame)


@cache
def _corpus(n_texts: int = 40) -> Path:
    return sentences(Path(mkdtemp()) / "texts.txt", n_texts)


@cache
def _models() -> dict[str, dict[str, Any]]:
    """By kind, a model in memory with its tokenizer."""
    decoder = sharp_gpt2(model_class=GPT2LMHeadModel, n_positions=512)
    return {
        "bert": {"model": sharp_bert(), "tokenizer": bert_tokenizer()},
        "gpt2": {"model": decoder, "tokenizer": gpt2_tokenizer()},
    }


def _of_text(kind: str = "bert", **more: Any) -> dict[str, Any]:
    return {"text": TEXT, **_models()[kind], **more}


GIVEN: dict[str, Callable[[], dict[str, Any]]] = {
    "ablate": lambda: {"texts": TEXT, "select": "L0H0", "curve": False, "gradient": False, **_models()["gpt2"]},
    "analyze": lambda: _of_text(syntax=False),
    "analyze_each": lambda: {"texts": [TEXT], "syntax": False, **_models()["bert"]},
    "card": lambda: {"head": "L0H0", "source": TEXT, "syntax": False, "circuits": False, **_models()["bert"]},
    "cards": lambda: {"source": TEXT, "select": "L0H0", "syntax": False, "circuits": False, **_models()["bert"]},
    "check": lambda: {"files": "nothing.toml", **_models()["bert"]},
    "circuits": lambda: _models()["gpt2"],
    "compare": lambda: dict.fromkeys(("first", "second"), result_of("heads")),
    "compare_corpus": lambda: {
        "corpus": _corpus(), "syntax": False, **dict.fromkeys(("first", "second"), _models()["bert"]["model"]),
        "tokenizer": bert_tokenizer(),
    },
    "draw": lambda: {"weights": torch.eye(3).expand(2, 1, 4, 3, 3), "tokens": ["a", "b", "c"], "batch": 0},
    "explain": _of_text,
    "head_outputs": lambda: _of_text("gpt2"),
    "model_configurations": lambda: {"names": ["minilm"]},
    "patch": lambda: {"clean": "the cat", "corrupt": "the dog", "select": "L0H0", **_models()["gpt2"]},
    "profile_heads": lambda: {"texts": [_corpus()], "syntax": False, "control": False, **_models()["bert"]},
    "register": lambda: {"extension": "mine", "name": lambda text: text.distances == -2},
    "rollout": _of_text,
    "unregister": lambda: {"name": "nothing"},
    "why": lambda: _of_text(head="L2H1"),
}  # fmt: skip
"""Of every public function arguments that it takes."""

STRANGE = (
    object(),
    10**5000,  # which cannot be written
    Unwritable(),
    np.array([None, {}], dtype=object),
    torch.eye(3).to_sparse(),
    torch.nested.nested_tensor([torch.rand(3, 3)], layout=torch.jagged),
    torch.eye(3, device="meta"),
)
"""What no argument is."""


def test_every_public_function_is_tried():
    assert set(GIVEN) == set(FUNCTIONS)


@pytest.mark.parametrize("function", GIVEN)
def test_what_no_argument_is_is_refused_in_a_line(function: str):
    given, parameters = GIVEN[function](), parameters_of(FUNCTIONS[function])
    assert set(given) <= set(parameters)  # else every call is refused for that
    for name in parameters:
        for value in STRANGE:
            _refused(FUNCTIONS[function], **given | {name: value})


@pytest.mark.parametrize("value", [None, 3, [], [None], np.zeros((2, 0, 3)), torch.zeros(2), {}, b"x"], ids=repr)
def test_what_is_no_text_no_weights_no_token_and_no_mask_is_refused(value: Any):
    for name in ("text", "texts", "clean", "weights", "tokens", "corpus"):
        for function, call in FUNCTIONS.items():
            absent = value is None and function in ("analyze", "ablate")  # a chat instead, or repeats
            if name in inspect.signature(call).parameters and not absent:
                _refused(call, **GIVEN[function]() | {name: value})
    if value is not None:
        _refused(attnviz.draw, **GIVEN["draw"](), mask=value)


@pytest.mark.draws
@pytest.mark.parametrize("method", ["draw", "figure", "page", "save", "document", "report"])
def test_what_no_option_of_a_result_is_is_refused_in_a_line(method: str, tmp_path: Path):
    required: dict[str, Any] = {"save": {"folder": tmp_path}, "draw": {"name": "map", "ax": Figure().subplots()}}
    options = ViewOptionNames if method in ("document", "report") else DrawingOptionNames
    for name in options.__annotations__:
        for value in STRANGE:
            _refused(getattr(result_of("heads"), method), **required.get(method, {}) | {name: value})


@pytest.mark.parametrize("head", ["L0H0", HeadId(0, 0), (4, 0)])
def test_a_head_that_a_result_has_not_is_refused(head: Any):
    weights, tokens = torch.eye(3).expand(2, 4, 3, 3), ["a", "b", "c"]
    drawn, cross = (attnviz.draw(weights, tokens, layers=[3, 7], **more) for more in ({}, {"keys": tokens}))
    for refused in (drawn.pattern, drawn.head, cross.head):
        _refused(refused, head)
    _refused(result_of("ablate").head, "L2H0")
    _refused(drawn.layer_patterns, 0)
    assert torch.equal(drawn.pattern("L7H3"), torch.eye(3))


@pytest.mark.thorough
def test_a_model_in_memory_and_its_tokenizer_are_arguments_of_every_function(tmp_path: Path):
    """As a Checkpoint made of both is."""
    model, tokenizer, claims = sharp_bert(), bert_tokenizer(), tmp_path / "claims.toml"
    given: tuple[Any, ...] = ((model, {"tokenizer": tokenizer}), (from_loaded(model, tokenizer), {}))
    more = {"syntax": False, "control": False, "examples": 0}
    profiles = [attnviz.profile_heads(one, [_corpus()], **named, **more).document() for one, named in given]
    assert profiles[0]["statistics"] == profiles[1]["statistics"]
    compared = [
        attnviz.compare_corpus(one, sharp_bert(1), _corpus(), tokenizer=tokenizer, syntax=False).document()
        for one, _ in given
    ]
    assert compared[0]["heads"] == compared[1]["heads"]
    claims.write_text(f'text = "{TEXT}"\n[[claim]]\nhead = "L0H1"\nscore = "entropy"\nat_least = 0\n')
    assert attnviz.check(claims, model, tokenizer=tokenizer).exit_code == 0
    _refused(attnviz.profile_heads, model, [_corpus()], tokenizer="minilm")


def test_a_model_before_its_text_is_refused():
    for function in ("analyze", "explain", "head_outputs", "rollout", "why"):
        for model in (sharp_bert(), from_loaded(sharp_bert(), bert_tokenizer()), "minilm"):
            with pytest.raises(UsageError, match=rf"{function}\(text, model"):
                FUNCTIONS[function](model, TEXT)


def test_a_checker_of_types_knows_the_arguments_of_analyze():
    signature = inspect.signature(attnviz.analyze)
    expected = {name: each.annotation for name, each in signature.parameters.items() if each.kind is each.KEYWORD_ONLY}
    (opening,) = get_args(signature.parameters["opening"].annotation)
    for overloaded in get_overloads(inspect.unwrap(attnviz.analyze)):
        (options,) = get_args(inspect.signature(overloaded).parameters["options"].annotation)
        assert options.__annotations__ == opening.__annotations__ | expected
    assert (Path(attnviz.__file__).parent / "py.typed").is_file()


def test_names_of_the_command_line_are_those_of_python(tmp_path: Path):
    document = result_of("heads").save(tmp_path, figures=["none"], save_attention=True)
    assert set(document["files"]) == {"attention.safetensors", "heads.csv", "heads.json"}


def test_an_estimate_is_a_number():
    (damage, *_) = result_of("ablate").heads[0].damage.values()
    assert float(damage) == damage.value > 0


def test_subject_and_object_are_names_of_relations_too(tmp_path: Path):
    assert ids_and_names("Subject, L0H1") == (["L0H1"], ["nsubj"])
    assert {each.name for each in role_tokens(["object", "det"], False)} == {"obj", "det"}
    path = tmp_path / "claims.toml"
    path.write_text('[[claim]]\nhead = "L0H0"\nrole = "subject"\n', encoding="utf-8")
    assert read_claims(path)[0][0].what == "syntactic:nsubj"


@pytest.mark.draws
def test_theme_and_width_of_a_figure_are_keywords_too():
    light, by_style, by_keywords = (
        result_of("heads").figure("map", **choices)
        for choices in ({}, {"style": Style("dark", width=3.3)}, {"theme": "dark", "width": "3.3in"})
    )
    assert by_keywords.get_figwidth() == by_style.get_figwidth() == pytest.approx(3.3)
    assert by_keywords.get_facecolor() == by_style.get_facecolor() != light.get_facecolor()


def test_a_pattern_is_an_array():
    result = result_of("heads")
    pattern = np.asarray(result.pattern("L1H1"))
    assert pattern.dtype == np.float32
    assert pattern.shape == (len(result.tokens), len(result.tokens))
    assert np.allclose(pattern.sum(1), 1)
    assert np.array_equal(pattern[2], result.layer_patterns(1)[1][2].numpy())
