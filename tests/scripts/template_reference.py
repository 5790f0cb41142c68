#!/usr/bin/env python3
"""Writes what chat templates give in Jinja2, set up as Hugging Face transformers sets it up.

    template_reference.py             writes tests/fixtures/templates/reference.json

A case holds a template and what it renders from the conversation and the tools below. Needs `pip install jinja2`.
"""

import datetime
import json
import pathlib

from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests/fixtures/templates/reference.json"

MESSAGES = [
    {"role": "system", "content": "Be brief. "},
    {"role": "user", "content": [{"type": "text", "text": "It's \"5 °C\"\n"}, {"type": "image"}]},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": {
        "name": "weather", "arguments": {"city": "Zürich 🏔", "days": 3, "exact": True, "unit": None, "limits": [1.0, 1e16, 1e-7, -0.5]}}}]},
    {"role": "tool", "content": "{\"t\": 5}", "name": "weather"},
]
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Gives <the> weather & more", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "enum": ["Zürich", "Bern"]}, "days": {"type": ["integer", "null"], "default": 1}},
    "required": ["city"]}}}]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}

CALL = "messages[2].tool_calls[0].function"
ARGUMENTS = CALL + ".arguments"
# Templates, or expressions.
CASES = [
    # What is iterable.
    "none is iterable", "messages[2].content is iterable", "'a' is iterable", "[] is iterable", "{} is iterable", "3 is iterable",
    "true is iterable", "nothing is iterable",
    "'a' is sequence", "[1] is sequence", "{'a': 1} is sequence", "messages[1:] is sequence", "3 is sequence", "none is sequence",
    "messages[0] is mapping", "messages is mapping", "messages[0].content is string",
    # Lists and dictionaries as texts.
    "messages", "tools", ARGUMENTS, ARGUMENTS + ".limits", ARGUMENTS + " | string", "'x: ' ~ " + ARGUMENTS, ARGUMENTS + ".limits | join('|')",
    "[1, 'a', none, true, 1.5, \"it's\", 'say \"x\"', 'it\\'s \"x\"']", "{'a': {'b': [1]}, 1: 'x'}", "[]", "{}", "[[], {}]",
    "['tab\\t', 'nl\\n', 'back\\\\slash', 'é', '🏔']", "messages | map(attribute='role') | list", "messages[1:3] | map(attribute='role') | list | string",
    "'%s' % " + ARGUMENTS, "'{}'.format(" + ARGUMENTS + ")", "', '.join(['a', 'b'])", "[messages[0].role, 1, none] | join(' ')",
    "messages | join(', ', attribute='role')", "messages[0] | list",
    "1e16", "1e-7", "0.1 + 0.2", "1.0", "-0.0", "100000000000000000000.0", "123456789.125", "7 / 2", "true", "none", "nothing",
    # JSON.
    "tools | tojson", "tools | tojson(indent=4)", "tools | tojson(indent=2, sort_keys=true)", "tools[0] | tojson(separators=(',', ':'))",
    ARGUMENTS + " | tojson", ARGUMENTS + " | tojson(ensure_ascii=true)", ARGUMENTS + " | tojson(true)", ARGUMENTS + " | tojson(false, 1)",
    ARGUMENTS + " | tojson(ensure_ascii=false, separators=(', ', ' = '), indent=3)", ARGUMENTS + " | tojson(indent='--')",
    ARGUMENTS + " | tojson(sort_keys=true)", ARGUMENTS + " | tojson(indent=0)", "[] | tojson(indent=2)", "{'a': [], 'b': {}} | tojson(indent=2)",
    "{1: 'a', none: 'b', false: 'c', 1.5: 'd'} | tojson", "'\\x7f\\t\\u2028<&>' | tojson", "'\\x7fé🏔' | tojson(ensure_ascii=true)", "none | tojson",
    "messages[0].content | tojson", "'a/b' | tojson",
    # Methods of texts.
    "'a,b,c'.rsplit(',', 1)", "'a,b,c'.rsplit(',')", "' a  b c '.rsplit()", "' a  b c '.rsplit(none, 1)", "' a  b c '.split(none, 1)",
    "'a,b,c'.split(',', 1)", "'a b'.split()", "'a,b'.split(sep=',')", "'a,b,c'.split(',', maxsplit=1)", "''.split()", "''.split(',')",
    "'k=v=w'.partition('=')[0]", "'k=v=w'.partition('=')[2]", "'k=v=w'.rpartition('=')[0]", "'kv'.partition('=')[1]", "'kv'.rpartition('=')[2]",
    "'42'.zfill(5)", "'-42'.zfill(5)", "'+4'.zfill(2)", "'abc'.zfill(2)", "'ab'.center(7)", "'abc'.center(6, '*')", "'ab'.ljust(4, '.')", "'ab'.rjust(4)",
    "'ab' | center(7)", "'ab' | center(1)", "'Ab'.swapcase()", "'Straße'.casefold()", "'prefix-a'.removeprefix('prefix-')", "'a.txt'.removesuffix('.txt')",
    "'é-a'.find('a')", "'é-a-a'.rfind('a')", "'abcabc'.find('c', 3)", "'abc'.find('a', 1)", "'abc'.index('c')", "'aXbX'.count('X')", "'abab'.count('b', 2)",
    "''.isdigit()", "'12'.isdigit()", "''.isalpha()", "'a1'.islower()", "'A1'.isupper()", "'1'.isupper()", "''.isspace()", "'12'.isdecimal()",
    "'a\\nb\\r\\nc'.splitlines()", "'a\\nb'.splitlines(true)", "'x'.startswith(('a', 'x'))", "' x '.strip()", "'xxaxx'.strip('x')",
    "'abc'.title()", "'hELLO wORLD'.capitalize()", "'a-b-c'.replace('-', '+', 1)", "['a', 'b'].index('b')", "[1, 2, 1].count(1)",
    "messages[0].get('role')", "messages[0].get('nothing')", "messages[0].get('nothing', 'x')",
    "{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in tools[0].function.keys() %}{{ k }};{% endfor %}",
    # The operator %.
    "'%s' % 'x'", "'%s and %s' % ('a', 'b')", "'%d%%' % 50", "'%05.2f' % 3.14159", "'%s' % messages[0].role | upper", "'<' ~ '%s' % 1 ~ '>'",
    "'%s' % none", "'%s' % true", "'%s' % [1, 'a']", "7 % 3", "{% if messages | length % 2 == 0 %}even{% endif %}", "'%(a)s-%(b)s' % {'a': 1, 'b': 2}",
    "'%5s|%-5s|' % ('a', 'b')", "'%x' % 255", "'%s' | format('x')",
    # Filters and functions.
    "'one two, three_four' | wordcount", "{% set j = joiner('; ') %}{% for m in messages %}{{ j() }}{{ m.role }}{% endfor %}",
    "{% set j = joiner() %}{{ j() }}a{{ j() }}b", "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}",
    "bos_token ~ unk_token ~ eos_token", "unk_token is defined", "pad_token is defined", "'a\\nb' | indent(2)", "'a\\nb' | indent(2, true)",
    "messages | selectattr('role', 'equalto', 'user') | list | length", "[3, 1, 2] | sort", "{'b': 1, 'a': 2} | dictsort | map('first') | join", "[1, 2, 3] | sum", "'abc' | reverse",
    "[1, 2] + [3]", "messages[0] == {'role': 'system', 'content': 'Be brief. '}", "'role' in messages[0]", "'x' in 'xyz'", "1 in [1, 2]",
    "messages[-1].role", "messages[1:] | length", "[1, 2, 3][::-1]", "'abc'[::-1]", "'abc'[-1]", "[1, 2] | first", "[1, 2] | last", "'a' * 3", "2 ** 3",
    "{% macro show(x) %}<{{ x }}>{% endmacro %}{{ show(messages[0]) }}", "{% set ns = namespace(a=[]) %}{% set ns.a = ns.a + ['x'] %}{{ ns.a }}",
    "{% for m in messages %}{% if loop.index == 2 %}{% continue %}{% endif %}{{ loop.index0 }}{% if not loop.last %},{% endif %}{% endfor %}",
    "{% for p in tools[0].function.parameters.properties %}{{ p }} {% endfor %}", "{{ 'a' if nothing else 'b' }}", "nothing | default('d')", "'' | default('d', true)",
    "3.7 | int", "'12' | int + 1", "3 | float", "2.5 | round", "3.5 | round", "7 | round", "2.675 | round(2)", "1.21 | round(1, 'ceil')", "1.29 | round(1, method='floor')", "'Ab' | lower | upper | title", "' a ' | trim", "'<a>' | e", "[1, 2, 2] | unique | list",
    "[1, 2, 3, 4] | batch(2) | list", "'a b' | replace(' ', '_')", "'abc' | length",
    # Ends of lines.
    "a\r\nb\rc\n{% if true %}\r\n  d\r\n{% endif %}\r\ne {{ 'f\r\ng' }}\r\n",
    # Operands of `and` and `or`.
    "'' and 'b'", "none and 'b'", "[] and 'b'", "1 and 0", "{} and 1", "0.0 and 1", "false and 1", "() and 1", "'a' and 'b'", "'' and 'b' or 'c'",
    "'' or 'b'", "'' or 0", "not '' and 'b'", "1 == 1 and 'b'", "1 > 2 and 'b'", "messages[0].nothing and 'b'", "'' and nothing", "1.5e-3 and 0",
    "'a' is string and 0", "3 is divisibleby 3 and 'b'", "none is none and 'b'", "1 and (0 and 2)", "('' and 'b') ~ 'c'",
    # Lists and dictionaries that a template writes, wherever they become texts.
    "{% set c = ['a'] %}{{ \"T: \" ~ c }}", "\"T: \" ~ ['a', {'b': none}]", "['a'] ~ {'b': 1.0} ~ 2", "'x' ~ messages[0] ~ messages[1:3] | length",
    "'x' ~ ([1] + ['a'])", "'x' ~ messages[:1]", "'a' ~ -1 * 2 ~ 'b'", "1 ~ 2 ~ 3", "'a' ~ 'b' == 'ab'", "'b' in 'a' ~ 'b'", "'x' ~ (messages | map(attribute='role') | list)",
    "'x' ~ none ~ true ~ nothing ~ 1.0", "'a' ~ 'b' if true else 'c' ~ 'd'", "{'a': 1} | lower", "['a'] | upper", "['a'] | replace('a', 'b')", "[' a '] | trim",
    "['ab', none] | title", "['Ab'] | capitalize", "messages[0] | upper", "3 | replace(3, 4)", "'aaa' | replace('a', 'b', 2)", "'xax' | trim('x')", "none | upper", "1.0 | lower",
    "{% set x = 'a' ~ [1] %}{{ x }}", "{% for x in 'a' ~ 'b' %}{{ x }},{% endfor %}", "{% if 'a' ~ [] == 'a[]' and not 'b' ~ 1 == 'b' %}yes{% endif %}",
    "[['a'] ~ 'b', {'k': ['v'] ~ 'w'}]", "{{- 'a' ~ ['b'] -}}", "'%s' % ['a'] ~ ['b']", "'%s' % ('a',) ~ ('b',)", "namespace(a=['x'] ~ 'y').a",
    # Tuples.
    "(1, 2)", "(1,)", "()", "('a', [1, (2, 'b')])", "{'a': 1}.items() | list", "messages[0].items() | list", "messages[0] | items | list", "{'b': 2, 'a': 1} | dictsort",
    "{'b': 1, 'a': 2} | dictsort(false, 'value')", "{'B': 1, 'a': 2} | dictsort(true)", "{'b': 1, 'a': 2} | dictsort(by='value', reverse=true)", "'k=v'.partition('=')", "'kv'.rpartition('=')",
    "(1, 2)[0]", "(1, 2) | length", "(1, 2) | list", "(1, 2) | join('-')", "(1, 2) | tojson", "(1, 2) is sequence", "1 in (1, 2)", "'a' ~ (1, 2)",
    "{% set t = (1, 'x') %}{{ t }}{% set (a, b) = t %}{{ a }}{{ b }}", "{% for (a, b) in [(1, 2), (3, 4)] %}{{ a }}{{ b }} {% endfor %}", "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}", "{% for k, v in {'a': {'b': [1]}} | dictsort %}{{ k }}{{ v }}{% endfor %}", "{% macro m(a, b=(1, 2)) %}{{ a }}{{ b }}{% endmacro %}{{ m((3, 4)) }}",
    # What a text has besides.
    "'%r' % 'a'", "'%r and %s' % ('a', 'b')", "'%(x)r %(x)s' % {'x': 'a'}", "'%-6r|%%r|%d' % (none, 3)", "'%r' % messages[0]",
    "'a b/c&d=é' | urlencode", "{'a b': 1, 'c': 'd/e'} | urlencode", "[('x', 'y z')] | urlencode", "3 | urlencode",
    "'one two three four' | wordwrap(9)", "'one two three four' | wordwrap(5, wrapstring='|')", "'abcdefghij kl' | wordwrap(4)", "'abcdefghij kl' | wordwrap(4, false)",
    "'well-known goof-ball -- use -b a--b x-y' | wordwrap(6, true, '|')", "'well-known word' | wordwrap(6, true, '|', false)", "'a\n\nb  c   d\n e' | wordwrap(3)", "'' | wordwrap", "'one-two-three-four' | wordwrap(8)",
    "'a-b-c-d-e-f' | wordwrap(4)", "'0123-5678-ab-cd' | wordwrap(6)",
    "['a'] | random", "'foo bar baz qux' | truncate(9)", "'foo bar baz qux' | truncate(9, true)", "'foo bar baz qux' | truncate(11)", "'foo bar baz qux' | truncate(11, false, '...', 0)",
    "'foo bar baz qux' | truncate(length=9, end='!')", "'abcdefghijklmnopq' | truncate(5)",
    "joiner is callable", "'a' is callable", "[] is callable", "nothing is callable", "range is callable", "{% macro m() %}{% endmacro %}{{ m is callable }}", "messages[0] is callable",
    "'a\tbc\td'.expandtabs()", "'a\tb\n\tc'.expandtabs(4)", "'a\tb'.expandtabs(0)", "'a\tb'.expandtabs(tabsize=2)", "'a1'.isidentifier()", "'1a'.isidentifier()", "''.isidentifier()", "'_é'.isidentifier()", "'a b'.isidentifier()",
    # What a loop knows of its end.
    "{% for k, v in messages[0] | items %}{{ k }}{{ ', ' if not loop.last }}{% endfor %}", "{% for k, v in messages[0].items() %}{{ k }}={{ loop.revindex }}/{{ loop.length }}{{ ';' if not loop.last }}{% endfor %}",
    "{% for k in messages[0].keys() %}{{ k }}{{ ', ' if not loop.last }}{% endfor %}", "{% for v in messages[0].values() %}{{ v }}{{ ', ' if not loop.last }}{% endfor %}",
    "{% for k in messages[0] %}{{ k }}{{ loop.revindex0 }}{{ ', ' if not loop.last }}{% endfor %}", "{% for c in 'aé🏔' %}{{ c }}{{ loop.length }}{{ ', ' if not loop.last }}{% endfor %}",
    "{% for c in messages[0].role -%} {{ c }}{{ loop.last }} {%- endfor %}", "{% for c in messages[0].role[2:] %}{{ c }}{{ loop.last }}{% endfor %}", "{% for c in '' %}x{% else %}nothing{% endfor %}",
    "{% for k, v in {'a': 1, 'b': 2, 'c': 3} | items if v > 1 %}{{ k }}{{ loop.index }}{{ loop.last }}{% endfor %}", "{% for k, v in {'a': 1, 'b': 2} | dictsort %}{{ k }}{{ loop.last }}{% endfor %}",
    "{% for r in messages | map(attribute='role') %}{{ r }}{{ loop.last }}{{ loop.length }}{% endfor %}", "{% for m in messages | selectattr('role', 'equalto', 'user') %}{{ loop.last }}{% endfor %}", "{% for k in {'a': 1, 'b': 2}.keys() | reverse %}{{ k }}{{ loop.last }}{% endfor %}",
    "{% for x in [1, 2] | reverse %}{{ x }}{{ loop.last }}{% endfor %}", "{% for x in [1, 2, 3][1:] %}{{ x }}{{ loop.last }}{% endfor %}", "{% for x in 'a,b'.split(',') %}{{ x }}{{ loop.last }}{% endfor %}", "{% for x in range(3) %}{{ x }}{{ loop.last }}{% endfor %}",
    "{% for x in [1, 2, 3] | batch(2) %}{{ x }}{{ loop.last }}{% endfor %}", "{% for x in 1, 2 %}{{ x }}{{ loop.last }}{% endfor %}", "{% for x in(1, 2) %}{{ x }}{% endfor %}", "{% for x in [1, [2, [3]]] recursive %}{{ loop(x) if x is iterable else x }}{{ loop.last }}{% endfor %}",
    "{% for x in (messages if true else none) %}{{ x.role }} {% endfor %}", "{% for x in nothing %}x{% else %}nothing{% endfor %}", "{% for x in messages[0].nothing %}x{% endfor %}", "{% for x in none or [1] %}{{ x }}{% endfor %}",
    "{% for x in 'a' ~ 'b' %}{{ x }}{{ loop.last }}{% endfor %}", "{% for recursive in [1] %}{{ recursive }}{% endfor %}",
    # Views of dictionaries.
    "{'a': 1}.items()", "{'a': [1, 'x']}.keys()", "{'a': [1, 'x']}.values()", "{'a': 1}.items() | length", "{'a': 1}.keys() is sequence", "{'a': 1}.keys() is iterable", "'a' in {'a': 1}.keys()", "2 in {'a': 1}.values()", "{'b': 1, 'a': 2}.keys() | sort", "{'a': 1, 'b': 2}.keys() | last",
    "{'a': 1, 'b': 2}.values() | sum", "{'a': 1, 'b': 2}.keys() | join(',')", "{'items': 1}.items() | list", "{'a': 1, 'b': 2}.items() | reverse | list",
    # What has no value.
    "none.a", "none | string", "none | length if none else 'none'", "nothing | list", "nothing | join(',')", "nothing | length", "nothing | first", "nothing | last", "nothing | min", "nothing | max", "nothing | reverse | list", "nothing | sum", "nothing | sort", "nothing | unique | list", "nothing | batch(2) | list", "nothing | slice(2) | list", "nothing | groupby('x')", "'a' in nothing",
    "none | map('upper') | list", "none | map(attribute='x') | list", "none | select | list", "none | reject | list", "none | selectattr('x') | list", "none | rejectattr('x') | list", "nothing | map('upper') | list", "none | default('d')", "none | default('d', true)", "none | wordcount", "none | int",
    # Numbers.
    "'x' | int", "'x' | float", "'x' | int(7)", "'x' | float(1.5)", "'x' | int(default=none)", "'x' | int(none)", "'x' | int(none, 16)", "'x' | float(default='y')", "'' | int", "' 42 ' | int", "'42.9' | int", "'-42.9' | int", "'+7' | int", "'1_000' | int", "'1__0' | int", "'_1' | int", "'1e3' | int", "'0x1A' | int", "'0x1A' | int(base=16)", "'-0x1a' | int(0, 16)", "'1A' | int(base=16)", "'0b101' | int(base=0)",
    "'0b101' | int(base=2)", "'0o17' | int(base=8)", "'12' | int(base=0)", "'zz' | int(base=36)", "'+-7' | int", "'inf' | int", "'nan' | int", "-3.7 | int", "true | int", "[] | int", "{} | int(5)", "'3.5' | float", "' 1_0.5 ' | float", "'1e3' | float", "'.5' | float", "'inf' | float", "'nan' | float", "true | float", "none | float", "[] | float(2.0)",
    "'9007199254740993' | int | float", "7 | int(base=16)", "[1, 2] | sum(start=3)", "[1, 2.5] | sum", "[true, 2] | sum", "[] | sum(start=1.5)", "[[1], ['a']] | sum(start=[])", "[{'x': 1}, {'x': {'y': 2}}] | map(attribute='x') | first", "[{'x': 1}, {'x': 2}] | sum(attribute='x')", "[{'x': {'y': 2}}] | sum('x.y', 0.5)", "{'a': 1}.values() | sum",
    "true is number", "1 is number", "1.5 is number", "'1' is number", "none is number", "true is integer", "true is float", "1.0 is float",
    # Capitals, and the ends of texts.
    "'a1b'.title()", "\"it's o'neil\".title()", "'ǆ ßa ﬁ'.title()", "'hELLO-wORLD_x y'.title()", "'Ab Cd'.istitle()", "'Ab cd'.istitle()", "'AB'.istitle()", "'A1B'.istitle()", "'A1b'.istitle()", "''.istitle()", "'12'.istitle()", "\"It's\".istitle()",
    "'abc'.startswith('b', 1)", "'abc'.startswith('b', 2)", "'abc'.startswith('c', -1)", "'abc'.startswith('ab', 0, 1)", "'éab'.startswith(('x', 'a'), 1)", "'abc'.startswith('', 4)", "'abc'.startswith('', 3)", "'abc'.endswith('b', 0, 2)", "'abc'.endswith(('x', 'bc'))", "'abc'.endswith('abc', 1)", "'abc'.startswith(())", "'abc'.endswith('c', none, -1)",
]


class Generation(Extension):
    """The blocks of training templates that mark what the model says."""

    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


def environment():
    """The renderer of templates; the time is UTC's."""
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise TemplateError(message)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: datetime.datetime.now(datetime.timezone.utc).strftime(form)
    return env


def main():
    env = environment()
    cases = []
    for case in CASES:
        template = case if "{{" in case or "{%" in case else "{{ " + case + " }}"
        text = env.from_string(template).render(messages=MESSAGES, tools=TOOLS, documents=None, add_generation_prompt=True, **TOKENS)
        cases.append({"template": template, "text": text})
    OUT.parent.mkdir(exist_ok=True)
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    head = {"messages": MESSAGES, "tools": TOOLS, "tokens": TOKENS}
    head = ",\n".join(f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in head.items())
    OUT.write_text("{\n" + head + ',\n"cases": [\n' + lines + "\n]}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
