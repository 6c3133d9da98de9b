"""Oracle: transformers' apply_chat_template (Jinja2, sandboxed): every filter and test of Jinja and every method of Python's
str, list, tuple and dict, each called in several ways; what is not supported is named."""

import pytest
from jinja2.filters import FILTERS
from jinja2.tests import TESTS

from test_chat_template import CHATS, same_text

REFUSED_FILTERS = {"pprint", "random", "striptags", "urlize", "wordwrap"}
REFUSED_TESTS = {"escaped"}
REFUSED_METHODS = {"encode", "maketrans", "translate"}

# What follows the bar, over the values before it.
WORDS, NUMBERS = "['b', 'A', 'c', 'a']", "[3, 1, 2, 1]"
PEOPLE = "[{'n': 'Bo', 'a': 3, 'x': {'y': 1}}, {'n': 'al', 'a': 1, 'x': {'y': 2}}, {'n': 'Cy', 'a': 3, 'x': {'y': 0}}]"
FILTER_CASES = {
    "abs": ["-3 | abs", "-2.5 | abs", "true | abs", "'x' | abs"],
    "attr": ["messages | attr('nope')", "'x' | attr('upper') is callable", "messages[0] | attr('role')"],
    "batch": [f"{NUMBERS} | batch(3) | list", f"{NUMBERS} | batch(3, 0) | list", "'abcde' | batch(2) | list", "[] | batch(2) | list"],
    "capitalize": ["'hELLO wORLD' | capitalize", "'éa' | capitalize", "5 | capitalize", "'' | capitalize"],
    "center": ["'ab' | center(7) ~ '|'", "'abc' | center(8) ~ '|'", "'x' | center ~ '|'", "5 | center(4) ~ '|'", "'abcdef' | center(3)"],
    "count": [f"{NUMBERS} | count", "{'a': 1} | count", "5 | count"],
    "d": ["missing | d(1)", "'' | d('x', true)", "missing | d"],
    "default": ["missing | default('x')", "none | default('x', boolean=true)", "0 | default(5)", "missing.x | default('y')"],
    "dictsort": ["{'b': 1, 'A': 2} | dictsort", "{'b': 1, 'A': 2} | dictsort(true)", "{'b': 2, 'a': 1} | dictsort(by='value', reverse=true)",
                 "{'b': 2} | dictsort(by='z')"],
    "e": ["'<a href=\"x\">&\\'' | e", "5 | e", "none | e"],
    "escape": ["'<b>' | escape", "['<'] | escape"],
    "filesizeformat": ["0 | filesizeformat", "1 | filesizeformat", "999 | filesizeformat", "1000 | filesizeformat", "123456789 | filesizeformat",
                       "1023 | filesizeformat(true)", "1024 | filesizeformat(true)", "1048576 | filesizeformat(binary=true)",
                       "'1500' | filesizeformat", "1.5e30 | filesizeformat", "'x' | filesizeformat", "-5 | filesizeformat"],
    "first": [f"{NUMBERS} | first", "'héllo' | first", "{'k': 1} | first", "[] | first"],
    "float": ["'1.5' | float", "'x' | float", "'x' | float(2.5)", "' 3 ' | float", "3 | float", "none | float", "'1e3' | float"],
    "forceescape": ["'<a>' | forceescape", "5 | forceescape"],
    "format": ["'%s of %d' | format('a', 3)", "'%(a)s-%(b)03d' | format(a='x', b=7)", "'%5.2f|%-6s|%+d' | format(3.14159, 'ab', 5)",
               "'%s' | format", "'%s' | format('a', 'b')", "'%s' | format(1, a=2)", "'x' | format(1)"],
    "groupby": [f"{PEOPLE} | groupby('a') | list", f"{PEOPLE} | groupby('n', case_sensitive=true) | list",
                f"{PEOPLE} | groupby('x.y') | map(attribute='grouper') | list", f"{PEOPLE} | groupby('z', default=0) | list",
                "{% for g in " + PEOPLE + " | groupby('a') %}{{ g.grouper }}{{ g.list | length }}{{ g[0] }}{% endfor %}"],
    "indent": ["'a\\nb\\n\\nc' | indent", "'a\\nb' | indent(2, true)", "'a\\n\\nb' | indent(2, blank=true)", "'a\\nb' | indent('> ')", "'' | indent"],
    "int": ["'12' | int", "'x' | int", "'x' | int(7)", "'0x1F' | int(0, 16)", "'0b11' | int(base=2)", "'ff' | int(base=16)", "'1_000' | int",
            "3.99 | int", "'3.99' | int", "true | int", "none | int(4)", "'-5' | int", "'077' | int(base=8)", "'z' | int(1, 36)"],
    "items": ["{'a': 1} | items | list", "missing | items | list", "5 | items"],
    "join": [f"{WORDS} | join", f"{WORDS} | join('-')", f"{PEOPLE} | join(', ', attribute='n')", "[1, none, 'x'] | join('|')", "5 | join"],
    "last": [f"{NUMBERS} | last", "'abc' | last", "[] | last", "{'a': 1, 'b': 2} | last"],
    "length": ["'é漢👋🏽' | length", "messages | length", "5 | length"],
    "list": ["'abc' | list", "{'a': 1} | list", "5 | list"],
    "lower": ["'ÀB' | lower", "5 | lower"],
    "map": [f"{WORDS} | map('upper') | join", f"{PEOPLE} | map(attribute='x.y') | list", f"{PEOPLE} | map(attribute='z', default='?') | list",
            "['1', 'x'] | map('int', 5) | list", "[1.234] | map('round', 1) | list", "['%s!'] | map('format', 'a') | list", "[1] | map | list",
            "[1] | map('nope') | list", "none | map('upper') | list", "0 | map('nope') | list", "missing | map | list", "5 | map('upper') | list"],
    "max": [f"{NUMBERS} | max", f"{WORDS} | max", f"{WORDS} | max(case_sensitive=true)", f"{PEOPLE} | max(attribute='a')", "[] | max"],
    "min": [f"{NUMBERS} | min", f"{WORDS} | min(true)", f"{PEOPLE} | min(attribute='x.y')", "[] | min", "[1, 'a'] | min"],
    "reject": [f"{NUMBERS} | reject('odd') | list", f"{NUMBERS} | reject | list", f"{NUMBERS} | reject('in', [1, 2]) | list"],
    "rejectattr": [f"{PEOPLE} | rejectattr('a', 'gt', 1) | map(attribute='n') | list", f"{PEOPLE} | rejectattr('z') | list | length",
                   "none | rejectattr('z') | list | length"],
    "replace": ["'aXbX' | replace('X', '-')", "'aaa' | replace('a', 'b', 2)", "'ab' | replace('', '.')", "5 | replace('5', 'x')"],
    "reverse": [f"{NUMBERS} | reverse | list", "'abc' | reverse", "{'a': 1, 'b': 2} | reverse | list", "5 | reverse"],
    "round": ["2.5 | round", "3.5 | round", "42.55 | round(1, 'floor')", "42.51 | round(1, 'ceil')", "1234.5 | round(-2)", "1250 | round(-2)", "-1350 | round(-2)", "55 | round(-30)", "5 | round(1)",
              "1.005 | round(2)", "2.5 | round(method='x')", "'x' | round", "7 | round"],
    "safe": ["'<b>' | safe", "5 | safe"],
    "select": [f"{NUMBERS} | select('odd') | list", "[0, 1, ''] | select | list", f"{NUMBERS} | select('>', 1) | list", "[1] | select('nope') | list"],
    "selectattr": [f"{PEOPLE} | selectattr('a', 'eq', 3) | map(attribute='n') | list", f"{PEOPLE} | selectattr('x.y') | list | length",
                   f"{PEOPLE} | selectattr('n', 'in', 'Bo') | list | length", f"{PEOPLE} | selectattr('z', 'defined') | list",
                   "none | selectattr('type', 'equalto', 'x') | list | length > 0", "false | select | list", "none | select('nope') | list",
                   "1 | selectattr('a') | list"],
    "slice": ["range(10) | list | slice(3) | list", "range(10) | list | slice(4, 'x') | list", "[1] | slice(3) | list", "[1] | slice(3, 0) | list",
              "'abcdefg' | slice(2) | list"],
    "sort": [f"{WORDS} | sort", f"{WORDS} | sort(true)", f"{WORDS} | sort(case_sensitive=true)", f"{PEOPLE} | sort(attribute='a,n') | map(attribute='n') | list",
             f"{PEOPLE} | sort(attribute='x.y') | map(attribute='n') | list", "[1, 'a'] | sort", "{'b': 1, 'a': 2} | sort"],
    "string": ["5 | string", "[1, 'a'] | string", "none | string", "missing | string"],
    "sum": [f"{NUMBERS} | sum", f"{PEOPLE} | sum(attribute='a')", "[1.5, 2] | sum(start=10)", "[[1], [2]] | sum(start=[])", "['a'] | sum"],
    "title": ["'hello wORLD' | title", "\"they're o'neil-smith (abc) x1y\" | title", "5 | title", "'a\\tb_c' | title"],
    "tojson": ["{'a': [1, 'é<>&\\'']} | tojson", "[1] | tojson(indent=4)", "{'b': 1, 'a': 2} | tojson(sort_keys=true)", "missing | tojson"],
    "trim": ["'  a ' | trim ~ '|'", "'xxaxx' | trim('x')", "5 | trim"],
    "truncate": ["'foo bar baz qux' | truncate(9)", "'foo bar baz qux' | truncate(9, true)", "'foo bar baz qux' | truncate(11)", "'foo bar baz qux' | truncate(11, false, '...', 0)",
                 "'foo bar baz qux' | truncate(10, leeway=0)", "'ab' | truncate(1, end='')", "'abcdefghij' | truncate(4, leeway=0)", "'x' | truncate(1)",
                 "'foo bar baz qux' | truncate(9, end='é…', leeway=1)", "'a b c d e f' | truncate(2, end='...')"],
    "unique": ["[1, 2, 1, 3] | unique | list", "['a', 'A', 'b'] | unique | list", "['a', 'A'] | unique(true) | list", f"{PEOPLE} | unique(attribute='a') | map(attribute='n') | list"],
    "upper": ["'straße é' | upper", "5 | upper"],
    "urlencode": ["'a b/ü?&=~' | urlencode", "{'a b': 'c/d', 'e': 1} | urlencode", "[['x', 'y z'], ['q', 2]] | urlencode", "5 | urlencode"],
    "wordcount": ["'a b  c\\nd' | wordcount", "'' | wordcount", "\"don't stop-now\" | wordcount", "'a_b, c.' | wordcount", "5 | wordcount"],
    "xmlattr": ["{'class': 'a<b', 'id': 5, 'no': none, 'm': missing} | xmlattr", "{'a': 1} | xmlattr(false)", "{} | xmlattr", "{'a b': 1} | xmlattr", "{'a>': 1} | xmlattr"],
}
TEST_VALUES = ["1", "0", "2", "-3", "1.0", "'a'", "'A'", "'aB'", "''", "none", "true", "false", "[]", "[1]", "(1,)", "{}", "{'a': 1}", "missing",
               "range", "messages", "'upper'", "'odd'"]
