"""Small checkpoints made on the spot: sharpened, so that a wrong formula shows, or built by hand.

Freshly initialised models hide bugs: their attention is almost uniform and their biases are zero.
Every model here has Q and K weights multiplied and random biases, or heads that are known by design.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model, PreTrainedTokenizerFast

WORDS = (
    "the cat that i saw ran away one two three four five dog house tree a in on of to and was it he she they "
    "un believ able ness s ' . , ! ? - ( ) [ ] / $ \\ b c d e f g"
).split()
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = ["##believ", "##able", "##ness", "##s", "##ing", "##ed"]


def bert_tokenizer() -> PreTrainedTokenizerFast:
    """WordPiece over a few dozen words, with BERT's [CLS] A [SEP] B [SEP]; "unbelievableness" is four pieces."""
    vocabulary = {piece: i for i, piece in enumerate([*SPECIALS, *WORDS, *PIECES])}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        mask_token="[MASK]",
    )


def gpt2_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE trained on a few words; everything else falls apart into bytes."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=True)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>"],
        show_progress=False,
    )
    backend.train_from_iterator([" ".join(WORDS[:30])] * 20, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<|endoftext|>", eos_token="<|endoftext|>", unk_token="<|endoftext|>"
    )


def bert_config(**changes: Any) -> BertConfig:
    settings = {
        "vocab_size": len(SPECIALS) + len(WORDS) + len(PIECES),
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 40,
    }
    return BertConfig(**{**settings, **changes})


def gpt2_config(**changes: Any) -> GPT2Config:
    settings = {
        "vocab_size": 400,
        "n_embd": 32,
        "n_layer": 3,
        "n_head": 4,
        "n_positions": 40,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    return GPT2Config(**{**settings, **changes})


def sharp_bert(seed: int = 0, model_class: type[torch.nn.Module] = BertModel, **changes: Any) -> Any:
    """A BERT whose attention is far from uniform and whose biases matter."""
    torch.manual_seed(seed)
    model = model_class(bert_config(**changes))  # type: ignore[call-arg]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".attention.self." in name and ".weight" in name and ".value." not in name:
                parameter.mul_(20)
            if ".attention." in name and name.endswith(".bias"):
                parameter.normal_(std=0.5)
    return model.eval()


def sharp_gpt2(seed: int = 0, model_class: type[torch.nn.Module] = GPT2Model, **changes: Any) -> Any:
    """A GPT-2 whose attention is far from uniform and whose biases matter."""
    torch.manual_seed(seed)
    model = model_class(gpt2_config(**changes))  # type: ignore[call-arg]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("attn.c_attn.weight"):
                parameter[:, : 2 * parameter.shape[0]].mul_(20)
            if ".attn." in name and name.endswith(".bias"):
                parameter.normal_(std=0.5)
    return model.eval()


def save_checkpoint(model: Any, tokenizer: Any, folder: Path) -> Path:
    """A checkpoint folder as save_pretrained writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


# --- built by hand: what every head does is known --------------------------------------------------

Target = Callable[[int], Sequence[int]]
"""From a query's position to the positions that its head attends to, about evenly; to all alike where it names none."""

LOOKS_AT: dict[str, Target] = {
    "previous-token": lambda query: [query - 1],
    "next-token": lambda query: [query + 1],
    "current-token": lambda query: [query],
    "local": lambda query: [query - 1, query, query + 1],
    "long-range": lambda query: [query - 6] if query > 6 else [query + 6],
    "sink": lambda query: [0],
    "broad": lambda query: [],
}
"""By the label that it must get, what a head of :func:`hand_built_bert` looks at."""

CAUSAL_LOOKS_AT: dict[str, Target] = {
    "previous-token": lambda query: [query - 1],
    "current-token": lambda query: [query],
    "long-range": lambda query: [query - 6] if query > 6 else [0],
    "sink": lambda query: [0],
    "broad": lambda query: [],
}
"""By the label that it must get, what a head of :func:`hand_built_gpt2` looks at."""

_POSITION_SIZE = 10.0
_SCORE = 30.0  # of a position looked at, over sqrt(d_head); all others are near 0


def hand_built_bert(layers: Sequence[Sequence[Target]], d_head: int = 32) -> Any:
    """A BERT whose every head attends where its target says, on texts of up to ``d_head`` tokens.

    Position p is the unit vector e_p, large beside the words, and stays so through LayerNorm and the
    layers, whose outputs are small. W_Q reads the query's position, W_K has in row q the positions
    that query q looks at; so q·k is large for those and near zero for all others. Values, W_O and
    the rest are as initialised.

    Args:
        layers: for each layer the target of each head, at least two heads (one number in all layers).
        d_head: width of a head, and longest text.
    """
    n_heads = _n_heads(layers)
    torch.manual_seed(0)
    config = bert_config(
        hidden_size=n_heads * d_head,
        num_hidden_layers=len(layers),
        num_attention_heads=n_heads,
        max_position_embeddings=d_head,
    )
    model = BertModel(config)
    with torch.no_grad():
        model.embeddings.position_embeddings.weight.copy_(_POSITION_SIZE * torch.eye(d_head, n_heads * d_head))
        for layer, heads in zip(model.encoder.layer, layers, strict=True):
            attention = layer.attention.self
            query, key = _position_weights(heads, d_head)
            attention.query.weight.copy_(query)
            attention.key.weight.copy_(key)
    return model.eval()


def hand_built_gpt2(layers: Sequence[Sequence[Target]], d_head: int = 32) -> Any:
    """A GPT-2 whose every head attends where its target says; see :func:`hand_built_bert`.

    Targets after the query, or before the text, are not to be had; a query all of whose targets are
    such attends to all that it sees alike.
    """
    n_heads = _n_heads(layers)
    d_model = n_heads * d_head
    torch.manual_seed(0)
    model = GPT2Model(gpt2_config(n_embd=d_model, n_layer=len(layers), n_head=n_heads, n_positions=d_head))
    with torch.no_grad():
        model.wpe.weight.copy_(_POSITION_SIZE * torch.eye(d_head, d_model))
        for block, heads in zip(model.h, layers, strict=True):
            query, key = _position_weights(heads, d_head)
            block.attn.c_attn.weight[:, : 2 * d_model] = torch.cat([query, key]).T
    return model.eval()


def _n_heads(layers: Sequence[Sequence[Target]]) -> int:
    (n_heads,) = {len(heads) for heads in layers}
    assert n_heads >= 2, "LayerNorm centres x, so the model has to be wider than its positions"
    return n_heads


def _position_weights(heads: Sequence[Target], d_head: int) -> tuple[torch.Tensor, torch.Tensor]:
    """W_Q and W_K, [d_model, d_model] each, rows = outputs head by head."""
    d_model = len(heads) * d_head
    queries = torch.eye(d_head, d_model).repeat(len(heads), 1)
    keys = torch.zeros(len(heads), d_head, d_model)
    for head, target in enumerate(heads):
        for query in range(d_head):
            keys[head, query, [key for key in target(query) if 0 <= key < d_head]] = 1.0
    size = (_SCORE * d_head**0.5 / d_model) ** 0.5  # LayerNorm makes a unit vector sqrt(d_model) long
    return size * queries, size * keys.flatten(0, 1)
