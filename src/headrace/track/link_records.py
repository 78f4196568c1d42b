"""What a `LinkAgent` was told, and its state, as values that JSON can hold."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import StateMismatch
from headrace.track.links import (
    Committed,
    Ends,
    Group,
    LinkAgent,
    LinkName,
    Looked,
    Notice,
    Offsets,
    Phase,
    Read,
    Seen,
    Stimulus,
    Substream,
    Told,
)

FORMAT = 1


def record_of(stimulus: Stimulus) -> Any:
    """Keys of JSON are texts: `stimulus_of` makes them numbers again."""
    if isinstance(stimulus, Read):
        return {"read": stimulus.positions, "rows": stimulus.rows}
    if isinstance(stimulus, Looked):
        return {"looked": {link: _committed_record(it) for link, it in stimulus.committed.items()}}
    if isinstance(stimulus, Ends):
        return {"ends": stimulus.ends}
    return {"told": stimulus.count}


def stimulus_of(record: Any) -> Stimulus:
    if "read" in record:
        positions = {int(link): _offsets(it) for link, it in record["read"].items()}
        return Read(positions, [Seen(*row) for row in record["rows"]])
    if "looked" in record:
        return Looked({int(link): _committed(it) for link, it in record["looked"].items()})
    if "ends" in record:
        return Ends({int(link): _offsets(it) for link, it in record["ends"].items()})
    return Told(record["told"])


def snapshot(agent: LinkAgent) -> dict[str, Any]:
    """All that it knows."""
    return {
        "format": FORMAT,
        "topics": [link.topic for link in agent.links],
        "by": [link.by for link in agent.links],
        "read": agent.read,
        "committed": [None if it is None else _committed_record(it) for it in agent.committed],
        "open": [[name, int(it.phase), it.link, it.is_promised, it.group, it.last] for name, it in agent.open.items()],
        "done": list(agent.done),
        "done_count": agent.done_count,
        "untold": len(agent.untold),
        "is_asked": agent.is_asked,
        "notices": [[notice.count, notice.why] for notice in (agent.strangers, agent.late, agent.after_end)],
        "wanted": agent.wanted,
        "asked": agent.asked,
        "groups": [[[group.number, group.ends] for group in groups] for groups in agent.groups],
        "group_count": agent.group_count,
    }


def restore(record: Mapping[str, Any], links: Sequence[LinkName], at: str, remembered: int) -> LinkAgent:
    """An agent with the state of a snapshot. Raises StateMismatch where it is of other links; `at` is where it was."""
    if record["format"] > FORMAT:
        raise StateMismatch(
            f"the tracker at {at} has format {record['format']}, and this Headrace knows formats up to {FORMAT}; "
            f"upgrade Headrace"
        )
    topics = [link.topic for link in links]
    if record["topics"] != topics:
        raise StateMismatch(
            f"the tracker at {at} is of the topics {', '.join(record['topics'])}, and the links are of "
            f"{', '.join(topics)}; give the same links, or another folder (at=) to begin anew"
        )
    for link, by in zip(links, record.get("by", [link.by for link in links]), strict=True):
        if by != link.by:
            raise StateMismatch(
                f"the tracker at {at} names substreams of topic {link.topic} by {by}, and the link by {link.by}; "
                f"give the same by=, or another folder (at=) to begin anew"
            )
    agent = LinkAgent(links, [_offsets(it) for it in record["read"]], remembered)
    agent.committed = [None if it is None else _committed(it) for it in record["committed"]]
    agent.done_count, agent.is_asked = record["done_count"], record["is_asked"]
    first = agent.done_count - len(record["done"])
    agent.done = OrderedDict(zip(record["done"], range(first, agent.done_count), strict=True))
    agent.untold = deque(record["done"][len(record["done"]) - record["untold"] :])
    agent.strangers, agent.late, agent.after_end = (Notice(count, why) for count, why in record["notices"])
    agent.wanted, agent.asked = record["wanted"], record["asked"]
    agent.group_count = record["group_count"]
    for name, phase, link, is_promised, group, last in record["open"]:
        by_link = {int(each): dict(_offsets(it)) for each, it in last.items()}
        agent.open[name] = Substream(Phase(phase), link, is_promised, group, by_link)
    _restore_places(agent, record["groups"])
    return agent


def _restore_places(agent: LinkAgent, groups: Any) -> None:
    """Where each one waits."""
    members: dict[int, list[str]] = {}
    for name, it in list(agent.open.items()):
        if it.phase is Phase.WAITS:
            agent.wait(name, it, it.link)
        elif it.phase is Phase.READS:
            members.setdefault(it.group, []).append(name)
    for link, kept in enumerate(groups):
        agent.groups[link].extend(Group(number, _offsets(ends), members.get(number, [])) for number, ends in kept)


def _committed_record(it: Committed) -> Any:
    return [it.query, it.positions]


def _committed(record: Any) -> Committed:
    query, positions = record
    return Committed(query, _offsets(positions))


def _offsets(record: Mapping[str, int]) -> Offsets:
    return {int(partition): offset for partition, offset in record.items()}
