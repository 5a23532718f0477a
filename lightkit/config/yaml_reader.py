"""Read YAML as trees in which every value has its file, line and column.

With scalars as jsonargparse reads them.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from enum import Enum
from pathlib import Path, PurePath
from typing import Any

import yaml

from lightkit.config.origins import (
    Origin,
    Problems,
    UnreadableText,
    error_at,
    near_files,
    shortened,
    shown_path,
)
from lightkit.config.packaged import suggest_packaged
from lightkit.config.tree import Items, Leaf, MappingNode, Node
from lightkit.errors import ConfigError

_FLOAT_TAG = "tag:yaml.org,2002:float"
_FLOAT = re.compile(
    r"""^(?:
     [-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?(?:[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)
    |\.[0-9_]+(?:[eE][-+][0-9]+)?
    |[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+\.[0-9_]*
    |[-+]?\.(?:inf|Inf|INF)
    |\.(?:nan|NaN|NAN))$""",
    re.VERBOSE,
)
SCALAR_TAGS = frozenset(
    f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null", "value")
)


def _resolvers(inherited: dict[str, list[tuple[str, Any]]]) -> dict[str, list[tuple[str, Any]]]:
    dropped = ("tag:yaml.org,2002:timestamp", _FLOAT_TAG)
    kept = {
        first: [pair for pair in pairs if pair[0] not in dropped]
        for first, pairs in inherited.items()
    }
    for first in "-+0123456789.":
        kept.setdefault(first, []).append((_FLOAT_TAG, _FLOAT))
    return kept


class YamlLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """PyYAML's safe loader with jsonargparse's idea of a number."""

    yaml_implicit_resolvers = _resolvers(yaml.SafeLoader.yaml_implicit_resolvers)


YamlLoader.add_constructor(
    "tag:yaml.org,2002:value", yaml.constructor.SafeConstructor.construct_yaml_str
)


class _Dumper(yaml.SafeDumper):
    """The counterpart of `YamlLoader`: puts quotes around what that would take for a number."""

    yaml_implicit_resolvers = _resolvers(yaml.SafeDumper.yaml_implicit_resolvers)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # PyYAML 6.0.3 writes these line breaks into single quotes, where they read back as spaces.
    style = '"' if any(rare in text for rare in "\x85\u2028\u2029") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)
_Dumper.add_multi_representer(Enum, lambda dumper, word: dumper.represent_data(word.value))
_Dumper.add_representer(tuple, _Dumper.represent_list)
_Dumper.add_multi_representer(PurePath, lambda dumper, path: dumper.represent_str(str(path)))


def dump_yaml(config: dict[str, Any]) -> str:
    """Write a config as YAML in its own order; `resolve` reads it back equal."""
    text: str = yaml.dump(config, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    return text


def read_scalar(value: Any) -> Any:
    """Read a scalar that may be text, as flags and variables have it.

    Text that is none, and any other value, is itself.
    """
    found = read_as_yaml(value)
    return value if isinstance(found, (dict, list)) else found


def read_as_yaml(value: Any) -> Any:
    """Read a value that may be text as jsonargparse does; text that is no YAML is itself."""
    if not isinstance(value, str) or value == "":
        return value
    try:
        return yaml.load(value, Loader=YamlLoader)  # noqa: S506 - a subclass of the safe loader
    except (yaml.YAMLError, ValueError, RecursionError):
        return value


_LONGEST_KEY = 1024  # by the specification of YAML 1.2, unless a question mark stands before it
_WORDS = {
    "did not find expected ',' or '}'": "the { is not closed here, and no comma follows",
    "did not find expected ',' or ']'": "the [ is not closed here, and no comma follows",
    "did not find expected key": "keys of one mapping begin in one column",
    "did not find expected '-' indicator": (
        "elements of one list begin in one column, each with a dash"
    ),
    "could not find expected ':'": "a key needs a colon and a space after it",
    "found unexpected end of stream": "the quote that begins here is never closed",
    "found undefined alias": (
        "no anchor of this name stands above; put quotes around text that begins with *"
    ),
    "but found another document": "a config is one document, and --- begins another",
    "found duplicate anchor": "an anchor of this name stands above",
    "found unknown escape character": (
        "in double quotes a backslash is written \\\\; single quotes take it as it is"
    ),
}
"""Plain words for libyaml's ``problem``."""


def _explain(error: yaml.YAMLError, lines: Sequence[str], unclosed: str | None) -> str:
    """Explain an error of PyYAML.

    Args:
        error: The error, which has a place.
        lines: The text's lines.
        unclosed: The bracket that is open where the text ends, if it ends there.
    """
    assert isinstance(error, yaml.MarkedYAMLError)
    assert error.problem_mark is not None
    mark = error.problem_mark
    line = lines[mark.line] if mark.line < len(lines) else ""
    before = line[: mark.column]
    here = line[mark.column : mark.column + 1]
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return "lines are indented with spaces, and a tab stands here"
    if unclosed is not None:
        return f"the {unclosed} that opens here is never closed"
    if error.problem == "found character that cannot start any token":
        return f"text cannot begin with {here}; put quotes around it"
    if mark.column > _LONGEST_KEY and not before.count(": "):
        return f"a key is longer than {_LONGEST_KEY} characters"
    if error.problem == "mapping values are not allowed in this context":
        return _explain_colon(before, lines[: mark.line])
    if error.problem == "did not find expected node content":
        return f"a value is missing before {here}"
    return _explain_problem(error, before)


def _explain_colon(before: str, above: Sequence[str]) -> str:
    """Explain a colon where no key can stand.

    Args:
        before: Text before it, in the same line.
        above: The lines above it.
    """
    if ": " in before:
        return "a second colon in one line; put quotes around text that holds one"
    written = [line for line in above if line.strip()]
    if written and ":" in written[-1]:
        return _WORDS["did not find expected key"]
    return "the line above has no colon after its key"


def _explain_problem(error: yaml.MarkedYAMLError, before: str) -> str:
    """Explain an error by libyaml's words for it, after the text before it in its line."""
    problem = error.problem or ""
    if problem == "did not find expected key" and before.strip():
        return "the value has ended before this; put quotes around all of it"
    said = ", ".join(part for part in (error.context, problem) if part)
    return _WORDS.get(problem, said)


MAX_NODES = 20_000  # a few aliases of aliases can stand for billions of values
MAX_DEPTH = 100  # Python's recursion ends soon after 1000
TOO_LARGE = (
    f"the config has more than {MAX_NODES} values, or more than {MAX_DEPTH} levels, "
    "once its aliases and interpolations are expanded"
)
_MAX_SIZE_BYTES = 1_000_000

# YAML's, which are not those of str.splitlines
_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_CONTROL_CHARACTER = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
_KINDS = {"int": "an integer", "float": "a number", "bool": "true or false", "null": "null"}
_MERGE = "tag:yaml.org,2002:merge"
_COLLECTIONS = {
    "tag:yaml.org,2002:map": yaml.MappingNode,
    "tag:yaml.org,2002:seq": yaml.SequenceNode,
}


class YamlSyntaxError(ConfigError):
    """Text is not YAML."""


def read_file(file: Path, problems: Problems | None = None) -> MappingNode:
    """Read a file whose top level is a mapping; an empty file is an empty mapping.

    Args:
        file: File to read.
        problems: Collects those errors after which the rest can still be read; they are raised
            where it is None.

    Raises:
        ConfigError: If it cannot be read, is not UTF-8 or not YAML, repeats a key, or holds
            something else.
    """
    name = shown_path(file)
    text = _decode(_read_content(file, name), name)
    tree = read_text(text, name=name, file=file, problems=problems)
    if isinstance(tree, MappingNode):
        return tree
    if isinstance(tree, Leaf) and tree.value is None:
        return MappingNode({}, tree.origin)
    kind = "a list" if isinstance(tree, Items) else f"the single value {tree.value!r}"
    raise error_at(f"{name}: expected a mapping of keys to values, got {kind}", tree.origin)


def _read_content(file: Path, name: str) -> bytes:
    """Read the bytes of a config, which is no long file."""
    try:
        with file.open("rb") as stream:
            content = stream.read(_MAX_SIZE_BYTES + 1)
    except FileNotFoundError:
        hint = suggest_packaged(Path(name)) or near_files(file)
        if file.name == "-":  # as other programs call it
            hint = "; -c /dev/stdin reads a config from standard input"
        raise ConfigError(f"{name}: no such file{hint}") from None
    except IsADirectoryError:
        raise ConfigError(
            f"{name}: expected a YAML file, got a folder; `lightkit init --data {name}` writes a"
            " config for the images in it"
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{name}: cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from None
    if len(content) > _MAX_SIZE_BYTES:
        message = (
            f"{name}: expected a config of at most {_MAX_SIZE_BYTES // 1000} kB, got a longer file"
        )
        raise ConfigError(f"{message}; long lists belong into the data, which the config can name")
    return content


def _decode(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8-sig", errors="replace")
        place = f"line {before.count(chr(10)) + 1}, column {len(before) - before.rfind(chr(10))}"
        message = (
            f"{name}: expected UTF-8 text, got the byte 0x{content[error.start]:02x} at {place}"
        )
        raise ConfigError(f"{message}; save the file as UTF-8") from None


def read_text(
    text: str, *, name: str, file: Path | None = None, problems: Problems | None = None
) -> Node:
    """Read YAML text.

    Args:
        text: The text.
        name: What errors and origins call it.
        file: File that holds it.
        problems: Collects those errors after which the rest can still be read; they are raised
            where it is None.

    Raises:
        YamlSyntaxError: If it is not YAML.
        ConfigError: If it repeats a key, or has too many values or levels once its aliases are
            expanded.
    """
    found = Problems() if problems is None else problems
    tree = _TreeBuilder(text, name, file, found).build()
    if problems is None:
        found.raise_any()
    return tree


class _TreeBuilder:
    """Turns one text's YAML nodes into a tree."""

    def __init__(self, text: str, name: str, file: Path | None, problems: Problems) -> None:
        self._text = text
        self._name = name
        self._file = file
        self._problems = problems
        self._lines = _LINE_BREAK.split(text)
        self._num_nodes = 0
        self._open: set[int] = set()  # nodes being built, to see an alias inside its own anchor
        # start marks of the open collections; None for one without a bracket
        self._brackets: list[Any] = []
        self._constructor = YamlLoader("")

    def build(self) -> Node:
        try:
            self._check_size()
            root = yaml.compose(self._text, Loader=YamlLoader)
        except yaml.YAMLError as error:
            raise self._explain_syntax_error(error) from None
        return (
            Leaf(None, self._origin_at(0, 0))
            if root is None
            else self._build(root, depth=0, key=None)
        )

    def _check_size(self) -> None:
        """Stop before PyYAML recurses: its events come one by one, however deep they nest."""
        num_nodes = 0
        for event in yaml.parse(self._text, Loader=YamlLoader):
            num_nodes += isinstance(event, yaml.NodeEvent)
            if isinstance(event, yaml.CollectionStartEvent):
                self._brackets.append(event.start_mark if event.flow_style else None)
            elif isinstance(event, yaml.CollectionEndEvent):
                self._brackets.pop()
            if num_nodes > 2 * MAX_NODES or len(self._brackets) > MAX_DEPTH:  # keys are nodes, too
                assert event.start_mark is not None
                place = self._origin_at_mark(event.start_mark)
                raise error_at(f"{self._name}: {TOO_LARGE}", place)

    def _explain_syntax_error(self, error: yaml.YAMLError) -> YamlSyntaxError:
        mark = getattr(error, "problem_mark", None)
        text, places = self._find_forbidden() if mark is None else self._find_cause(error, mark)
        rendered = [f"{self._name}: {text}", *(place.render() for place in places)]
        return YamlSyntaxError("\n".join(rendered), places=places)

    def _find_forbidden(self) -> tuple[str, list[Origin]]:
        """Find a character that YAML forbids anywhere, for which PyYAML gives no line."""
        found = _CONTROL_CHARACTER.search(self._text)
        start = found.start() if found else 0
        before = _LINE_BREAK.split(self._text[:start])
        text = f"the character {self._text[start : start + 1]!r} is not allowed in YAML"
        return text, [self._origin_at(len(before) - 1, len(before[-1]))]

    def _find_cause(self, error: yaml.YAMLError, mark: Any) -> tuple[str, list[Origin]]:
        """Explain an error, with its place and that of a bracket which is not closed."""
        bracket = next((each for each in reversed(self._brackets) if each is not None), None)
        is_at_end = not "".join(self._lines[mark.line :])[mark.column :].strip()
        unclosed = None
        if bracket is not None and is_at_end:
            unclosed = self._lines[bracket.line][bracket.column]
        explained = _explain(error, self._lines, unclosed)
        marks = [mark]
        if is_at_end:  # what is open at the end opened above
            marks = [bracket or getattr(error, "context_mark", None) or mark]
        elif bracket is not None and "is not closed here" in explained:
            marks = [bracket, mark]
        return f"not valid YAML: {explained}", [*map(self._origin_at_mark, marks)]

    def _origin_at_mark(self, mark: Any) -> Origin:
        return self._origin_at(mark.line, mark.column)

    def _origin_at(
        self, line: int, column: int, end_column: int | None = None, key: Origin | None = None
    ) -> Origin:
        source = self._lines[line] if line < len(self._lines) else ""
        end = None if end_column is None else end_column + 1
        return Origin("file", self._name, self._file, line + 1, column + 1, end, source, key)

    def _origin_of(self, node: yaml.Node, key: Origin | None = None) -> Origin:
        start = node.start_mark
        end = node.end_mark
        last: int | None = end.column
        if end.line != start.line:
            last = len(self._lines[start.line]) if isinstance(node, yaml.ScalarNode) else None
        return self._origin_at(start.line, start.column, last, key)

    def _build(self, node: yaml.Node, *, depth: int, key: Origin | None) -> Node:
        origin = self._origin_of(node, key)
        self._num_nodes += 1
        if self._num_nodes > MAX_NODES or depth > MAX_DEPTH:
            raise error_at(f"{self._name}: {TOO_LARGE}", origin)
        if isinstance(node, yaml.ScalarNode):
            return Leaf(self._read_scalar(node, origin), origin)
        if _COLLECTIONS.get(node.tag) is not type(node):
            return Leaf(self._refuse_tag(node.tag, node.tag, origin), origin)
        if id(node) in self._open:
            raise error_at(f"{self._name}: an alias stands inside its own anchor", origin)
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return MappingNode(self._read_entries(node, depth), origin)
            return Items(
                tuple(self._build(item, depth=depth + 1, key=None) for item in node.value), origin
            )
        finally:
            self._open.discard(id(node))

    def _refuse_tag(self, tag: str, text: str, origin: Origin) -> UnreadableText:
        shown = tag.replace("tag:yaml.org,2002:", "!!")
        message = (
            f"{self._name}: the tag {shown} is not allowed here; configs hold plain YAML values"
        )
        self._problems.report(f"{message}, and classes are named by class_path", origin)
        return UnreadableText(text)

    def _read_scalar(self, node: yaml.ScalarNode, origin: Origin) -> Any:
        if node.tag not in SCALAR_TAGS:
            return self._refuse_tag(node.tag, node.value, origin)
        try:
            value = self._constructor.construct_object(node)
            # Python writes no integer of more than 4300 digits, and reads one if it is hexadecimal
            str(value)
        except (ValueError, KeyError, yaml.YAMLError):
            kind = _KINDS.get(node.tag.rpartition(":")[2], "a plain value")
            text = (
                f"{self._name}: cannot read {shortened(node.value)} as {kind}; put quotes around it"
                " if it is text"
            )
            self._problems.report(text, origin)
            return UnreadableText(node.value)
        return value

    def _read_entries(self, node: yaml.MappingNode, depth: int) -> dict[Any, Node]:
        own: dict[Any, Node] = {}
        merged: dict[Any, Node] = {}
        places: dict[Hashable, Origin] = {}
        for key_node, value_node in node.value:
            place = self._origin_of(key_node)
            key: Any = "<<"
            if key_node.tag != _MERGE:
                if not isinstance(key_node, yaml.ScalarNode):
                    text = f"{self._name}: a key must be a plain value, not a mapping or a list"
                    self._problems.report(text, place)
                    continue
                key = self._read_scalar(key_node, place)
                if key is None:
                    text = f"{self._name}: a key is null; put quotes around it if it is text"
                    self._problems.report(text, place)
                if key is None or isinstance(key, UnreadableText):
                    continue
            if (type(key), key) in places:
                text = f"{self._name}: the key {key!r} stands twice in one mapping"
                self._problems.report(text, places[type(key), key], place)
                continue
            places[type(key), key] = place
            if key_node.tag == _MERGE:
                merged = self._read_merged(value_node, depth)
            else:
                own[key] = self._build(value_node, depth=depth + 1, key=place)
        return {**merged, **own}

    def _read_merged(self, node: yaml.Node, depth: int) -> dict[Any, Node]:
        """Read what ``<<`` names: one mapping, or several of which the earlier win."""
        entries: dict[Any, Node] = {}
        for source in reversed(node.value if isinstance(node, yaml.SequenceNode) else [node]):
            table = self._build(source, depth=depth + 1, key=None)
            if isinstance(table, MappingNode):
                entries = {**entries, **table.entries}
            else:
                text = f"{self._name}: << takes mappings to merge, such as *anchor"
                self._problems.report(text, table.origin)
        return entries
