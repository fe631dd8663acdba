"""Explained layers of small models, and their verified steps, for the tests of ``attnviz explain``."""

from collections.abc import Sequence
from typing import Any

import torch

from attnviz.commands.explain import Explanation, explain
from attnviz.inputs.text import tokenize
from attnviz.models.checkpoint import Checkpoint, from_loaded
from attnviz.run.layer_steps import VerifiedStages, verify_stages
from tests.conftest import SENTENCE
from tests.support.models import bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2


def of_bert(text: str = SENTENCE, changes: dict[str, Any] | None = None, **options: Any) -> Explanation:
    return explain(text, sharp_bert(**(changes or {})), tokenizer=bert_tokenizer(), **options)


def of_gpt2(text: str = SENTENCE, changes: dict[str, Any] | None = None, **options: Any) -> Explanation:
    return explain(text, sharp_gpt2(**(changes or {})), tokenizer=gpt2_tokenizer(), **options)


def sharper(model: Any) -> Any:
    """Norms that weight and shift, and a feed-forward network whose activation matters."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(norm in name for norm in ("LayerNorm", "ln_1", "ln_2", "ln_f")):
                parameter.normal_(mean=1.0 if name.endswith("weight") else 0.0, std=0.3)
            elif "intermediate.dense" in name or "mlp.c_fc" in name or name.endswith(".bias"):
                parameter.normal_(std=0.5)
    return model


def bert(**changes: Any) -> Checkpoint:
    return from_loaded(sharper(sharp_bert(**changes)), bert_tokenizer())


def gpt2(**changes: Any) -> Checkpoint:
    return from_loaded(sharper(sharp_gpt2(**changes)), gpt2_tokenizer())


def steps_of(
    checkpoint: Checkpoint, layers: Sequence[int] = (0, 1, 2), text: str = SENTENCE, pair: str | None = None
) -> list[VerifiedStages]:
    return list(verify_stages(checkpoint, tokenize(checkpoint, text, pair), layers))
