"""What an unfinished run leaves: which texts are done, and whether they are still the same."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attnviz.corpora.batches import Text
from attnviz.corpora.long_runs import ChangedCorpusError, Measured, Unfinished
from attnviz.errors import OutputError
from attnviz.patterns.syntax import Arc

TEXTS = [Text(f"text {number}", number=number) for number in range(6)]


def half_done() -> Measured:
    """Texts 3, 0 and 4 are measured, 1 was left out."""
    measured = Measured()
    reading = measured.remaining(iter(TEXTS), lambda: True)
    seen = {text.number: text for text in reading}
    for number in (3, 0, 4):
        measured.note(seen[number], n_tokens=5)
    measured.note(seen[1])
    return Measured.of(measured.state())


def test_what_is_done_is_counted_and_not_read_again():
    measured = half_done()
    assert (measured.texts, measured.tokens, measured.left_out) == (3, 15, 1)
    assert [text.number for text in measured.remaining(iter(TEXTS), lambda: True)] == [2, 5]


def test_the_state_survives_a_file(tmp_path: Path):
    kept = Unfinished(tmp_path / "new" / "profile.unfinished", {"seed": 1})
    assert kept.load() is None
    kept.save({"measured": half_done().state(), "sums": torch.arange(3.0)})
    state = Unfinished(kept.path, {"seed": 1}).load()
    assert state["sums"].tolist() == [0, 1, 2]
    assert Measured.of(state["measured"]) == half_done()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["profile.unfinished"]


def test_what_another_run_has_measured_is_not_replaced(tmp_path: Path):
    Unfinished(tmp_path / "u", {"seed": 1, "model": "m"}).save({"a": 1})
    with pytest.raises(
        OutputError, match=r"run with other settings has measured \(seed 1, now 2\); give the same settings"
    ):
        Unfinished(tmp_path / "u", {"seed": 2, "model": "m"}).load()
    assert Unfinished(tmp_path / "u", {"seed": 1, "model": "m"}).load() == {"a": 1}


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x80\x05."])
def test_a_file_that_is_something_else_is_not_replaced(tmp_path: Path, content: bytes):
    (tmp_path / "u").write_bytes(content)
    with pytest.raises(OutputError, match="found something else, or a damaged file; delete it to begin anew"):
        Unfinished(tmp_path / "u", {}).load()
    assert (tmp_path / "u").read_bytes() == content


def test_a_folder_that_cannot_be_written_to_is_an_error(tmp_path: Path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError, match=f"cannot keep what was measured in {tmp_path / 'file' / 'u'}: "):
        Unfinished(tmp_path / "file" / "u", {}).save({})


@pytest.mark.parametrize(
    "changed",
    [
        [*TEXTS[:3], replace(TEXTS[3], text="other"), *TEXTS[4:]],
        [*TEXTS[:3], replace(TEXTS[3], arcs=(Arc(0, 1, "det"),)), *TEXTS[4:]],
        [replace(TEXTS[0], answer=1), *TEXTS[1:]],
        TEXTS[:3],
    ],
    ids=["text", "tree", "answer", "shorter"],
)
def test_a_change_of_what_is_done_is_noticed(changed: list[Text]):
    with pytest.raises(ChangedCorpusError):
        list(half_done().remaining(iter(changed), lambda: True))


def test_a_corpus_that_breaks_off_is_not_a_changed_one():
    assert [text.number for text in half_done().remaining(iter(TEXTS[:3]), lambda: False)] == [2]
