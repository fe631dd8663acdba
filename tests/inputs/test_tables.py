"""Tables as texts: every format gives the same rows, columns are found or named, errors say which row and column."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2LMHeadModel

import attnviz
from attnviz.errors import CorpusError, UsageError
from attnviz.inputs.prompt import Text
from attnviz.inputs.reading import open_corpus, read_texts, unread_columns
from attnviz.inputs.tables import Columns, Rows, open_pairs
from attnviz.inputs.text import encode
from attnviz.models.checkpoint import from_loaded
from attnviz.profiles.parts import parts_of
from tests.support.classifiers import sharp_classifier
from tests.support.corpora import sentences
from tests.support.models import bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2
from tests.support.tolerances import SUMS_32

ROWS: list[dict[str, Any]] = [
    {"idx": 7, "stars": 1, "review": "the cat, that i saw", "label": "good"},
    {"idx": 8, "stars": 5, "review": 'he was "in" a tree', "label": "bad"},
]
CSV = 'idx,stars,review,label\n7,1,"the cat, that i saw",good\n\n8,5,"he was ""in"" a tree",bad\n'
TSV = 'idx\tstars\treview\tlabel\n7\t1\tthe cat, that i saw\tgood\n8\t5\the was "in" a tree\tbad\n'
FILES = {
    "a.csv": CSV,
    "b.csv": CSV.replace(", that", "# that").replace(",", ";").replace("# that", ", that").replace("\n", "\r\n"),
    "a.tsv": TSV,
    "a.jsonl": "\ufeff" + "\n".join(map(json.dumps, ROWS)) + "\n",
    "a.json": json.dumps(ROWS, indent=2),
    "b.json": json.dumps({"version": 1, "data": ROWS}),
}


COLUMN: dict[str, Any] = {"text_column": "a"}


def read(path: Path, columns: Columns = Columns()) -> list[Text]:  # noqa: B008 - it is frozen
    return list(read_texts(open_corpus(path, columns)))


def stored(folder: Path, kind: str) -> Path:
    """The rows as ``datasets`` saves them, or as parquet."""
    arrow = pytest.importorskip("pyarrow", reason="needs the extra datasets")
    table = arrow.Table.from_pylist(ROWS)
    folder.mkdir()
    if kind == "parquet":
        from pyarrow import parquet

        parquet.write_table(table, folder / "train-0.parquet")
    else:
        with arrow.ipc.new_stream(str(folder / "data-00000-of-00001.arrow"), table.schema) as stream:
            stream.write_table(table)
        state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
        (folder / "state.json").write_text(json.dumps(state))
    return folder


@pytest.mark.parametrize("name", [*FILES, "arrow", "parquet"])
def test_every_format_gives_the_same_texts_ids_and_labels(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if name in FILES:
        path.write_text(FILES[name], encoding="utf-8", newline="")
    else:
        stored(path, name)
    found = [(text.number, text.text, text.id, text.label, text.pair) for text in read(path)]
    assert found == [(0, ROWS[0]["review"], "7", "good", None), (1, ROWS[1]["review"], "8", "bad", None)]
    corpus = open_corpus(path)
    assert corpus.entry["columns"] == {"text": "review", "label": "label", "id": "idx"}
    (other,) = [text for text in read(path, Columns("label", "review", "stars")) if text.number]
    assert (other.text, other.pair, other.label) == ("bad", ROWS[1]["review"], "5")


@pytest.mark.parametrize(
    ("rows", "texts"),
    [
        ('{"text": "one", "b": "two words"}', ["one"]),
        ('{"Prompt": "one ", "b": "two words"}', ["one "]),
        ('{"a": "x-1 7", "b": "two words"}', ["two words"]),
        ('"one"\n"two"', ["one", "two"]),
    ],
)
def test_the_column_of_texts_is_found(rows: str, texts: list[str], tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(rows)
    assert [text.text for text in read(tmp_path / "a.jsonl")] == texts


CHAT = [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "ran away"}]


@pytest.mark.parametrize(
    ("name", "content", "n"),
    [
        ("a.jsonl", f"{json.dumps(CHAT)}\n{json.dumps({'id': 5, 'messages': CHAT})}\n", 2),
        ("a.json", json.dumps([{"id": 4, "messages": CHAT}, {"id": 5, "messages": CHAT}]), 2),
        ("a.json", json.dumps(CHAT), 1),
        ("a.json", json.dumps({"messages": CHAT}), 1),
    ],
)
def test_rows_with_messages_are_chats(name: str, content: str, n: int, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    found = read(tmp_path / name)
    assert [list(text.chat.messages) for text in found] == [CHAT] * n
    assert found[-1].id == ("5" if n == 2 else None)
    with pytest.raises(CorpusError, match="chats"):
        attnviz.ablate(tmp_path / name, sharp_gpt2(), tokenizer=gpt2_tokenizer())


def test_a_column_of_texts_that_is_named_is_read_beside_messages(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"prompt": "the cat", "messages": CHAT}))
    assert [text.text for text in read(tmp_path / "a.jsonl", Columns("prompt"))] == ["the cat"]
    assert [text.text for text in read(tmp_path / "a.jsonl")] == [""]


def test_ids_of_sentences_and_a_text_over_several_lines(tmp_path: Path) -> None:
    pytest.importorskip("conllu", reason="needs the extra profile")
    word = "\t".join(["1", "cat", *"____", "0", "root", "_", "_"])
    (tmp_path / "a.conllu").write_text(f"# sent_id = s-1\n{word}\n\n{word}\n")
    assert [text.id for text in read(tmp_path / "a.conllu")] == ["s-1", None]
    (tmp_path / "a.csv").write_text('text\n"one\ntwo"\nthree\n')
    found = read(tmp_path / "a.csv")
    assert [(text.text, text.place and text.place.line) for text in found] == [("one\ntwo", 2), ("three", 4)]


TWO = "a,b\nthe cat,the dog\n"
ONE = '{"text": "the cat"}\n'


@pytest.mark.parametrize(
    ("name", "content", "columns", "where"),
    [
        ("a.csv", "text,label\nthe cat,1\n  ,2\n", {}, "a.csv:3: .*'text'"),
        ("a.csv", "text,label\nthe cat,1\nthe dog\n", {}, "a.csv:3: "),
        ("a.csv", 'text\nthe cat\n"the dog\n', {}, "a.csv:3: "),
        ("a.csv", "text,text\nthe cat,the dog\n", {}, "a.csv:1: "),
        ("a.csv", "text\n", {}, "empty"),
        ("a.csv", "", {}, "empty"),
        ("a.csv", "the cat ran\nthe dog ran\n", {}, "--text-column"),
        ("a.csv", TWO, {}, "'a', 'b'.*--text-column"),
        ("a.csv", TWO, {"text": "A"}, "'A'.*--text-column.*'a', 'b'"),
        ("a.csv", TWO, {"text": "a", "pair": "c"}, "'c'.*--pair-column"),
        ("a.csv", "text,y\nthe cat,\n", {"label": "y"}, "a.csv:2: .*'y'"),
        ("a.csv", "text,y\nthe cat,\n", {"pair": "y"}, "a.csv:2: .*'y'"),
        ("a.csv", f"text\nthe cat\n{'a' * 200_000}\n", {}, "a.csv:3: "),
        ("a.jsonl", ONE + '{"text": 5}\n', {}, "a.jsonl:2: .*'text'.*5"),
        ("a.jsonl", ONE + '{"words": "x"}\n', {}, "a.jsonl:2: .*'text'"),
        ("a.jsonl", ONE + '{"text": \n', {}, "a.jsonl:2: "),
        ("a.jsonl", '{"text": "the \\ud83d cat"}\n', {}, "a.jsonl:1: .*'text'"),
        ("a.jsonl", ONE + "7\n", {}, "a.jsonl:2: "),
        ("a.json", '[{"text": "the cat"},\n {"text": null}]', {}, "a.json, row 2: .*'text'"),
        ("a.json", ONE + ONE, {}, "a.json:2: "),
        ("a.json", '{"text": "the cat"}', {}, "a.json: "),
        ("a.jsonl", '{"prompts": 1, "role": "x"}\n', {}, "'prompts', 'role'.*--text-column"),
        ("a.jsonl", '[{"role": "user", "content": "x"}]\n' + ONE, {}, "a.jsonl:2: .*messages"),
        ("a.jsonl", ONE + '{"messages": []}\n', {}, "a.jsonl:2: .*'text'"),
        ("a.jsonl", ONE + '{"text": "the dog", "label": 1}\n', {}, "a.jsonl:1: .*'label'"),
        ("a.json", '[{"text": "the cat", "id": 1}, {"text": "the dog"}]', {}, "a.json, row 2: .*'id'"),
        ("a.jsonl", ONE + '{"text": "b", "answer": "c", "foil": "d"}\n', {}, "a.jsonl:1: .*'answer'"),
        ("a.jsonl", '{"text": "a", "answer": true, "foil": "d"}\n', {}, "a.jsonl:1: .*'answer'.*True"),
        ("a.jsonl", '{"text": "a", "answer": "c", "foil": [1]}\n', {}, r"a.jsonl:1: .*'foil'.*\[1\]"),
        ("a.jsonl", '{"text": "a", "answer": 2.5, "foil": "d"}\n', {}, "a.jsonl:1: .*'answer'.*2.5"),
        ("a.jsonl", ONE + '{"text": "a", "text": "b"}\n', {}, "a.jsonl:2: .*'text'"),
        ("a.jsonl", '{"text": "the cat", "label": [1]}\n', {}, r"a.jsonl:1: .*'label'.*\[1\]"),
    ],
)
def test_what_cannot_be_read_is_one_line_with_its_row_and_column(
    name: str, content: str, columns: dict[str, str], where: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(CorpusError, match=where) as caught:
        read(tmp_path / name, Columns(**columns))
    assert "\n" not in str(caught.value)


def test_columns_of_any_row_are_columns(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "the cat"}\n{"text": "the dog", "more": 1}\n')
    table = open_corpus(tmp_path / "a.jsonl").table
    assert table is not None
    assert table.unread == ("more",)
    pair = {"clean": "the cat", "corrupt": "the dog"}
    late = [{**pair, "note": 1}, {**pair, "answer": "a", "foil": "b"}]
    for rows, lacks in ((late, 1), (late[::-1], 2), ([*late[1:], {**late[1], "answer": False}], 2)):
        (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
        with pytest.raises(CorpusError, match=f"pairs.jsonl:{lacks}: .*'answer'"):
            list(open_pairs(Rows(tmp_path / "pairs.jsonl")).pairs())
    rows = [{**pair, "answer": " a", "foil": 5, "z": 1}, {"foil": 6, "answer": 7, **pair}]
    (tmp_path / "pairs.json").write_text(json.dumps(rows))
    assert [(each.answer, each.foil) for each in open_pairs(Rows(tmp_path / "pairs.json")).pairs()] == [
        (" a", 5),
        (7, 6),
    ]


@pytest.mark.parametrize(
    ("columns", "unread"),
    [
        ("clean,corrupt,label,Label", ["Label"]),
        ("id,clean,corrupt,answer,foil,note", ["id", "note"]),
        ("clean,corrupt,answer,label", None),
        ("clean,corrupt,Answer,foil,Label", None),
    ],
)
def test_a_table_of_pairs_names_what_is_not_read(columns: str, unread: list[str] | None, tmp_path: Path) -> None:
    """An answer and a label, of which one alone would be read, are refused."""
    path = tmp_path / "pairs.csv"
    path.write_text(f"{columns}\n{columns}\n")
    if unread is None:
        with pytest.raises(CorpusError):
            open_pairs(Rows(path))
    else:
        assert list(open_pairs(Rows(path)).unread) == unread
        (note,) = unread_columns([open_pairs(Rows(path))])
        assert ", ".join(unread) in note


def test_a_label_that_is_missing_in_pandas_is_none(tmp_path: Path) -> None:
    """NaN is no class; the others, which pandas then has as 0.0 and 1.0, are whole numbers."""
    (tmp_path / "a.jsonl").write_text(
        '{"text": "the cat", "label": NaN}\n{"text": "the dog", "label": 1.0}\n{"text": "a", "label": null}\n'
    )
    assert [text.label for text in read(tmp_path / "a.jsonl")] == [None, "1", None]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_end_as_on_any_system(end: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(end.join(["the cat", "", "the dog", ""]).encode())
    (tmp_path / "a.csv").write_bytes(end.join(["text,id", "the cat,1", "the dog,2", ""]).encode())
    found = read(tmp_path / "a.txt")
    assert [(text.text, text.place and text.place.line) for text in found] == [("the cat", 1), ("the dog", 3)]
    assert [(text.text, text.id) for text in read(tmp_path / "a.csv")] == [("the cat", "1"), ("the dog", "2")]


def test_a_damaged_table_is_one_line(tmp_path: Path) -> None:
    """A byte changed in its pages, bytes that are no UTF-8, two columns of one name."""
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra datasets")
    from pyarrow import parquet

    texts = [f"the cat saw {number} dogs" for number in range(200)]
    parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "flipped.parquet", compression="snappy")
    content = bytearray((tmp_path / "flipped.parquet").read_bytes())
    content[60:90] = bytes(255 - each for each in content[60:90])
    (tmp_path / "flipped.parquet").write_bytes(content)
    column = pyarrow.Array.from_buffers(
        pyarrow.string(), 1, [None, pyarrow.py_buffer(b"\0\0\0\0\3\0\0\0"), pyarrow.py_buffer(b"a\xffb")]
    )
    parquet.write_table(pyarrow.table({"text": column}), tmp_path / "utf8.parquet")
    twice = pyarrow.Table.from_arrays([pyarrow.array(["the cat"]), pyarrow.array(["a dog"])], ["text", "text"])
    parquet.write_table(twice, tmp_path / "twice.parquet")
    for name in ("flipped", "utf8", "twice"):
        with pytest.raises(CorpusError) as error:
            read(tmp_path / f"{name}.parquet")
        assert "\n" not in str(error.value)


def test_folders_without_one_table_and_columns_of_no_table_are_refused(tmp_path: Path) -> None:
    for split in ("train", "test"):
        (tmp_path / "ds" / split).mkdir(parents=True)
        (tmp_path / "ds" / split / "state.json").write_text("{}")
    (tmp_path / "ds" / "dataset_dict.json").write_text("{}")
    with pytest.raises(CorpusError, match=r"ds/test or .*ds/train"):
        open_corpus(tmp_path / "ds")
    with pytest.raises(CorpusError, match="train"):
        open_corpus(tmp_path / "ds" / "train")
    (tmp_path / "a.txt").write_text("the cat ran\n")
    with pytest.raises(UsageError, match="--text-column"):
        attnviz.analyze_each(tmp_path / "a.txt", sharp_bert(), tokenizer=bert_tokenizer(), text_column="text")


def test_a_pair_is_read_as_the_tokenizer_joins_it() -> None:
    tokenizer = bert_tokenizer()
    checkpoint = from_loaded(sharp_bert(), tokenizer)
    texts = [Text("the cat ran", pair="the dog saw"), Text("a dog")]
    paired, alone = encode(checkpoint, texts)
    own = tokenizer("the cat ran", "the dog saw", return_token_type_ids=True)
    assert (list(paired.ids), list(paired.type_ids or ())) == (own["input_ids"], own["token_type_ids"])
    assert list(filter(None, paired.pieces)) == "the cat ran the dog saw".split()
    assert (alone.source.text, list(alone.ids)) == ("a dog", tokenizer("a dog")["input_ids"])
    with pytest.raises(attnviz.TextError, match="pair"):
        encode(from_loaded(sharp_gpt2(), gpt2_tokenizer()), texts)


def test_a_classifier_of_pairs_is_measured_on_a_table(tmp_path: Path) -> None:
    model, tokenizer = sharp_classifier("bert")
    rows = [("the cat", "he was in a tree", "good"), ("one two", "the dog ran", "bad")]
    path = tmp_path / "pairs.csv"
    path.write_text("premise,hypothesis,gold\n" + "".join(f"{','.join(row)}\n" for row in rows))
    given: dict[str, Any] = {"text_column": "premise", "pair_column": "hypothesis", "label_column": "gold"}
    result = attnviz.ablate(path, model, tokenizer=tokenizer, select="L0H0", curve=False, gradient=False, **given)
    names = list(model.config.id2label.values())
    losses = []
    for text, pair, label in rows:
        read = tokenizer(text, pair, return_tensors="pt", return_token_type_ids=True)
        with torch.no_grad():
            losses.append(-float(model(**read).logits[0].log_softmax(-1)[names.index(label)]))
    assert result.clean["loss"] == pytest.approx(sum(losses) / 2, abs=SUMS_32)
    causal: dict[str, Any] = {"tokenizer": gpt2_tokenizer(), "text_column": "premise", "label_column": "gold"}
    with pytest.raises(UsageError, match="label"):
        attnviz.ablate(path, sharp_gpt2(), **causal)


def test_a_profile_keeps_ids_and_names_its_columns(tmp_path: Path) -> None:
    path, texts = tmp_path / "a.tsv", sentences(tmp_path / "a.txt", 150).read_text().splitlines()
    path.write_text("id\ta\tb\n" + "".join(f"t{number}\t{text}\tin a house\n" for number, text in enumerate(texts)))
    given: dict[str, Any] = {"syntax": False, "control": False, "device": "cpu", "text_column": "a"}
    profile = attnviz.profile_heads("tiny-gpt2", [path], **given)
    assert profile is not None
    document = profile.document()
    assert document["corpora"][0]["columns"] == {"text": "a", "id": "id"}
    assert parts_of(document)["statistics"]["corpora"] == document["corpora"]  # a .tsv, but not GAP
    kept = document["examples"]["texts"]
    assert {text["id"] for text in kept} == {f"t{text['number']}" for text in kept}


def test_compare_and_check_read_the_same_texts_from_a_table_as_from_lines(tmp_path: Path) -> None:
    lines, table = sentences(tmp_path / "a.txt", 40), tmp_path / "a.csv"
    table.write_text("a,b\n" + "".join(f"{text},in a house\n" for text in lines.read_text().splitlines()))
    models = [from_loaded(sharp_gpt2(seed, model_class=GPT2LMHeadModel), gpt2_tokenizer()) for seed in (0, 1)]
    distances = []
    for path, columns in ((lines, {}), (table, COLUMN)):
        compared = attnviz.compare_corpus(*models, path, syntax=False, **columns)
        assert compared is not None
        distances.append([(head.id, head.distance) for head in compared.heads])
    assert distances[0] == distances[1]
    claims = tmp_path / "claims.toml"
    claims.write_text('corpus = "a.csv"\n[[claim]]\nhead = "L1H1"\nablate = "loss"\nat_least = -9\n')
    checked = attnviz.check(claims, models[0], **COLUMN).claims[0]
    alone = attnviz.ablate(lines, models[0], select="L1H1", curve=False, gradient=False)
    assert (checked.verdict, checked.measured) == ("holds", pytest.approx(alone.heads[0].damage["loss"].value))
    with pytest.raises(CorpusError, match="'a', 'b'"):
        attnviz.check(claims, models[0])