TEST_ARGUMENTS = {"divisibleby": ["1", "2", "0"], "in": ["[1, 'a']", "'abc'", "{'a': 1}"],
                  **{name: ["1", "'a'", "1.0", "none", "[1]", "true"] for name in
                     ("eq", "==", "equalto", "ne", "!=", "gt", ">", "greaterthan", "ge", ">=", "lt", "<", "lessthan", "le", "<=", "sameas")}}
METHODS = {
    "'hello World'": {
        "capitalize": ["()"], "casefold": ["()"], "center": ["(15)", "(16, '*')", "(2)", "(15, 'ab')"], "count": ["('l')", "('l', 3)", "('l', 3, 9)", "('')", "('l', -3)", "(1)"],
        "endswith": ["('ld')", "(('x', 'd'))", "('lo', 0, 5)", "('o', 3, 5)", "('')", "(['ld'])"], "expandtabs": ["()"],
        "find": ["('o')", "('o', 5)", "('o', 5, 6)", "('zz')", "('', 3)", "('o', -5)"], "format": ["()"], "format_map": ["({})"],
        "index": ["('o', 5)", "('zz')"], "isalnum": ["()"], "isalpha": ["()"], "isascii": ["()"], "isdecimal": ["()"], "isdigit": ["()"],
        "isidentifier": ["()"], "islower": ["()"], "isnumeric": ["()"], "isprintable": ["()"], "isspace": ["()"], "istitle": ["()"], "isupper": ["()"],
        "join": ["(['a', 'b'])", "('xy')", "([1])", "([])"], "ljust": ["(13, '.')", "(3)"], "lower": ["()"], "lstrip": ["()", "('he')"],
        "partition": ["(' ')", "('zz')", "('')"], "removeprefix": ["('he')", "('x')"], "removesuffix": ["('ld')", "('x')"],
        "replace": ["('l', 'L')", "('l', 'L', 1)", "('', '-')", "('l', 1)"], "rfind": ["('o')", "('o', 0, 6)"], "rindex": ["('o')", "('q')"],
        "rjust": ["(13, '.')"], "rpartition": ["('o')"], "rsplit": ["()", "('o', 1)", "(none, 1)"], "rstrip": ["('dl')"],
        "split": ["()", "('o')", "('o', 1)", "(none, 1)", "(maxsplit=1)", "('')"], "splitlines": ["()", "(true)"],
        "startswith": ["('he')", "('l', 2)", "(('x', 'he'))", "('lo', 3, 4)"], "strip": ["('hd')"], "swapcase": ["()"], "title": ["()"], "upper": ["()"],
        "zfill": ["(15)", "(3)"]},
    "[3, 1, 3]": {"index": ["(3)", "(3, 1)", "(3, 1, 2)", "(9)", "(3, -1)"], "count": ["(3)", "('x')"], "copy": ["()"]},
    "(3, 1, 3)": {"index": ["(1)", "(3, 1)"], "count": ["(3)"]},
    "{'a': 1, 'b': 2}": {"get": ["('a')", "('z')", "('z', 5)"], "items": ["() | list"], "keys": ["() | list"], "values": ["() | list"], "copy": ["()"]},
}
MORE_TEXTS = ["''", "'  x\\ty  '", "'Tab\\tted\\tlines\\n\\ta'", "'12345'", "'١٢٣'", "'²½Ⅷ'", "'三百'", "'ǅ Ǆ ǆ ß é İ Σ'", "'_a1'", "'9a'", "'Hello World'",
              "'HELLO wORLD'", "'-42'", "'+7'", "'a\\u00a0b'", "'naïve CAFÉ'", "'a\\r\\nb\\x0bc\\x1cd\\u2028e'", "'\\u1e9e\\u0345'", "'a b_c-d'", "'⑴①'", "'A1B2'", "'it\\'s'"]
