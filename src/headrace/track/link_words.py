"""Why a substream is not done yet, in a sentence for a person."""

from __future__ import annotations

from headrace.track.links import LinkAgent, Phase, Substream


def why(agent: LinkAgent, name: str) -> str:
    if name in agent.done:
        late = f"; but {agent.late.why[name]}" if name in agent.late.why else ""
        return f"{name}: done{late}"
    it = agent.open.get(name)
    if it is not None:
        return f"{name}: {_why(agent, it)}"
    if name in agent.strangers.why:
        return f"{name}: {agent.strangers.why[name]}: it was made of records of no substream or of another one"
    forgot = agent.done_count - len(agent.done)
    known = f", or it is one of the {forgot} that were done before the last {len(agent.done)}" if forgot else ""
    return f"{name}: nothing of it was seen{known}"


def _why(agent: LinkAgent, it: Substream) -> str:
    first = agent.links[0].topic
    if it.phase is Phase.OPEN:
        return f"its end is not promised: no record with ends= was seen of it on topic {first}"
    if it.link == 0 and it.phase is not Phase.WAITS:
        seen = " and ".join(agent.links[link].topic for link in sorted(it.last))
        return f"seen on topic {seen} only so far; the ledger has not read all of {first}, where it should begin"
    story = ["promised"]
    if it.link > 0:
        queries = "query 1" if it.link == 1 else f"queries 1 to {it.link}"
        story.append(f"{queries} {'has' if it.link == 1 else 'have'} done it")
    return "; ".join([*story, _waits(agent, it)])


def _waits(agent: LinkAgent, it: Substream) -> str:
    name, committed = agent.links[it.link], agent.committed[it.link]
    query = f"query {it.link + 1} (checkpoint {name.checkpoint})"
    if it.phase is Phase.ASKS:
        return f"the end of topic {name.topic} is about to be asked for"
    if it.phase is Phase.READS:
        group = next(group for group in agent.groups[it.link] if group.number == it.group)
        for partition, end in group.ends.items():
            at = agent.read[it.link].get(partition, 0)
            if at < end:
                place = f"topic {name.topic}, partition {partition}"
                return f"the ledger has yet to read {place} up to offset {end}, and is at {at}"
    if committed is None:
        return f"it waits for {query}, which has not started yet: no batch is committed there"
    partition, last = next(agent.ahead(it))
    place, position = f"topic {name.topic}, partition {partition}", committed.positions.get(partition, 0)
    return f"it waits for {query} on {place}: the last record has offset {last}, and those before {position} are done"
