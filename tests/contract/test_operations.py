"""What ``analyze`` and ``profile`` ask of a device, counted on a processor: operations, and waits for a result."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model, LlamaConfig, LlamaModel

import attnviz
from attnviz.commands.profile.corpus_run import CorpusRun
from attnviz.inputs.batches import batches
from attnviz.inputs.reading import open_corpus, read_texts
from attnviz.inputs.text import tokenize
from attnviz.measures import relations
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.opening import open_checkpoint
from attnviz.run import verify
from attnviz.run.record import record_attention
from tests.benchmarks.long_text import text_of
from tests.support.corpora import treebank
from tests.support.families import first_of
from tests.support.long_runs import quiet_loop
from tests.support.models import bert_tokenizer, gpt2_tokenizer

WAITS = set("nonzero equal unique item tolist cpu numpy __bool__ __float__ __int__ __index__".split())
"""What a host has to wait for, where the tensor is on a device; torch dispatches no operation for some of them."""

SMALL = {"vocab_size": 500, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128}
SMALL |= {"max_position_embeddings": 1024, "attn_implementation": "eager", "bos_token_id": 0, "eos_token_id": 0}
MODELS = {
    "gpt2": lambda layers: GPT2Model(GPT2Config(num_hidden_layers=layers, **SMALL)),
    "bert": lambda layers: BertModel(BertConfig(num_hidden_layers=layers, **SMALL)),
    "llama": lambda layers: LlamaModel(LlamaConfig(num_hidden_layers=layers, num_key_value_heads=2, **SMALL)),
}


class Waits(TorchFunctionMode):
    """Counts what a host has to wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.n = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.n += getattr(func, "__name__", "") in WAITS
        return func(*args, **(kwargs or {}))


class Counted(TorchDispatchMode):
    """Counts operations by name."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def opened(kind: str, layers: int) -> tuple[Checkpoint, dict[str, Any]]:
    """A model, and what its own pass has to be told not to keep."""
    torch.manual_seed(0)
    checkpoint, _ = open_checkpoint(
        MODELS[kind](layers).eval(), bert_tokenizer() if kind == "bert" else gpt2_tokenizer()
    )
    return checkpoint, {} if kind == "bert" else {"use_cache": False}


def counted(
    monkeypatch: pytest.MonkeyPatch, kind: str, layers: int, implementation: str = "sdpa", tokens: int = 128
) -> tuple[int, int, int]:
    """Operations of the model's own eager pass, operations of ``analyze``, and the waits of its verified pass."""
    checkpoint, more = opened(kind, layers)
    text = text_of(tokens - 8, checkpoint.tokenizer)
    inputs = tokenize(checkpoint, text).model_inputs(checkpoint.device)
    with torch.inference_mode(), Counted() as own:
        checkpoint.model(**inputs, **more)
    checkpoint.model.set_attn_implementation(implementation)
    waits = Waits()

    def waiting(*given: Any, **named: Any) -> Any:
        with waits:
            return record_attention(*given, **named)

    monkeypatch.setattr(verify, "record_attention", waiting)
    with Counted() as ours:
        attnviz.analyze(text, checkpoint, syntax=False)
    return own.operations.total(), ours.operations.total(), waits.n


@pytest.mark.parametrize("implementation", first_of(["sdpa", "eager"]))
@pytest.mark.parametrize(("kind", "ratio"), [("gpt2", 5.8), ("bert", 6.5), ("llama", 5.3)])
def test_the_device_is_seldom_waited_for_and_asked_little(
    monkeypatch: pytest.MonkeyPatch, kind: str, ratio: float, implementation: str
) -> None:
    """Every block of rows has to know its pairs, and the mask that hides keys: no layer waits."""
    own, ours, waits = counted(monkeypatch, kind, 4, implementation)
    more_own, more, more_waits = counted(monkeypatch, kind, 8, implementation)
    assert waits == more_waits <= 6
    assert ours <= ratio * own
    assert more <= ratio * more_own


@pytest.mark.thorough
def test_a_long_text_waits_no_oftener_in_more_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    waits, more_waits = (counted(monkeypatch, "gpt2", layers, tokens=1024)[2] for layers in (2, 4))
    assert waits == more_waits <= 8


def profiled(tmp_path: Path, kind: str, layers: int) -> tuple[int, int, int]:
    """Operations of the model's own eager pass over a batch, those of counting it for a profile, and the waits."""
    checkpoint, more = opened(kind, layers)
    corpus = open_corpus(treebank(tmp_path / "trees.conllu", 24))
    run = CorpusRun(quiet_loop(checkpoint, [corpus]))
    texts = [text for text in map(run.prepared, read_texts(corpus, None)) if text is not None]
    batch = next(batches(checkpoint, texts, 16))
    run.count(0, batch)  # the first batch is verified, the second is not
    with torch.inference_mode(), Counted() as own:
        checkpoint.running(**batch.inputs, output_attentions=True, **more)
    with Counted() as ours, Waits() as waits:
        run.count(0, batch)
    return own.operations.total(), ours.operations.total(), waits.n


@pytest.mark.parametrize(("kind", "ratio"), first_of([("gpt2", 6.5), ("bert", 8.2), ("llama", 4.7)]))
def test_a_batch_of_a_profile_waits_no_oftener_in_more_layers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, ratio: float
) -> None:
    monkeypatch.setattr(relations, "fast_argmax", lambda rows: rows.argmax(-1))  # NumPy's is of a processor alone
    own, ours, waits = profiled(tmp_path, kind, 4)
    more_own, more, more_waits = profiled(tmp_path, kind, 8)
    assert waits == more_waits <= 7
    assert ours <= ratio * own
    assert more <= ratio * more_own
