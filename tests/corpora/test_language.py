"""What a text looks like: script, common words, code. English text is hardly ever refused, other text is."""

import importlib.util

import pytest

from attnviz.language.parsers import nearest_language, unlike
from attnviz.texts.reading import open_corpus, read_texts
from tests.conftest import SENTENCE, SHARED

pytestmark = pytest.mark.skipif(importlib.util.find_spec("spacy") is None, reason="needs the extra syntax")

GERMAN = [
    "Die Katze, die ich gestern gesehen habe, ist weggelaufen, weil der Hund bellte.",
    "Wir haben gestern lange über dieses Thema gesprochen.",
    "Ich weiß nicht, ob er morgen mit dem Zug nach Hamburg fährt oder nicht.",
    "Der alte Mann saß am Fenster und las die Zeitung, während es draußen regnete.",
]
FRENCH = [
    "Le chat que j'ai vu hier s'est enfui parce que le chien aboyait.",
    "La conférence sur l'intelligence artificielle commence lundi à Paris.",
    "Les enfants jouent dans le jardin derrière la maison.",
    "Nous avons longuement parlé de ce sujet hier soir.",
]
SPANISH = [
    "El gato que vi ayer se escapó porque el perro ladraba.",
    "La conferencia sobre inteligencia artificial comienza el lunes en Madrid.",
    "Los niños juegan en el jardín detrás de la casa.",
    "Quiero aprender varios idiomas antes de viajar a Sudamérica.",
]
OF_OTHER_SCRIPTS = [
    "Кошка убежала.",
    "Кошка, которую я видел вчера, убежала.",
    "我昨天看到的猫跑了。",
    "猫",
    "Η γάτα έφυγε.",
]
CODE = [
    "def add(a, b):\n    return a + b",
    "for i in range(10):\n    if i % 2 == 0:\n        print(i)",
    "import numpy as np\nx = np.zeros((3, 4))\nprint(x.shape)",
    "class Cat:\n    def __init__(self, name):\n        self.name = name",
    "result = [word.lower() for word in words if word not in stop_words]",
    "with open(path) as file: data = json.load(file)",
    "try:\n    value = int(text)\nexcept ValueError:\n    value = None",
    "while not done and x is not None: x = next(it)",
    "function greet(name) { return 'Hello ' + name; }",
    'public static void main(String[] args) { System.out.println("Hello"); }',
    "int main(void) { for (int i = 0; i < n; i++) total += a[i]; return 0; }",
    '{"name": "Ann", "age": 30, "tags": ["a", "b"]}',
]


@pytest.mark.parametrize(("texts", "language"), [(GERMAN, "de"), (FRENCH, "fr"), (SPANISH, "es")])
def test_a_language_is_like_itself_and_unlike_english(texts: list[str], language: str):
    assert [text for text in texts if "lower-case words are common in" not in unlike(text, "en")] == []
    assert [unlike(text, language) for text in texts] == [""] * len(texts)
    english = "The man who lives next door to us has not been there since his wife was ill."
    assert "of its 16 lower-case words are common in" in unlike(english, language)


@pytest.mark.parametrize("text", OF_OTHER_SCRIPTS)
def test_another_script_is_told_by_one_word(text: str):
    assert "letters are of another script" in unlike(text, "en")


def test_the_script_of_most_letters_counts():
    assert unlike("The word кот is Russian", "en") == ""
    assert unlike("猫がソファーで寝ている", "ja") == ""  # three scripts, all of them Japanese
    assert "another script" in unlike("The cat", "ru")


@pytest.mark.parametrize("text", CODE)
def test_code_is_told_by_its_signs(text: str):
    assert unlike(text, "en") == "it looks like program code"


@pytest.mark.parametrize(
    "text",
    [
        SENTENCE,
        "Hello",
        "42, 43!",
        "?",
        "",
        "Die Katze lief weg",  # too short to be sure
        "x = f(y)",
        "A la carte",
        "He said: Honi soit qui mal y pense, and then he left us for good.",
        "Don't\n\npanic: the café's naïve 😀 owner can't re-open (yet).",
        "The function foo_bar() returns x when it is done.",
        "See https://www.example.org/a_b/c_d?x=1 or write to <ann_b@example.org> and to bob_c@example.org",
        "My iPhone and MacBook run JavaScript and TypeScript on GitHub.",
        "Mary John, Russell Dyk, Webb Jennings, Martin Gonzales, Jeffrey Synder, Ryan Hinze",
        "Colorless green ideas sleep furiously while the hungry tigers dream.",
    ],
)
def test_english_is_not_refused(text: str):
    assert unlike(text, "en") == ""


def test_nothing_is_unlike_a_language_without_common_words():
    assert unlike("Кошка убежала, потому что собака лаяла на неё.", "xx") == ""


def test_the_nearest_language_is_the_first_where_nothing_speaks_against_it():
    languages = ["en", "de", "ru", "zh"]
    assert nearest_language(SENTENCE, languages) == "en"
    assert nearest_language("Die Katze, die ich sah", languages) == "de"
    assert nearest_language("Pat saw a man", languages) == "en"  # "man" is common in German
    assert nearest_language("Кошка", languages) == "ru"
    assert nearest_language("猫", languages) == "zh"
    assert nearest_language("123", languages) == "en"
    assert nearest_language("Кошка", ["en", "de"]) == "en"


TREEBANK = SHARED / "ud" / "en_ewt-ud-dev.conllu"


@pytest.mark.skipif(not TREEBANK.is_file(), reason="needs the treebank in ../shared/data/ud")
def test_of_a_treebank_one_sentence_in_two_hundred_is_refused():
    texts = [text.text for text in read_texts(open_corpus(TREEBANK))]
    assert len(texts) == 2001
    assert sum(unlike(text, "en") != "" for text in texts) <= 10
