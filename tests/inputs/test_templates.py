"""Chat templates that loop or grow are ended."""

import resource
import sys
import threading
import time
from typing import Any

import pytest

from attnviz.errors import TextError
from attnviz.inputs import templates
from attnviz.inputs.chats import Chat, rendered_chat
from tests.support.chats import CHATML, MESSAGES, chat_tokenizer

GROWS = "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}STEP{% endfor %}{{ ns.x }}"


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'a' * 10**10 }}",
        "{{ 'a'.ljust(10**10) }}",
        "{{ '%*d' % (10**10, 1) }}",
        "{{ '{:>9999999999}'.format(1) }}",
        "{{ range(99999) | join('a' * 1000000) }}",
        "{{ (1).to_bytes(10**10, 'big') | length }}",
        "{% for i in range(99999) %}{{ 'a' * 1000 }}{% endfor %}",
        GROWS.replace("STEP", "{% set ns.x = ns.x + ns.x %}"),
        GROWS.replace("STEP", "{% set x %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = x %}"),
    ],
)
def test_a_template_that_makes_too_much_is_refused(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "SECONDS", 60.0)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(TextError) as error:
        rendered_chat(chat_tokenizer(template), Chat(tuple(MESSAGES)))
    assert "\n" not in str(error.value)
    assert resource.getrlimit(resource.RLIMIT_AS) == limits


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    ],
)
def test_a_template_that_does_not_end_is_ended(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "SECONDS", 0.3)
    raised = list[BaseException]()

    def run() -> None:
        before = sys.gettrace()
        with pytest.raises(TextError) as error:
            rendered_chat(chat_tokenizer(template), Chat(tuple(MESSAGES)))
        assert sys.gettrace() is before
        raised.append(error.value)

    start = time.monotonic()
    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    run()
    for thread in threads:
        thread.join()
    assert len(raised) == 3
    assert time.monotonic() - start < 30


def test_an_interruption_ends_a_template(monkeypatch: pytest.MonkeyPatch) -> None:
    before = sys.gettrace()

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(templates.time, "monotonic", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rendered_chat(chat_tokenizer(CHATML), Chat(tuple(MESSAGES)))
    assert sys.gettrace() is before
