"""Models that torch compiled, in whole or in part: their uncompiled modules run, and nothing is compiled."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from accelerate.utils import compile_regions
from torch import nn

import attnviz
from attnviz.models.checkpoint import Checkpoint, from_loaded
from attnviz.present.sentences import verification_line
from tests.support.families import TEXT, model_of, verified


def refusing(*_: Any) -> Any:
    raise AssertionError("compiled")


def each_layer(model: Any) -> Any:
    for module in model.modules():
        if isinstance(module, nn.ModuleList):
            for layer in module:
                layer.compile(backend=refusing)
    return model


def each_forward(model: Any) -> Any:
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    for module in (model, *(layer for layers in lists for layer in layers)):
        module.forward = torch.compile(module.forward, backend=refusing)
    return model


WAYS: dict[str, Callable[[Any], Any]] = {
    "each layer": each_layer,
    "each forward": each_forward,
    "regions": lambda model: compile_regions(model, backend=refusing),
    "whole": lambda model: torch.compile(model, backend=refusing),
}


def measured(checkpoint: Checkpoint) -> dict[str, Any]:
    ablation = attnviz.ablate([TEXT, "the dog ran"], checkpoint)
    return {
        "heads": attnviz.analyze(TEXT, checkpoint).pattern("L1H1"),
        "outputs": [head.norm for head in attnviz.head_outputs(TEXT, checkpoint).heads],
        "ablate": [head.damage["loss"].value for head in ablation.heads],
        "explain": attnviz.explain(TEXT, checkpoint, layer=1).tensor("pattern"),
        "rollout": attnviz.rollout(TEXT, checkpoint).inputs.rollout,
    }


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("family", "way"), [("gpt2", "each layer"), ("mixtral", "each forward"), ("bert", "regions"), ("llama", "whole")]
)
def test_a_compiled_model_gives_what_it_gives_uncompiled(family, way):
    model, tokenizer = model_of(family, headed=True)
    expected = measured(from_loaded(model, tokenizer))
    compiled = from_loaded(WAYS[way](model), tokenizer)
    for command, found in measured(compiled).items():
        torch.testing.assert_close(torch.as_tensor(found), torch.as_tensor(expected[command]))
    assert compiled.compiled


@pytest.mark.parametrize("way", WAYS)
def test_it_is_said_that_the_uncompiled_modules_were_verified(way):
    model, tokenizer = model_of("gpt2")
    for compile_it, said in ((lambda model: model, False), (WAYS[way], True)):
        checkpoint = from_loaded(compile_it(model), tokenizer)
        line = verification_line(verified(checkpoint).verification, checkpoint).plain
        assert ("compiled" in line) == said
