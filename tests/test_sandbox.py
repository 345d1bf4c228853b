"""Loops are watched without changing what a template sees of them."""

import jinja2
import pytest

from coordinator.tokens.sandbox import Template, TooSlow

ITEMS = [{"n": 1, "kids": [{"n": 2, "kids": []}]}, {"n": 3, "kids": []}]


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(
            "{% for i in items %}{{ loop.index }}/{{ loop.length }} {% endfor %}", id="length"
        ),
        pytest.param("{% for i in items %}{{ loop.first }}{{ loop.last }}{% endfor %}", id="ends"),
        pytest.param(
            "{% for i in items[::-1] %}{{ i.n }}{{ loop.revindex }}{% endfor %}", id="slice"
        ),
        pytest.param(
            "{% for i in items if i.n > 1 %}{{ i.n }}{{ loop.length }}{% endfor %}", id="if"
        ),
        pytest.param(
            "{% for i in items | map(attribute='n') %}{{ loop.length }}{{ i }}{% endfor %}",
            id="lazy",
        ),
        pytest.param(
            "{% for k, v in items[0].items() %}{{ k }}{{ loop.last }}{% endfor %}", id="pairs"
        ),
        pytest.param(
            "{% for i in items %}{{ (loop.previtem or i).n + (loop.nextitem or i).n }}{% endfor %}",
            id="neighbours",
        ),
        pytest.param("{% for i in nothing %}x{% else %}none{% endfor %}", id="an undefined name"),
        pytest.param("{% for i in [] %}x{% else %}none{% endfor %}", id="else"),
        pytest.param(
            "{% for c in 'aßc' %}{{ c }}{{ loop.cycle('x', 'y') }}{% endfor %}", id="a text"
        ),
        pytest.param(
            "{% for i in items recursive %}{{ i.n }}({{ loop(i.kids) }}){% endfor %}",
            id="recursive",
        ),
        pytest.param(
            "{% for i in range(200) %}{% if i == 150 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            id="break",
        ),
        pytest.param(
            "{% set ns = namespace(n=0, s='', b=true, kept=[]) %}{% for i in items %}"
            "{% set ns.n = ns.n + i.n %}{% set ns.s = ns.s ~ ns.b %}{{ ns.s.upper() }}"
            "{% endfor %}{{ ns.n }}{{ ns.kept }}{{ ns.none is defined }}{{ ns._x is defined }}"
            "{% set ns.f = ns.s.format %}{{ ns.f() }}",
            id="namespace",
        ),
        pytest.param(
            "{% macro m(xs) %}{% for x in xs %}{{ x.n }}{{ caller() }}{% endfor %}{% endmacro %}"
            "{% call m(items) %}!{% endcall %}",
            id="in a macro",
        ),
    ],
)
def test_a_loop_gives_what_it_gives_unwatched(source: str) -> None:
    plain = jinja2.Environment(extensions=["jinja2.ext.loopcontrols"]).from_string(source)
    assert Template(source).render(5.0, items=ITEMS) == plain.render(items=ITEMS)


def test_a_loop_over_what_cannot_be_looped_over_fails_as_it_would() -> None:
    with pytest.raises(TypeError):
        Template("{% for i in items %}{% endfor %}").render(5.0, items=7)


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            id="no output",
        ),
        pytest.param("{% for a in range(99999) %}x{% endfor %}", id="output"),
        pytest.param(
            "{% macro m() %}{% for a in range(99999) %}{% endfor %}{% endmacro %}{{ m() }}",
            id="macro",
        ),
    ],
)
def test_loops_end_at_the_deadline(source: str) -> None:
    with pytest.raises(TooSlow):
        Template(source).render(-1.0)


def test_a_request_cannot_name_the_deadline() -> None:
    assert Template("{{ a }}").render(5.0, a=1, deadline=9) == "1"
    assert Template("{{ a }}").variables == {"a"}
