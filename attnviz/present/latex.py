"""Plain text as LaTeX, for pdfLaTeX without packages as for XeLaTeX and LuaLaTeX."""

import re

from attnviz.printable import one_line

_GREEK = (
    "αalpha βbeta γgamma δdelta εepsilon ζzeta ηeta θtheta ιiota κkappa λlambda μmu νnu ξxi πpi ρrho σsigma τtau "
    "υupsilon φphi χchi ψpsi ωomega ΓGamma ΔDelta ΘTheta ΛLambda ΞXi ΠPi ΣSigma ΥUpsilon ΦPhi ΨPsi ΩOmega"
)
_SIGNS = r"×\times →\rightarrow ←\leftarrow ↑\uparrow ‖\| ≤\leq ≥\geq ≠\neq ≈\approx ±\pm ·\cdot √\surd ∞\infty ∑\sum"
# characters that LaTeX reads as commands, that its old font encoding prints as others, and those of its maths
_KNOWN = {
    **{character: f"\\{character}" for character in "#$%&_{}"},
    **{each[0]: f"$\\{each[1:]}$" for each in _GREEK.split()},
    **{each[0]: f"${each[1:]}$" for each in _SIGNS.split()},
    "−": "$-$",
    "°": r"$^{\circ}$",
    "ᵀ": "$^{T}$",
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\symbol{34}",
    "`": r"\textasciigrave{}",
    "␣": r"\textvisiblespace{}",
}

_SCRIPTS = {"raised": "^", "lowered": "_"}
_DIGITS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻₀₁₂₃₄₅₆₇₈₉", "0123456789+-0123456789")

# what pdfLaTeX prints as it stands, in a class of characters of a regular expression
_PLAIN = "\x20-\x7e–—‘’“”…À-ÏÑ-ÖØ-Ýß-ïñ-öø-ýÿŒœŁłŠšŽžČčĆćŃńŚśŹźŻżŘřĚěŮůŐőŰűĞğİıŞş"

_TYPESET = re.compile(
    rf"(?P<raised>[⁰¹²³⁴-⁹⁺⁻]+)|(?P<lowered>[₀-₉]+)|(?P<known>[{re.escape(''.join(_KNOWN))}])|(?P<other>[^{_PLAIN}]+)"
)
_LIGATURE = re.compile(r"([-',])(?=\1)")  # before a character that LaTeX would join to the one before: ``--`` is a dash


def latex(text: str) -> str:
    """The text as LaTeX; of a letter that pdfLaTeX cannot print it prints the code point: ``[U+732B]``."""
    return _LIGATURE.sub(r"\1{}", _TYPESET.sub(_typeset, one_line(text)))


def _typeset(found: re.Match[str]) -> str:
    text, kind = found[0], found.lastgroup
    if kind == "known":
        return _KNOWN[text]
    if kind in _SCRIPTS:
        return f"${_SCRIPTS[kind]}{{{text.translate(_DIGITS)}}}$"
    points = " ".join(f"U+{ord(character):04X}" for character in text)
    return rf"\ifdefined\Umathcode {text}\else [{points}]\fi{{}}"