FORMATS = """
'{} {}'.format(1, 'a') | '{0}{1}{0}'.format('x', 'y') | '{a}-{b}'.format(a=1, b=[1, 'x']) | '{{}} {}'.format(5) | '{m[0][role]}'.format(m=messages)
'{a.b}'.format(a={'b': 7}) | '{a[b]}'.format(a={'b': 7}) | '{:>8}|{:<8}|{:^8}|'.format('ab', 'cd', 'ef') | '{:*^9}'.format('mid') | '{:8}|'.format('x') | '{:8}|'.format(5)
'{:05}'.format(42) | '{:05}'.format('ab') | '{:+d} {: d} {:-d}'.format(5, 5, 5) | '{:,}'.format(1234567) | '{:_}'.format(1234567) | '{:,.2f}'.format(1234567.891) | '{:010,}'.format(1234)
'{:x} {:X} {:#x} {:o} {:#o} {:b} {:#010b}'.format(255, 255, 255, 8, 8, 5, 5) | '{:c}'.format(233) | '{:_x}'.format(1048575) | '{:,x}'.format(5) | '{:d}'.format(true) | '{}'.format(true) | '{:5}|'.format(true)
'{:.3f} {:.0f} {:e} {:.2E} {:g} {:G} {:%} {:.1%}'.format(3.14159, 2.5, 12345.678, 0.00012, 1e-7, 1e20, 0.256, 0.2567) | '{:f}'.format(3) | '{}'.format(1e16) | '{:.2}'.format(3.14159) | '{:.3}'.format(1234567.0) | '{:.3}'.format(10.0) | '{:.2}'.format(10.0) | '{:.1}'.format(9.0)
'{:5.1f}|{:<7.2f}|{:^9.3f}|{:=+8.2f}'.format(2.25, 2.5, 1.0, 3.5) | '{:#.0f} {:#g}'.format(3.0, 2.0) | '{:08.3f}'.format(-3.14159) | '{:.2s}|{:5.3s}|'.format('abcdef', 'héllo') | '{:10}|'.format(2.5) | '{:n}'.format(5)
'{!r} {!s} {!a}'.format('é', 'é', 'é') | '{!r:>6}|'.format('a') | '{:{w}.{p}f}'.format(3.14159, w=9, p=2) | '{:{}}|'.format('a', 5) | '{a!x}'.format(a=1) | '{'.format() | '}'.format() | '{}'.format() | '{x}'.format() | '{} {0}'.format(1)
'{:d}'.format('a') | '{:s}'.format(5) | '{:d}'.format(1.5) | '{:>5}'.format(none) | '{}'.format(none) | '{}'.format(missing) | '{:>5}'.format([1]) | '{:.2d}'.format(5) | '{:zz}'.format(5) | '{:.f}'.format(5.0) | '{:=5}'.format('a') | '{:+}'.format('a')
'{0[0]}{0[1]}'.format(['a', 'b']) | '{0[-1]}'.format(['a']) | '{0.__class__}'.format('a') | '{a.nope}'.format(a=5) | '{0[x}'.format({'x': 1}) | '{:é>5}'.format('a') | '{:<<5}'.format('a') | '{a}'.format_map({'a': 3}) | '{}'.format_map({'a': 3})
'{:e}'.format(0) | '{:.10g}'.format(0.1) | '{:g}'.format(100000) | '{:g}'.format(1000000) | '{}'.format(-0.0) | '{:.0e}'.format(15.0) | '{:,}'.format(-1234.5) | '{:+,.1f}'.format(99999.95) | '{:020,.2f}'.format(1234567.891) | '{:<08}|'.format(5)
'%s %r %d %i' % ('é', 'é', 3.9, true) | '%5s|%-5s|%.2s' % ('a', 'b', 'cde') | '%05d|%+d|% d|%-6d|' % (42, 7, 7, 42) | '%x %X %#x %o %#o' % (255, 255, 255, 8, 8) | '%e %.2f %g %G' % (1234.5, 2.345, 1e-9, 1e20) | '%c%c' % ('a', 98) | '%%' % ()
'%(a)s %(b)5.1f' % {'a': 1, 'b': 2.25} | '%(a)s' % {'b': 1} | '%(a)s' % (1,) | '%s %s' % (1,) | '%s' % (1, 2) | 'x' % [1] | 'x' % {'a': 1} | 'x' % 5 | '%s' % [1, 2] | '%s' % none | '%s' % missing | '%*d' % (5, 3) | '%.*f' % (2, 3.14159) | '%-*s|' % (4, 'a')
'%d' % 'x' | '%q' % 1 | '%' % 1 | '%a' % 'é' | '%08.3f' % -3.14159 | '%+.1e' % 12345.0 | '%ld' % 5 | '%5%|' % () | '%s' % (('a', 1),) | '%d%%' % 50 | '%(x)%' % {'x': 1} | '%i' % 2.99 | '%u' % 7 | '%x' % 2.5
""".strip()


