"""``attnviz heads --each-line --alignments``: cross-attention against gold word alignments."""

import csv
import json
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BartConfig, BartForConditionalGeneration, PreTrainedTokenizerFast
from typer.testing import CliRunner

import attnviz
from attnviz.cli.program import app
from attnviz.models.checkpoint import from_loaded
from tests.support.encoder_decoders import saved_marian, sharp, unigram_tokenizer
from tests.support.models import bert_tokenizer, save_checkpoint, sharp_bert

SMALL, LARGE = "abcdef", "ABCDEF"


@torch.no_grad()
def by_hand() -> tuple[Any, PreTrainedTokenizerFast]:
    """A model that translates a to A; its cross-attention looks for the word that it reads, the next, and nothing.

    All that is written into the stream is zero, and each letter is one of six orthogonal vectors, small and large ones
    alike; the start of a target is as F, so that A, which every target begins with, is next.
    """
    words = ["<s>", "</s>", "<unk>", *SMALL, *LARGE]
    backend = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<s>", eos_token="</s>", unk_token="<unk>")
    torch.manual_seed(0)
    model = BartForConditionalGeneration(BartConfig(
        vocab_size=len(words), d_model=24, encoder_layers=1, decoder_layers=1, encoder_attention_heads=3,
        decoder_attention_heads=3, encoder_ffn_dim=8, decoder_ffn_dim=8, max_position_embeddings=20, pad_token_id=0,
        bos_token_id=0, eos_token_id=1, decoder_start_token_id=0, forced_eos_token_id=None,
    ))  # fmt: skip
    letters = torch.zeros(6, 24)
    for number in range(6):  # of mean zero, so that no layer norm mixes them
        letters[number, 2 * number : 2 * number + 2] = torch.tensor([1.0, -1.0])
    table = model.model.shared.weight
    table[:3], table[3:9], table[9:] = 0, letters, letters
    table[0] = letters[5]
    for name, parameter in model.named_parameters():
        if "embed_positions" in name or name.endswith(("out_proj.weight", "fc2.weight")):
            parameter.zero_()
    cross = model.model.decoder.layers[0].encoder_attn
    reading, scale = torch.zeros(8, 24), 4.0
    reading[:6] = scale * letters
    cross.k_proj.weight.copy_(torch.cat([reading, reading, reading]))
    following = torch.cat([reading[:6].roll(1, 0), reading[6:]])  # of a letter, the one after it
    cross.q_proj.weight.copy_(torch.cat([reading, following, torch.zeros(8, 24)]))
    return model.eval(), tokenizer


PAIRS = ("c a d b ||| A B C D", "b a ||| A B", "a c b ||| A B C", "d c e b a ||| A B C D E")


def gold_of(pair: str) -> str:
    source, target = (side.split() for side in pair.split(" ||| "))
    return " ".join(f"{source.index(word.lower())}-{number}" for number, word in enumerate(target))


def written(folder: Path, pairs: Any = PAIRS, gold: Any = None) -> tuple[Path, Path]:
    files = folder / "pairs.txt", folder / "gold.txt"
    lines = pairs, map(gold_of, pairs) if gold is None else gold
    for file, of_file in zip(files, lines, strict=True):
        file.write_text("".join(f"{line}\n" for line in of_file), encoding="utf-8")
    return files


def test_the_heads_that_align_are_found_by_the_rows_that_do(tmp_path):
    model, tokenizer = by_hand()
    pairs, gold = written(tmp_path, PAIRS * 8)
    result = attnviz.analyze_each(pairs, model, tokenizer=tokenizer, alignments=gold, syntax=False)
    reads, predicts, flat = (result.head(f"X0H{number}").statistics for number in range(3))
    for name, value in (("aer", 0), ("precision", 1), ("recall", 1)):
        assert reads[f"{name}_input"].mean == predicts[f"{name}_output"].mean == value
    assert min(reads["aer_output"].mean or 0, predicts["aer_input"].mean or 0) > 0.8
    # a flat head links all words to the first of the source, of which one is right
    assert flat["aer_output"].mean == pytest.approx(fmean(1 - 1 / n for n in (4, 2, 3, 5)))
    # that is chance; the diagonal is right in none of 4, none of 2, the first of 3, and one of 5
    assert flat["aer_baseline"].mean == pytest.approx(fmean([3 / 4, 1 / 2, 2 / 3, 4 / 5]))
    assert result.alignment_heads == [[0, 0], [0, 1]]
    assert [str(head.id) for head in result.aligned] == ["X0H0", "X0H1", "X0H2"]
    assert result.head("E0H0").statistics["aer_input"].n == 0
    few = attnviz.analyze_each(list(PAIRS), model, tokenizer=tokenizer, alignments=written(tmp_path)[1], syntax=False)
    assert few.alignment_heads == []


def test_a_word_that_no_row_reads_has_no_link(tmp_path):
    model, tokenizer = by_hand()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    _, gold = written(tmp_path, PAIRS[:1])
    result = attnviz.analyze_each(list(PAIRS[:1]), model, tokenizer=tokenizer, alignments=gold, syntax=False)
    reads = result.head("X0H0").statistics  # a decoder never reads the last token of its target
    assert (reads["precision_input"].mean, reads["recall_input"].mean) == (1, 3 / 4)


SOURCE, TARGET = "a cat saw the unbelievable house", "die Katzen sahen das unbelievable Haus"


