"""Tiny encoder-decoders with random weights, sharpened so that a wrong formula shows, and tokenizers for them."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from tests.support.models import save_checkpoint

SOURCE, TARGET = "the cats saw the old house near the river", "die Katzen sahen das Haus"
_CORPUS = [SOURCE, TARGET, "a dog ran away", "ein Hund lief weg", "unbelievable stories"] * 4
_SIZES = {"d_model": 24, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
_BART = _SIZES | {
    "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 3, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 40, "bos_token_id": 0,
    "forced_eos_token_id": None,
}  # fmt: skip
_T5 = _SIZES | {
    "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4, "d_kv": 8, "d_ff": 32,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 6,
}  # fmt: skip

_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bart": ("BartForConditionalGeneration", _BART),
    "marian": ("MarianMTModel", _BART),
    "mbart": ("MBartForConditionalGeneration", _BART | {"scale_embedding": True}),
    "m2m_100": ("M2M100ForConditionalGeneration", _BART | {"pad_token_id": 2}),
    "pegasus": ("PegasusForConditionalGeneration", _BART),
    "t5": ("T5ForConditionalGeneration", _T5),
    "mt5": ("MT5ForConditionalGeneration", _T5 | {"feed_forward_proj": "gated-gelu"}),
    "umt5": ("UMT5ForConditionalGeneration", _T5 | {"feed_forward_proj": "gated-gelu"}),
}

FAMILIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    family: (getattr(transformers, name).config_class, getattr(transformers, name), settings)
    for family, (name, settings) in _FAMILIES.items()
}

PRE_NORM = ("mbart", "m2m_100", "pegasus", "t5", "mt5", "umt5")


@st.composite
def drawn_settings(draw: st.DrawFn) -> dict[str, Any]:
    """Settings of BART and its kin, drawn from what their configs allow."""
    heads = st.sampled_from([1, 2, 3, 6])
    values = {
        "d_model": st.sampled_from([12, 18, 24]), "encoder_attention_heads": heads, "decoder_attention_heads": heads,
        "encoder_layers": st.integers(1, 3), "decoder_layers": st.integers(1, 3), "encoder_ffn_dim": st.integers(5, 30),
        "activation_function": st.sampled_from(["gelu", "relu", "silu"]), "scale_embedding": st.booleans(),
        "pad_token_id": st.integers(0, 3), "tie_word_embeddings": st.booleans(),
    }  # fmt: skip
    return {name: draw(each) for name, each in values.items()}


def unigram_tokenizer(pairs: bool = True) -> PreTrainedTokenizerFast:
    """Pieces of SentencePiece's kind, </s> at the end, as T5 has them; and after each of a pair, if it parts them."""
    backend = Tokenizer(models.Unigram())
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    special = ["<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=90, special_tokens=special, unk_token="<unk>", show_progress=False)
    backend.train_from_iterator(_CORPUS, trainer)
    pieces = [(piece, round(score, 3)) for piece, score in json.loads(backend.to_str())["model"]["vocab"]]
    pieces[len(special) :] = sorted(pieces[len(special) :], key=lambda each: (-each[1], each[0]))
    backend.model = models.Unigram(pieces, special.index("<unk>"))  # else near ties are in an order by chance
    pair = "$A </s> $B </s>" if pairs else None
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", pair=pair, special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")


def sharp(family: str, vocab_size: int = 90, seed: int = 0, **changes: Any) -> Any:
    """A model whose attention is far from uniform, whose biases matter, and whose norms are no ones and zeros."""
    config_class, model_class, settings = FAMILIES[family]
    torch.manual_seed(seed)
    model = model_class(config_class(**{**settings, "vocab_size": vocab_size, **changes}))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            kind, of = name.split(".")[-2:]
            if kind == "shared":
                parameter.normal_()
            elif kind in ("q_proj", "k_proj") and of == "weight":
                parameter.mul_(40 if family in PRE_NORM else 20)
            elif kind in ("q", "k"):
                parameter.normal_(std=0.35)
            elif kind == "relative_attention_bias":
                parameter.normal_(std=2.0)
            elif of == "bias":
                parameter.normal_(std=0.4)
            elif "norm" in kind:
                parameter.uniform_(0.5, 1.5)
    return model.eval()


def saved(family: str, folder: Path, **changes: Any) -> Path:
    """A checkpoint folder with its tokenizer."""
    tokenizer = unigram_tokenizer()
    return save_checkpoint(sharp(family, len(tokenizer), **changes), tokenizer, folder / family)


def saved_marian(folder: Path) -> Path:
    """A Marian checkpoint with two SentencePiece models, as OPUS-MT has them; needs sentencepiece."""
    import json
    import warnings

    import sentencepiece
    from transformers import MarianTokenizer

    folder.mkdir(parents=True, exist_ok=True)
    pieces = ["</s>", "<unk>"]
    for name, texts in (("source", _CORPUS[::2]), ("target", _CORPUS[1::2])):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts * 4), model_prefix=str(folder / name), vocab_size=60, hard_vocab_limit=False,
            minloglevel=2,
        )  # fmt: skip
        (folder / f"{name}.model").rename(folder / f"{name}.spm")
        lines = (folder / f"{name}.vocab").read_text(encoding="utf-8").splitlines()
        (folder / f"{name}.vocab").unlink()
        pieces += [piece for piece in (line.partition("\t")[0] for line in lines) if piece not in pieces]
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate([*pieces, "<pad>"])}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sacremoses, which only normalises punctuation
        tokenizer = MarianTokenizer(str(folder / "source.spm"), str(folder / "target.spm"), str(folder / "vocab.json"))
    padding = len(pieces)
    ids = {"pad_token_id": padding, "decoder_start_token_id": padding, "eos_token_id": 0, "forced_eos_token_id": 0}
    return save_checkpoint(sharp("marian", padding + 1, **ids), tokenizer, folder)