def check(probe, templates):
    failures = []
    for template in templates:
        try:
            same_text(probe, template, CHATS[3])
        except AssertionError as error:
            failures.append(str(error).splitlines()[0])
    assert not failures, f"{len(failures)} of {len(templates)}:\n" + "\n".join(failures)


def as_template(case):
    return case if case.startswith("{%") else "{{ " + case + " }}"


def test_every_filter(probe):
    assert FILTER_CASES.keys() | REFUSED_FILTERS == FILTERS.keys() | {"tojson"}
    check(probe, [as_template(case) for cases in FILTER_CASES.values() for case in cases])


def test_every_test(probe):
    names = [name for name in TESTS if name.isalpha() and name not in REFUSED_TESTS]
    templates = [f"{{{{ {value} is {name} }}}}" for name in names for value in TEST_VALUES if name not in TEST_ARGUMENTS]
    templates += [f"{{{{ {value} is {name}({argument}) }}}}" for name in names for value in TEST_VALUES
                  for argument in TEST_ARGUMENTS.get(name, []) if name != "sameas" or "1.0" not in (value, argument)]
    templates += [f"{{{{ [{value}] | select('{name}', {argument}) | list }}}}" for name in TESTS if not name.isalpha()
                  for value in TEST_VALUES for argument in TEST_ARGUMENTS[name]]
    check(probe, templates)