@pytest.mark.parametrize("family", ["t5", *(pytest.param(of, marks=pytest.mark.thorough) for of in ("bart", "marian"))])
def test_words_of_pieces_are_linked_as_by_a_plain_loop(family, tmp_path):
    model, tokenizer = sharp(family), unigram_tokenizer()
    if family == "marian":
        pytest.importorskip("sentencepiece")
        checkpoint, _ = attnviz.models.opening.open_checkpoint(saved_marian(tmp_path / "marian"), device="cpu")
        model, tokenizer = checkpoint.whole, checkpoint.tokenizer
    gold = tmp_path / "gold.txt"
    gold.write_text("0-0 1-1 2-2 3?3 4p4 5-5 0?1 0?2 0?3 0?4 0?5")
    sure = {(0, 0), (1, 1), (2, 2), (5, 5)}
    possible = sure | {(3, 3), (4, 4), *((0, word) for word in range(1, 6))}
    text = f"{SOURCE} ||| {TARGET}"
    result = attnviz.analyze_each([text], from_loaded(model, tokenizer), alignments=gold, syntax=False)
    source, target = tokenizer(SOURCE).input_ids, tokenizer(text_target=TARGET).input_ids
    read = torch.tensor([[model.config.decoder_start_token_id, *target[:-1]]])
    model.set_attn_implementation("eager")
    with torch.no_grad():
        output = model(torch.tensor([source]), decoder_input_ids=read, output_attentions=True, use_cache=False)
    columns, rows = list[list[int]](), list[list[int]]()
    for ids, words in ((source, columns), (target, rows)):
        for position, piece in enumerate(tokenizer.convert_ids_to_tokens(ids[:-1])):
            if piece.startswith("▁"):  # perhaps alone
                words.append([])
            words[-1].append(position)
    assert len(columns) == len(rows) == 6
    assert max(map(len, columns)) > 1 < max(map(len, rows))
    for layer, pattern in enumerate(output.cross_attentions):
        for head in range(pattern.shape[1]):
            found = result.head(f"X{layer}H{head}").statistics
            for shift, name in enumerate(("output", "input")):
                links = set()
                for word, own in enumerate(rows):
                    weights = pattern[0, head, [row + shift for row in own]]
                    averages = [float(weights[:, column].sum(-1).mean()) for column in columns]
                    links.add((max(range(6), key=averages.__getitem__), word))
                on_sure, on_possible = len(links & sure), len(links & possible)
                assert found[f"precision_{name}"].mean == pytest.approx(on_possible / 6)
                assert found[f"recall_{name}"].mean == pytest.approx(on_sure / 4)
                assert found[f"aer_{name}"].mean == pytest.approx(1 - (on_sure + on_possible) / (6 + 4))


@pytest.mark.usefixtures("undrawn")
def test_files_and_tables_have_the_rates_and_the_list_of_heads(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_checkpoint(*by_hand(), tmp_path / "by-hand")
    rows = [pair.replace(" ||| ", ",") for pair in PAIRS * 8]
    Path("pairs.csv").write_text("\n".join(["text,target", *rows]))
    written(tmp_path, PAIRS * 8)
    words = ["heads", "pairs.csv", "--each-line", "--pair-column", "target", "--alignments", "gold.txt"]
    done = CliRunner().invoke(app, [*words, "-m", "by-hand", "-o", "out", "--no-syntax", "--figures", "none"])
    assert done.exit_code == 0, done.output
    assert "[[0, 0], [0, 1]]" in done.stdout
    document = json.loads(Path("out/heads-texts.json").read_text())
    assert document["alignment_heads"] == [[0, 0], [0, 1]]
    assert Path(document["alignments"]).name == "gold.txt"
    with Path("out/heads-texts.csv").open() as file:
        found = [row for row in csv.DictReader(file) if (row["id"], row["statistic"]) == ("X0H0", "aer_input")]
    assert [(row["n"], float(row["mean"])) for row in found] == [("32", 0.0)]
    lines = list(map(json.loads, Path("out/heads.jsonl").read_text().splitlines()))
    assert {next(head for head in line["heads"] if head["id"] == "X0H1")["aer_output"] for line in lines} == {0.0}


@pytest.mark.parametrize(
    ("pairs", "gold", "options", "word"),
    [
        (["a b"], ["0-0"], {}, r"\|\|\|"),
        (["a b ||| A ||| B"], ["0-0"], {}, r"\|\|\|"),
        (["a b ||| A"], ["0-0", "0-0"], {}, "2"),
        (["a b ||| A"], ["0-1"], {}, "gold.txt:1: .*'0-1'"),
        (["a ||| A", "a b ||| A"], ["0-0", "2-0"], {}, "gold.txt:2: .*'2-0'"),
        (["a b ||| A"], ["0=0"], {}, "'0=0'"),
        (["a b ||| A", "a ||| A"], ["0-0", " "], {}, "gold.txt:2"),
        (["a b ||| A"], ["0-0"], {"truncate": True}, "--truncate"),
        (["a b ||| A"], ["0-0"], {"max_new_tokens": 4}, "--max-new-tokens"),
        (["a b ||| " + "A " * 30], ["0-0"], {}, "positions"),
    ],
)
def test_what_cannot_be_aligned_is_refused(tmp_path, pairs, gold, options, word):
    model, tokenizer = by_hand()
    file, links = written(tmp_path, pairs, gold)
    with pytest.raises(attnviz.UsageError):  # of a model of one text
        attnviz.analyze_each(file, sharp_bert(), tokenizer=bert_tokenizer(), alignments=links, syntax=False)
    with pytest.raises(attnviz.AttnvizError, match=word):
        attnviz.analyze_each(file, model, tokenizer=tokenizer, alignments=links, syntax=False, **options)
