"""The one door for strings of others, such as names of models and files, that are printed."""

# marks of the Unicode bidirectional algorithm around a text that keeps its own order
ISOLATES = frozenset("\u2066\u2067\u2068\u2069")


def escaped(text: str) -> str:
    """The text with an escape for every character that cannot be seen."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape", "surrogatepass").decode("ascii")
        for letter in text
    )


def printable(text: str) -> str:
    """The text as a terminal gets it: escaped, without isolates, on as many lines."""
    return "\n".join(escaped("".join(letter for letter in line if letter not in ISOLATES)) for line in text.split("\n"))


def one_line(text: str) -> str:
    """The text as a terminal gets it, line ends escaped, too."""
    return printable(text.replace("\n", r"\n"))