def test_every_method(probe):
    changing = {"append", "clear", "extend", "insert", "pop", "popitem", "remove", "reverse", "setdefault", "sort", "update", "fromkeys"}
    for value, methods in METHODS.items():
        public = {name for name in dir(eval(value)) if not name.startswith("_")} - changing - REFUSED_METHODS
        assert methods.keys() == public
        check(probe, [f"{{{{ {value}.{name}{call} }}}}" for name, calls in methods.items() for call in calls])
    check(probe, [f"{{{{ {text}.{name}{call} }}}}" for text in MORE_TEXTS for name, calls in METHODS["'hello World'"].items() for call in calls])


def test_formatting(probe):
    check(probe, ["{{ " + case.strip() + " }}" for line in FORMATS.splitlines() for case in line.split(" | ")])


@pytest.mark.parametrize("name", sorted(REFUSED_FILTERS))
def test_refused_filters_are_named(probe, name):
    answer = probe.ask(do="render", template="{{ 'x' | " + name + " }}", messages=CHATS[0])
    assert f"the filter '{name}' of Jinja is not supported here: " in answer["error"]


@pytest.mark.parametrize("name", sorted(REFUSED_METHODS))
def test_refused_methods_are_named(probe, name):
    answer = probe.ask(do="render", template="{{ 'x'." + name + "('a') }}", messages=CHATS[0])
    assert f"{name}(): this method of Python's str is not supported here" in answer["error"]


def test_changing_methods_are_refused(probe):
    check(probe, [f"{{{{ {value}.{call} }}}}" for value, call in [
        ("messages", "append(1)"), ("messages", "pop()"), ("messages", "sort()"), ("messages", "clear()"), ("messages[0]", "pop('role')"),
        ("messages[0]", "update({})"), ("messages[0]", "setdefault('a', 1)"), ("messages", "extend([1])"), ("messages", "insert(0, 1)"),
        ("messages", "remove(1)"), ("messages", "reverse()"), ("messages[0]", "clear()"), ("messages[0]", "popitem()")]])
