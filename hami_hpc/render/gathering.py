# SPDX-License-Identifier: Apache-2.0
"""Puts together what render says of the nodes of one run: what it says of several alike, it says once. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence

from hami_hpc.core.hostlist import LONGEST, HostlistError, expand, fold, named
from hami_hpc.render.merging import HOSTS, NODES, Merge
from hami_hpc.render.offer import hostlist
from hami_hpc.slurm.lines import ConfLine, pair_text

MANY = 8  # lines that need the same and have a step each; more have one step
OF_EACH = ("nodeaddr", "nodehostname", "bcastaddr", "port")  # lists that go with the names of NodeName=


def sentences(of_nodes: Iterable[tuple[str, str]]) -> list[str]:
    """Returns each sentence of (node, sentence) once, with the nodes that it is said of in place of NODES."""
    by_sentence: dict[str, list[str]] = {}
    for node, sentence in of_nodes:
        by_sentence.setdefault(sentence, []).append(node)
    return [
        sentence.replace(NODES, named(nodes)).replace(HOSTS, shlex.quote(fold(nodes)))
        for sentence, nodes in by_sentence.items()
    ]


def merges(of_nodes: Iterable[tuple[str, Merge]]) -> list[Merge]:
    """Returns the merges of (node, merge), each once, with the nodes in place of NODES. Those that would write
    different values into one line become one, which divides the line. These come last, the last line of a file first,
    so that the numbers of lines hold until each is done."""
    by_merge: dict[Merge, list[str]] = {}
    for node, merge in of_nodes:
        by_merge.setdefault(merge, []).append(node)
    by_line: dict[ConfLine, dict[Merge, list[str]]] = {}
    for merge, nodes in by_merge.items():
        if merge.line is not None:
            by_line.setdefault(merge.line, {})[merge] = nodes
    found: list[Merge] = []
    divided: list[tuple[int, Merge]] = []
    for merge, nodes in _of_many_lines(by_merge, by_line).items():
        kinds = by_line.get(merge.line, {}) if merge.line is not None else {}
        if len({kind.pairs for kind in kinds}) < 2:
            hosts = fold(nodes)
            lines = tuple(line.replace(NODES, hosts) for line in merge.lines)
            found += [Merge(merge.what.replace(NODES, named(nodes)), lines)] if lines else []
        elif merge is next(iter(kinds)) and any(kind.lines for kind in kinds):
            assert merge.line is not None
            one = _divided(merge.line, [(nodes, kind.pairs) for kind, nodes in kinds.items()])
            divided.append((merge.line.number, one))
    return found + [one for _, one in sorted(divided, key=lambda numbered: -numbered[0])]


def _of_many_lines(
    by_merge: Mapping[Merge, list[str]], by_line: Mapping[ConfLine, Mapping[Merge, list[str]]]
) -> dict[Merge, list[str]]:
    """Returns the merges, with one for all lines of a file that need the same where these are many."""
    alike: dict[tuple[str, ...], list[Merge]] = {}
    for merge in by_merge:
        if merge.line is not None and merge.lines and len({kind.pairs for kind in by_line[merge.line]}) == 1:
            alike.setdefault((merge.line.path, merge.of_many, str(merge.pairs)), []).append(merge)
    many = {merge: group for group in alike.values() if len(group) > MANY for merge in group}
    found: dict[Merge, list[str]] = {}
    for merge, nodes in by_merge.items():
        group = many.get(merge)
        if group is None:
            found[merge] = nodes
        elif merge is group[0]:
            found[_of_lines(group)] = [node for each in group for node in by_merge[each]]
    return found


def _of_lines(group: Sequence[Merge]) -> Merge:
    """Returns one merge for lines of one file that need the same."""
    lines = [each.line for each in group if each.line is not None]
    numbers = hostlist(line.number for line in lines).strip("[]")
    if len(numbers) > LONGEST:
        numbers = f"{min(line.number for line in lines)} to {max(line.number for line in lines)}, {len(lines)} of them"
    words = " ".join(pair_text(key, value) for key, value in group[0].pairs)
    names = named(name for name in (line.get("NodeName") for line in lines) if name)
    texts = (words or f"line {lines[0].number} is: {lines[0].text}",)
    where = f"{lines[0].path}, lines {numbers}{f' ({names})' if names else ''}"
    return Merge(f"{where}: {group[0].of_many}", texts)


def _divided(line: ConfLine, kinds: Sequence[tuple[Sequence[str], tuple[tuple[str, str], ...]]]) -> Merge:
    """Returns the merge that writes a line for each kind of the nodes that one line has now."""
    lines = [with_pairs(line, (("NodeName", fold(nodes)), *pairs)) for nodes, pairs in kinds]
    try:
        others = set(expand(line.get("NodeName"))) - {node for nodes, _ in kinds for node in nodes}
    except HostlistError:  # several brackets in a name: its nodes are not counted here
        others = set()
    lines += [with_pairs(line, (("NodeName", fold(others)),))] if others else []
    what = f"{line.where}: its nodes are not alike. Instead of it write a line for each kind"
    lists = [key for key, value in line.pairs if key.lower() in OF_EACH and ("[" in value or "," in value)]
    if lists:
        what += f", and divide {' and '.join(lists)} likewise"
    return Merge(f"{what}:", tuple(lines))


def with_pairs(line: ConfLine, wanted: Iterable[tuple[str, str]]) -> str:
    """Returns the line's text with these pairs: in the place of those that it has, new ones after its first key."""
    pairs = [*line.pairs]
    for key, value in wanted:
        at = next((index for index, (name, _) in enumerate(pairs) if name.lower() == key.lower()), None)
        if at is None and key == "NodeName":
            pairs.insert(0, (key, value))
        elif at is None:
            pairs.append((key, value))
        else:
            pairs[at] = (pairs[at][0], value)
    return " ".join(pair_text(key, value) for key, value in pairs)
