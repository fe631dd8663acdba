"""Small checkpoints made on the spot: sharpened, so that a wrong formula shows, or built by hand.

Freshly initialised models hide bugs: their attention is almost uniform and their biases are zero.
Every model here has Q and K weights multiplied and random biases, or heads that are known by design.
"""

import copy
import random
from collections.abc import Callable, Sequence
from enum import Enum
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
LONG_TEXT = "the cat that i saw ran away unbelievableness , the dog saw the house . " * 3


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
    special = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, mask_token="[MASK]", **special)


def gpt2_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE trained on a few words; everything else falls apart into bytes."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=True)
    alphabet, special = pre_tokenizers.ByteLevel.alphabet(), "<|endoftext|>"
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, special_tokens=[special], show_progress=False
    )
    backend.train_from_iterator([" ".join(WORDS[:30])] * 20, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=special, eos_token=special, unk_token=special)


def word_tokenizer(without: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """A token a word of every ordinal sequence, but for some words, of which all are unknown; of a few others, too."""
    from attnviz.measures.successors import SEQUENCES  # after coverage has begun

    ordinal = [word for _, words in SEQUENCES.values() for word in words if word not in without]
    vocabulary = {word: id for id, word in enumerate(dict.fromkeys(["[UNK]", *ordinal, *WORDS]))}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", eos_token="[UNK]")


def many_words_tokenizer(n_words: int = 800) -> PreTrainedTokenizerFast:
    """A token a word, w0 to w799, between [CLS] and [SEP]."""
    vocabulary = {word: id for id, word in enumerate([*SPECIALS, *(f"w{number}" for number in range(n_words))])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    special = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, mask_token="[MASK]", **special)


_BERT = {"vocab_size": len(SPECIALS) + len(WORDS) + len(PIECES), "hidden_size": 32, "num_hidden_layers": 3}
_BERT |= {"num_attention_heads": 4, "intermediate_size": 48, "max_position_embeddings": 40}
_GPT2 = {"vocab_size": 400, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 40}
_GPT2 |= {"bos_token_id": 0, "eos_token_id": 0}


def bert_config(**changes: Any) -> BertConfig:
    return BertConfig(**{**_BERT, **changes})


def gpt2_config(**changes: Any) -> GPT2Config:
    return GPT2Config(**{**_GPT2, **changes})


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


def tuned(model, layer, heads):
    """The model with the queries of some heads of a layer negated, as if it had been fine-tuned."""
    other = copy.deepcopy(model)
    attention = other.encoder.layer[layer].attention.self
    for head in heads:
        rows = slice(head * attention.attention_head_size, (head + 1) * attention.attention_head_size)
        with torch.no_grad():
            attention.query.weight[rows] *= -1
    return other


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

# What each head of hand_built_bert and hand_built_gpt2 looks at, by the label that it must get.
CAUSAL_LOOKS_AT: dict[str, Target] = {
    "previous-token": lambda query: [query - 1],
    "current-token": lambda query: [query],
    "long-range": lambda query: [query - 6] if query > 6 else [0],
    "sink": lambda query: [0],
    "broad": lambda query: [],
}
LOOKS_AT: dict[str, Target] = CAUSAL_LOOKS_AT | {
    "next-token": lambda query: [query + 1],
    "local": lambda query: [query - 1, query, query + 1],
    "long-range": lambda query: [query - 6] if query > 6 else [query + 6],
}

_POSITION_SIZE = 10.0
_SCORE = 30.0  # of a position looked at, over sqrt(d_head); all others are near 0


def hand_built_bert(layers: Sequence[Sequence[Target]], d_head: int = 32, **changes: Any) -> Any:
    """A BERT whose every head attends where its target says, on texts of up to ``d_head`` tokens.

    Position p is the unit vector e_p, large beside the words, and stays so through LayerNorm and the layers, whose
    outputs are small. W_Q reads the query's position, W_K has in row q the positions that query q looks at; so q·k is
    large for those and near zero for all others. Each layer has at least two heads, as many as the others.
    """
    n_heads = len(layers[0])
    assert n_heads >= 2, "LayerNorm centres x, so the model has to be wider than its positions"
    torch.manual_seed(0)
    sizes = {"hidden_size": n_heads * d_head, "num_hidden_layers": len(layers), "num_attention_heads": n_heads}
    config = bert_config(max_position_embeddings=d_head, **sizes, **changes)
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
    n_heads = len(layers[0])
    d_model = n_heads * d_head
    torch.manual_seed(0)
    model = GPT2Model(gpt2_config(n_embd=d_model, n_layer=len(layers), n_head=n_heads, n_positions=d_head))
    with torch.no_grad():
        model.wpe.weight.copy_(_POSITION_SIZE * torch.eye(d_head, d_model))
        for block, heads in zip(model.h, layers, strict=True):
            query, key = _position_weights(heads, d_head)
            block.attn.c_attn.weight[:, : 2 * d_model] = torch.cat([query, key]).T
    return model.eval()


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


# --- built by hand, two layers: an induction head needs a head below it that carries the previous token --------


class ByToken(Enum):
    """Heads that look at tokens for what they are, wherever they stand; in GPT-2 only at earlier ones."""

    AFTER_A_COPY = "the token after another copy of the query's"
    ALIKE = "other tokens of the query's group"


def far_away(query: int) -> list[int]:
    """One position at least four away, at no fixed distance: an earlier one, for the first words one of the next."""
    return [query + 4] if query < 5 else [random.Random(query).randint(1, query - 4)]


def far_back(query: int) -> list[int]:
    """One earlier position, at least four away and at no fixed distance; the first for the first few."""
    return [0] if query < 5 else [random.Random(query).randint(1, query - 4)]


# What each head of known_bert and known_gpt2 looks at, layer by layer, by the role that it must get. The first head
# carries the previous token up.
_OFFSETS: dict[str, Target | ByToken] = {"offset:-3": lambda query: [query - 3], "sink": lambda query: [0]}
_TOKENS: dict[str, Target | ByToken] = {"induction": ByToken.AFTER_A_COPY, "broad": lambda query: []}
KNOWN_HEADS: list[dict[str, Target | ByToken]] = [
    {"previous-token": lambda query: [query - 1], "next-token": lambda query: [query + 1], **_OFFSETS},
    {**_TOKENS, "long-range": far_away, "semantic": ByToken.ALIKE},
]
CAUSAL_KNOWN_HEADS: list[dict[str, Target | ByToken]] = [
    {"previous-token": lambda query: [query - 1], "current-token": lambda query: [query], **_OFFSETS},
    {**_TOKENS, "long-range": far_back, "semantic": ByToken.ALIKE},
]

_PART = 64  # of the residual stream: position, own token, previous token, and nothing for the rest
_N_HEADS = 4
_D_HEAD = 2 * _PART
_D_MODEL = _N_HEADS * _D_HEAD


def known_bert() -> Any:
    """A BERT with the heads of :data:`KNOWN_HEADS`, on texts of up to 64 tokens; see :func:`_codes` for how."""
    sizes = {"hidden_size": _D_MODEL, "num_hidden_layers": 2, "num_attention_heads": _N_HEADS}
    config = bert_config(max_position_embeddings=_PART, **sizes)
    model = BertModel(config)
    with torch.no_grad():
        words, positions = _codes(config.vocab_size)
        model.embeddings.word_embeddings.weight.copy_(words)
        model.embeddings.position_embeddings.weight.copy_(positions)
        model.embeddings.token_type_embeddings.weight.zero_()
        for number, (layer, heads) in enumerate(zip(model.encoder.layer, KNOWN_HEADS, strict=True)):
            query, key, value, output = _known_weights(list(heads.values()), carries=number == 0)
            attention = layer.attention
            modules = (attention.self.query, attention.self.key, attention.self.value, attention.output.dense)
            for module, weight in zip(modules, (query, key, value, output), strict=True):
                module.weight.copy_(weight)
            layer.output.dense.weight.zero_()
    return model.eval()


def known_gpt2() -> Any:
    """A GPT-2 with the heads of :data:`CAUSAL_KNOWN_HEADS`, on texts of up to 64 tokens; see :func:`_codes` for how."""
    config = gpt2_config(n_embd=_D_MODEL, n_layer=2, n_head=_N_HEADS, n_positions=_PART)
    model = GPT2Model(config)
    with torch.no_grad():
        words, positions = _codes(config.vocab_size)
        model.wte.weight.copy_(words)
        model.wpe.weight.copy_(positions)
        for number, (block, heads) in enumerate(zip(model.h, CAUSAL_KNOWN_HEADS, strict=True)):
            query, key, value, output = _known_weights(list(heads.values()), carries=number == 0)
            block.attn.c_attn.weight.copy_(torch.cat([query, key, value]).T)
            block.attn.c_proj.weight.copy_(output.T)
            block.mlp.c_proj.weight.zero_()
    return model.eval()


def _codes(n_entries: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Word and position embeddings, [n_entries, d_model] and [64, d_model].

    Position p is the p-th unit vector of the first 64 dimensions. A token is a vector of random signs in the
    next 64, as many + as -, so that LayerNorm's centring leaves it alone; half of them are those of one of eight
    groups. Two tokens of a group have a cosine of about 0.5, two others are nearly orthogonal. Both have the
    same length.

    The first head of the first layer looks at the previous token and copies its code to the third 64
    dimensions, where the induction head above looks for the code of its own token. All other values, and what
    comes after attention, are zero, so that the layer above still finds all codes. A token is of its own group,
    and what follows it follows a copy of it: these keys are kept from the two heads by position.
    """
    generator = torch.Generator().manual_seed(0)
    signs = torch.tensor([1.0, -1.0]).repeat(_PART // 4)  # of the group, or of the token's own half

    def draw() -> torch.Tensor:
        return signs[torch.randperm(len(signs), generator=generator)]

    groups = [draw() for _ in range(8)]
    words, positions = torch.zeros(n_entries, _D_MODEL), torch.zeros(_PART, _D_MODEL)
    for entry in range(n_entries):
        words[entry, _PART : 2 * _PART] = torch.cat([groups[entry % 8], draw()])
    positions[:, :_PART] = _PART**0.5 * torch.eye(_PART)
    return words, positions


def _known_weights(heads: Sequence[Target | ByToken], carries: bool) -> tuple[torch.Tensor, ...]:
    """W_Q, W_K, W_V and W_O of a layer, [d_model, d_model] each, rows = outputs."""
    length = (_D_MODEL / (2 if carries else 3)) ** 0.5  # of each code after LayerNorm: two there, or three
    size = (_SCORE * _D_HEAD**0.5) ** 0.5 / length
    eye = torch.eye(_PART)
    queries, keys = torch.zeros(2, _N_HEADS, _D_HEAD, _D_MODEL)
    for query, key, head in zip(queries, keys, heads, strict=True):
        if isinstance(head, ByToken):
            far = 1 if head is ByToken.AFTER_A_COPY else 0  # from the query to the key that is not meant
            query[_PART:, :_PART] = 2 * size * eye
            key[_PART : 2 * _PART - far, far:_PART] = -size * eye[far:, far:]
        if head is ByToken.AFTER_A_COPY:
            query[:_PART, _PART : 2 * _PART] = key[:_PART, 2 * _PART : 3 * _PART] = size * eye
        elif head is ByToken.ALIKE:
            group = slice(_PART, _PART + _PART // 2)
            query[: _PART // 2, group] = key[: _PART // 2, group] = 2**0.5 * size * torch.eye(_PART // 2)
        else:
            query[:_PART, :_PART] = size * eye
            for place in range(_PART):
                key[place, [position for position in head(place) if 0 <= position < _PART]] = size
    value, output = torch.zeros(2, _D_MODEL, _D_MODEL)
    if carries:
        value[:_PART, _PART : 2 * _PART] = eye
        output[2 * _PART : 3 * _PART, :_PART] = eye
    return queries.flatten(0, 1), keys.flatten(0, 1), value, output
