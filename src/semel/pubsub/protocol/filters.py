"""Which connections a filter means: the part of OData's language that Azure Web PubSub understands.

    userId eq 'ann' or startswith(userId, 'bob-')
    'vip' in groups and not (connectionId in ('c1', 'c2'))
    length(groups) ge 2 and userId ne null

`parse` reads a filter once and makes functions of it; `Filter.matches` then asks one connection. Names of what a
connection has (userId, connectionId, groups, protocol) may be written in any case, operators and functions only in
small letters. From tight to loose: `in`, `not`, comparisons, `and`, `or`. So `not length(userId) gt 5` is a mistake.

Types are checked when the filter is read, as far as the service does it:

* `eq` and `ne` compare anything; values of different types are not equal, and null equals only null.
* `gt ge lt le` compare numbers. With null they are false, so `not (length(userId) gt 5)` is true without a user.
* `contains`, `startswith` and `endswith` with null are false, and `indexof` is -1; `length`, `tolower`, `toupper`,
  `trim` and `substring` of null are null; `concat` passes over null; `substring` beyond the end is null.
* `and`, `or` and `not` want truth values, of which null is none.

Letters are compared exactly, and counted as Unicode characters.

A filter may come from a stranger: its length, clauses and depth are limited, and every mistake is an `InputError` that
reads as the service's does. "Syntax error at position" says where reading stood: behind the word that does not belong
there, at the end if something is missing, and before a character that begins no word.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, NoReturn, Protocol

from semel.errors import InputError, LimitExceeded

TEXT_CHARS_MAX = 16_384
CLAUSES_MAX = 500
NESTING_MAX = 50

_INTEGER_MAX = 2**63 - 1


class FilteredConnection(Protocol):
    """What a filter asks about. One with a `protocol` is asked for that as well; without, it is null."""

    @property
    def user_id(self) -> str | None: ...

    @property
    def connection_id(self) -> str: ...

    @property
    def groups(self) -> Collection[str]: ...


@dataclass(frozen=True, slots=True, eq=False)
class Filter:
    text: str
    matches: Callable[[FilteredConnection], bool]


@lru_cache(maxsize=256)
def parse(text: str) -> Filter:
    """The filter that `text` describes, or an `InputError` that says where it stops making sense."""
    if len(text) > TEXT_CHARS_MAX:
        raise LimitExceeded(
            f"the filter has {len(text):,} characters, the limit is {TEXT_CHARS_MAX:,}",
            fix="put the connections into a group and send to that",
        )
    node = _Parser(text).parse()
    return Filter(text, _Compiler(text).condition(node, node))


# -- the tree


@dataclass(frozen=True, slots=True)
class _Node:
    """`start` and `end` say where in the text it stands, `depth` how many nodes there are below each other."""

    start: int
    end: int
    depth: int


@dataclass(frozen=True, slots=True)
class _Constant(_Node):
    value: str | int | bool | None


@dataclass(frozen=True, slots=True)
class _Name(_Node):
    name: str


@dataclass(frozen=True, slots=True)
class _Call(_Node):
    name: str
    arguments: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Not(_Node):
    operand: _Node


@dataclass(frozen=True, slots=True)
class _Compare(_Node):
    operator: str
    left: _Node
    right: _Node


@dataclass(frozen=True, slots=True)
class _In(_Node):
    """`items` are what stands in parentheses; without any, `collection` is what stands there."""

    left: _Node
    items: tuple[_Node, ...]
    collection: _Node | None


@dataclass(frozen=True, slots=True)
class _Logic(_Node):
    """`operands` joined by one operator: they are asked one after the other, so a long chain is not a deep one."""

    operator: str
    operands: tuple[_Node, ...]


# -- reading

_TOKEN = re.compile(
    r"""
      (?P<space>\s+)
    | (?P<string>'(?:[^']++|'')*+')
    | (?P<open_string>')
    | (?P<integer>[+-]?[0-9]+(?![\w.]))
    | (?P<name>[^\W\d]\w*)
    | (?P<mark>[(),])
    """,
    re.VERBOSE,
)
_COMPARISONS = frozenset({"eq", "ne", "gt", "ge", "lt", "le"})
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None}


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int
    end: int


class _Parser:
    """One token of look-ahead and no way back: the time it takes grows with the length of the text alone."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.nesting = 0
        self.clauses = 0
        self.last_end = 0
        self.next = self._scan()

    def parse(self) -> _Node:
        node = self._or()
        if self.next.kind != "end":
            self._fail("and, or or a comparison can go on here, or nothing")
        return node

    # tokens

    def _scan(self) -> _Token:
        while True:
            start = self.at
            if start == len(self.text):
                return _Token("end", "", start, start)
            found = _TOKEN.match(self.text, start)
            if found is None:
                return _Token("odd", "", start, start)
            if found.lastgroup == "open_string":
                return _Token("odd", "", start, len(self.text))
            self.at = found.end()
            if found.lastgroup != "space":
                kind = found[0] if found.lastgroup == "mark" else str(found.lastgroup)
                return _Token(kind, found[0], start, self.at)

    def _take(self) -> _Token:
        token = self.next
        self.last_end = token.end
        self.next = self._scan()
        return token

    def _accept(self, kind: str) -> bool:
        if self.next.kind != kind:
            return False
        self._take()
        return True

    def _accept_word(self, word: str) -> bool:
        return self.next.text == word and self._accept("name")

    def _expect(self, kind: str, what: str) -> None:
        if not self._accept(kind):
            self._fail(what)

    # expressions

    def _or(self) -> _Node:
        return self._logic("or", self._and)

    def _and(self) -> _Node:
        return self._logic("and", self._comparison)

    def _logic(self, word: str, operand: Callable[[], _Node]) -> _Node:
        first = operand()
        operands = [first]
        while self._accept_word(word):
            operands.append(operand())
        if len(operands) == 1:
            return first
        return _Logic(first.start, self.last_end, self._above(operands), word, tuple(operands))

    def _comparison(self) -> _Node:
        left = self._unary()
        while self.next.kind == "name" and self.next.text in _COMPARISONS:
            self._count_clause()
            word = self._take().text
            right = self._unary()
            left = _Compare(left.start, self.last_end, self._above((left, right)), word, left, right)
        return left

    def _unary(self) -> _Node:
        start = self.next.start
        if not self._accept_word("not"):
            return self._in()
        self._enter()
        operand = self._unary()
        self.nesting -= 1
        return _Not(start, self.last_end, self._above((operand,)), operand)

    def _in(self) -> _Node:
        left = self._primary()
        while self._accept_word("in"):
            self._count_clause()
            items, collection = (self._items(), None) if self.next.kind == "(" else ((), self._primary())
            below = (left, *items) if collection is None else (left, collection)
            left = _In(left.start, self.last_end, self._above(below), left, items, collection)
        return left

    def _primary(self) -> _Node:
        token = self.next
        if token.kind == "(":
            return self._in_parentheses()
        if token.kind == "string":
            self._take()
            return _Constant(token.start, token.end, 1, token.text[1:-1].replace("''", "'"))
        if token.kind == "integer":
            return _Constant(token.start, token.end, 1, self._integer())
        if token.kind != "name":
            self._fail("a value is missing here, such as userId or 'text'")
        self._take()
        if token.text in _WORDS:
            return _Constant(token.start, token.end, 1, _WORDS[token.text])
        if self.next.kind != "(":
            return _Name(token.start, token.end, 1, token.text)
        self._count_clause()
        arguments = self._items()
        return _Call(token.start, self.last_end, self._above(arguments), token.text, arguments)

    def _in_parentheses(self) -> _Node:
        self._take()
        self._enter()
        node = self._or()
        self.nesting -= 1
        self._expect(")", "close the parenthesis here with )")
        return node

    def _items(self) -> tuple[_Node, ...]:
        """What stands between parentheses, with commas between."""
        self._take()
        self._enter()
        items: list[_Node] = []
        if self.next.kind != ")":
            items.append(self._or())
            while self._accept(","):
                items.append(self._or())
        self.nesting -= 1
        self._expect(")", "go on with a comma or close the list here with )")
        return tuple(items)

    def _integer(self) -> int:
        token = self.next
        if len(token.text.lstrip("+-").lstrip("0")) > len(str(_INTEGER_MAX)) or abs(int(token.text)) > _INTEGER_MAX:
            self._fail("use a number of at most 64 bits")
        self._take()
        return int(token.text)

    # limits and mistakes

    def _enter(self) -> None:
        self.nesting += 1
        self._check_depth(self.nesting)

    def _above(self, nodes: Sequence[_Node]) -> int:
        depth = 1 + max((node.depth for node in nodes), default=0)
        self._check_depth(depth)
        return depth

    def _check_depth(self, depth: int) -> None:
        if depth > NESTING_MAX:
            raise LimitExceeded(f"the filter is nested deeper than {NESTING_MAX}", fix="take some parentheses away")

    def _count_clause(self) -> None:
        self.clauses += 1
        if self.clauses > CLAUSES_MAX:
            raise LimitExceeded(
                f"the filter has more than {CLAUSES_MAX} clauses",
                fix="write userId in ('a', 'b') for many values, or put the connections into a group",
            )

    def _fail(self, fix: str) -> NoReturn:
        detail = f"Syntax error at position {self.next.end} in '{self.text}'."
        raise _invalid(self.text, detail, fix)


def _invalid(part: str, detail: str, fix: str) -> InputError:
    return InputError(f"Invalid syntax for '{part}': {detail} (Parameter 'filter')", fix=fix)


# -- meaning


class _Type(StrEnum):
    STRING = "string"
    INT = "int"
    BOOL = "bool"
    NULL = "null"
    COLLECTION = "collection"


_Ask = Callable[[FilteredConnection], Any]


@dataclass(frozen=True, slots=True)
class _Value:
    """A value of a connection, of one type or null. `constant`: it is the same for every connection."""

    type: _Type
    ask: _Ask
    constant: bool = False


_PROPERTIES: dict[str, _Value] = {
    "userid": _Value(_Type.STRING, operator.attrgetter("user_id")),
    "connectionid": _Value(_Type.STRING, operator.attrgetter("connection_id")),
    "groups": _Value(_Type.COLLECTION, operator.attrgetter("groups")),
    "protocol": _Value(_Type.STRING, lambda connection: getattr(connection, "protocol", None)),
}
_ORDER: dict[str, Callable[[int, int], bool]] = {
    "gt": operator.gt,
    "ge": operator.ge,
    "lt": operator.lt,
    "le": operator.le,
}


def _constant(value: str | int | bool | None) -> _Value:
    return _Value(_type_of(value), lambda _: value, constant=True)


def _type_of(value: str | int | bool | None) -> _Type:
    if value is None:
        return _Type.NULL
    if isinstance(value, bool):
        return _Type.BOOL
    return _Type.INT if isinstance(value, int) else _Type.STRING


def _fixed(value: _Value) -> Any:
    """The value of a constant, which asks nobody."""
    return value.ask(None)  # type: ignore[arg-type]


class _Nobody:
    """Whom the service asks when it looks at a filter: what a function makes of no user is null to it."""

    user_id = None
    connection_id = ""
    groups = ()


_NOBODY = _Nobody()


class _Compiler:
    """Makes a function of every node. A type that does not fit is found here, whoever is asked later."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._around: _Node | None = None
        """The nearest of what the service names when it does not know a word in it."""

    def condition(self, node: _Node, around: _Node) -> Callable[[FilteredConnection], bool]:
        return self._typed(node, _Type.BOOL, around).ask

    def _value(self, node: _Node) -> _Value:
        before = self._around
        if isinstance(node, _Call | _Compare | _In | _Logic):
            self._around = node
        value = self._compiled(node)
        self._around = before
        return value

    def _compiled(self, node: _Node) -> _Value:
        match node:
            case _Constant(value=value):
                return _constant(value)
            case _Name(name=name):
                return self._property(name)
            case _Call(name=name, arguments=arguments):
                return self._call(node, name, arguments)
            case _Not(operand=operand):
                return _not(self.condition(operand, node))
            case _Compare(operator=word, left=left, right=right):
                return self._comparison(node, word, left, right)
            case _In():
                return self._membership(node)
        assert isinstance(node, _Logic)
        join = _all if node.operator == "and" else _any
        return join(tuple(self.condition(operand, node) for operand in node.operands))

    def _typed(self, node: _Node, expected: _Type, around: _Node) -> _Value:
        value = self._value(node)
        if value.type is not expected and isinstance(node, _Call) and value.ask(_NOBODY) is None:
            self._wrong_type(_Type.NULL, expected, around)
        self._check_type(value, expected, around)
        return value

    def _check_type(self, value: _Value, expected: _Type, around: _Node, *, null: bool = False) -> None:
        """`around` needs a value of this type. With `null`, the word null is as good."""
        if value.type is not expected and not (null and value.type is _Type.NULL):
            self._wrong_type(value.type, expected, around)

    def _wrong_type(self, found: _Type, expected: _Type, around: _Node) -> NoReturn:
        fix = f"put what belongs to it in parentheses, or use a value of type {expected} there"
        raise _invalid(self._part(around), f"Type '{found}', expect '{expected}'.", fix)

    def _part(self, node: _Node) -> str:
        return self.text[node.start : node.end]

    def _property(self, name: str) -> _Value:
        if (found := _PROPERTIES.get(name.lower())) is None:
            fix = "ask for userId, connectionId, groups or protocol, and put text between single quotes"
            part = self.text if self._around is None else self._part(self._around)
            raise _invalid(part, f"Token '{name}' is not supported.", fix)
        return found

    def _primitive(self, node: _Node, around: _Node) -> _Value:
        value = self._value(node)
        self._check_primitive(value, around)
        return value

    def _check_primitive(self, value: _Value, around: _Node) -> None:
        if value.type is _Type.COLLECTION:
            self._wrong_type(value.type, _Type.STRING, around)

    def _comparison(self, node: _Node, word: str, left: _Node, right: _Node) -> _Value:
        if word in _ORDER:
            return self._ordering(node, word, left, right)
        equal = _equal(self._primitive(left, node), self._primitive(right, node))
        return equal if word == "eq" else _not(equal.ask)

    def _ordering(self, node: _Node, word: str, left: _Node, right: _Node) -> _Value:
        one, other = self._value(left), self._value(right)
        if _Type.NULL in (one.type, other.type):
            return _constant(False)
        for value in (one, other):
            self._check_type(value, _Type.INT, node)
        return _ordered(_ORDER[word], one.ask, other.ask)

    def _membership(self, node: _In) -> _Value:
        value = self._primitive(node.left, node)
        if node.collection is not None:
            return _among_groups(value, self._typed(node.collection, _Type.COLLECTION, node).ask)
        items = [self._value(item) for item in node.items]
        if len(items) == 1 and items[0].type is _Type.COLLECTION:
            return _among_groups(value, items[0].ask)
        for item in items:
            self._check_primitive(item, node)
        return _among(value, items)

    def _call(self, node: _Node, name: str, arguments: tuple[_Node, ...]) -> _Value:
        if (function := _FUNCTIONS.get(name)) is None:
            part = self._part(node)
            raise _invalid(part, f"Token '{part}' is not supported.", f"use one of {', '.join(_FUNCTIONS)}")
        if not function.least <= len(arguments) <= len(function.takes):
            counts = " or ".join(str(count) for count in range(function.least, len(function.takes) + 1))
            detail = f"The function has {len(arguments)} arguments, expect {counts}."
            raise _invalid(self._part(node), detail, f"give {name} {counts} arguments")
        values = [self._value(argument) for argument in arguments]
        for value, expected in zip(values, function.takes, strict=False):
            if not (value.type is _Type.COLLECTION and name == "length"):
                self._check_type(value, expected, node, null=expected is _Type.STRING)
        if function.nulls:
            return _Value(function.gives, _calling(function.run, [value.ask for value in values]))
        return _applied(function.gives, function.run, values, function.of_null)


# -- what the functions do


@dataclass(frozen=True, slots=True)
class _Function:
    """`of_null` is the result when an argument is null, unless the function itself deals with `nulls`."""

    takes: tuple[_Type, ...]
    gives: _Type
    run: Callable[..., Any]
    least: int
    of_null: int | bool | None = None
    nulls: bool = False


def _concat(one: str | None, other: str | None) -> str | None:
    if one is None or other is None:
        return one if other is None else other
    return one + other


def _substring(text: str, start: int, length: int | None = None) -> str | None:
    end = len(text) if length is None else start + length
    return text[start:end] if 0 <= start <= end <= len(text) else None


_ONE, _TWO = (_Type.STRING,), (_Type.STRING, _Type.STRING)
_FUNCTIONS = {
    "contains": _Function(_TWO, _Type.BOOL, str.__contains__, 2, of_null=False),
    "startswith": _Function(_TWO, _Type.BOOL, str.startswith, 2, of_null=False),
    "endswith": _Function(_TWO, _Type.BOOL, str.endswith, 2, of_null=False),
    "indexof": _Function(_TWO, _Type.INT, str.find, 2, of_null=-1),
    "length": _Function(_ONE, _Type.INT, len, 1),
    "tolower": _Function(_ONE, _Type.STRING, str.lower, 1),
    "toupper": _Function(_ONE, _Type.STRING, str.upper, 1),
    "trim": _Function(_ONE, _Type.STRING, str.strip, 1),
    "substring": _Function((_Type.STRING, _Type.INT, _Type.INT), _Type.STRING, _substring, 2),
    "concat": _Function(_TWO, _Type.STRING, _concat, 2, nulls=True),
}


def _calling(run: Callable[..., Any], asks: list[_Ask]) -> _Ask:
    return lambda connection: run(*(ask(connection) for ask in asks))


def _applied(gives: _Type, run: Callable[..., Any], values: list[_Value], of_null: int | bool | None = None) -> _Value:
    first, *rest = (value.ask for value in values)
    if all(value.constant for value in values[1:]):
        return _Value(gives, _applied_to_one(run, first, [_fixed(value) for value in values[1:]], of_null))

    def ask(connection: FilteredConnection) -> Any:
        arguments = [first(connection), *(each(connection) for each in rest)]
        return of_null if None in arguments else run(*arguments)

    return _Value(gives, ask)


def _applied_to_one(run: Callable[..., Any], first: _Ask, others: list[Any], of_null: int | bool | None) -> _Ask:
    """The usual case: what the connection has, and constants."""
    if None in others:
        return lambda _: of_null

    def ask(connection: FilteredConnection) -> Any:
        value = first(connection)
        return of_null if value is None else run(value, *others)

    return ask


def _not(condition: _Ask) -> _Value:
    return _Value(_Type.BOOL, lambda connection: not condition(connection))


def _all(conditions: tuple[_Ask, ...]) -> _Value:
    def ask(connection: FilteredConnection) -> bool:
        for condition in conditions:  # noqa: SIM110  a generator costs more than the questions
            if not condition(connection):
                return False
        return True

    return _Value(_Type.BOOL, ask)


def _any(conditions: tuple[_Ask, ...]) -> _Value:
    def ask(connection: FilteredConnection) -> bool:
        for condition in conditions:  # noqa: SIM110
            if condition(connection):
                return True
        return False

    return _Value(_Type.BOOL, ask)


def _comparable(one: _Value, other: _Value) -> bool:
    """False for truth values and numbers, which are different here and equal in Python."""
    return {one.type, other.type} != {_Type.BOOL, _Type.INT}


def _equal(one: _Value, other: _Value) -> _Value:
    if not _comparable(one, other):
        return _constant(False)
    left, right = one.ask, other.ask
    if other.constant:
        fixed = _fixed(other)
        return _Value(_Type.BOOL, lambda connection: left(connection) == fixed)
    return _Value(_Type.BOOL, lambda connection: left(connection) == right(connection))


def _ordered(order: Callable[[int, int], bool], left: _Ask, right: _Ask) -> _Value:
    def ask(connection: FilteredConnection) -> bool:
        one, other = left(connection), right(connection)
        return one is not None and other is not None and order(one, other)

    return _Value(_Type.BOOL, ask)


def _among_groups(value: _Value, groups: _Ask) -> _Value:
    if value.constant:
        fixed = _fixed(value)
        return _Value(_Type.BOOL, lambda connection: fixed in groups(connection))
    ask = value.ask
    return _Value(_Type.BOOL, lambda connection: ask(connection) in groups(connection))


def _among(value: _Value, items: list[_Value]) -> _Value:
    candidates = [item for item in items if _comparable(value, item)]
    fixed = frozenset(_fixed(item) for item in candidates if item.constant)
    others = tuple(item.ask for item in candidates if not item.constant)
    ask = value.ask
    if not others:
        return _Value(_Type.BOOL, lambda connection: ask(connection) in fixed)

    def among(connection: FilteredConnection) -> bool:
        found = ask(connection)
        return found in fixed or any(found == other(connection) for other in others)

    return _Value(_Type.BOOL, among)
