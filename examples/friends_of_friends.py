"""Friends of friends: searches go round a loop, any number at once, and each is answered as soon as it is complete.

Then the same with friends that must be loaded: they are kept for as long as a search is on its way to ask for them.

python examples/friends_of_friends.py              on Spark
headrace simulate examples/friends_of_friends.py   the same flow under crashes, in a simulated world
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import headrace as hr

PEOPLE = 500
STEPS = 4
SEARCHES = 20
SEARCH = pa.schema([("search", pa.int64()), ("person", pa.int64()), ("steps", pa.int64())])
ANSWER = pa.schema([("search", pa.int64()), ("people", pa.int64()), ("farthest", pa.int64())])


def friends(person: int) -> list[int]:
    """Whom somebody knows."""
    return [(person * 7 + 3) % PEOPLE, (person * person + 1) % PEOPLE, (person + 41) % PEOPLE]


def begun(search: int) -> dict[str, int]:
    return {"search": search, "person": search * 37 % PEOPLE, "steps": STEPS}


def asked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Number n of the source is search n: who is within four steps of a person?"""
    return pa.RecordBatch.from_pylist([begun(n) for n in batch.column("n").to_pylist()], SEARCH)


def is_whole(batch: pa.RecordBatch) -> list[bool]:
    """A search comes as one record: each closes what it begins."""
    return [True] * batch.num_rows


def visit(at: dict[str, int]) -> Any:
    """A search has come to a person, and goes on to all friends."""
    if not at["steps"]:
        return at
    return [at, hr.side("again", *({**at, "person": each, "steps": at["steps"] - 1} for each in friends(at["person"])))]


def gathered(people: dict[str, int] | None, at: dict[str, int]) -> tuple[dict[str, int], None]:
    """State of a search: who was found, and with how many steps left at most."""
    people, person = people or {}, str(at["person"])
    people[person] = max(at["steps"], people.get(person, 0))
    return people, None


def answered(people: dict[str, int], search: int) -> tuple[None, dict[str, int]]:
    """Nothing of the search is on the way any more: the answer, and nothing is left of it."""
    return None, {"search": search, "people": len(people), "farthest": sum(not left for left in people.values())}


def draw(out: str, searches: int, rate: float = 20.0) -> hr.Flow:
    flow = hr.Flow("friends")
    come = flow.stage("asked", asked, flow.source("numbers", hr.rate(rate, searches)))
    again = flow.loop("again", come, parallelism=2, route=hr.key("person"))
    visited = flow.stage("visit", visit, again, each="record", sides={"again": SEARCH})
    again.back(visited.side("again"), route=hr.key("person"))
    # No mark could be sent round a loop after the last record: how often they go round is not known.
    of_search = visited.tracked(by="search", ends=hr.marker(is_whole))
    answers = flow.keyed("answer", gathered, of_search, by="search", on_ended=answered, schema=ANSWER, parallelism=2)
    flow.sink("answers", answers, hr.parquet(out))
    return flow


class Visit(hr.PrunedStage):
    """As `visit`, with friends that are loaded. None is kept that no record on the way will ask for."""

    def load(self, people: Sequence[int]) -> list[list[int]]:
        """From a store, which is slow: so it is asked for many at once, and not more often than needed."""
        return [friends(person) for person in people]

    def on_batch(self, batch: pa.RecordBatch) -> dict[str, pa.RecordBatch]:
        going_on = [at for at in batch.to_pylist() if at["steps"]]
        known = self.kept.use(at["person"] for at in going_on)
        again = [
            {**at, "person": friend, "steps": at["steps"] - 1}
            for at, found in zip(going_on, known, strict=True)
            for friend in found
        ]
        return {"": batch, "again": pa.RecordBatch.from_pylist(again, SEARCH)}


def draw_kept(out: str, searches: int, rate: float = 20.0) -> hr.Flow:
    flow = hr.Flow("kept-friends")
    come = flow.stage("asked", asked, flow.source("numbers", hr.rate(rate, searches)))
    again = flow.loop("again", come, parallelism=2, route=hr.key("person"))
    of_person = again.tracked(by="person", ends=hr.whenever())
    visited = flow.stage("visit", Visit, of_person, sides={"again": SEARCH}, parallelism=2, route=hr.key("person"))
    again.back(visited.side("again"), route=hr.key("person"))
    flow.sink("visits", visited, hr.parquet(out))
    return flow


def one_by_one(search: int) -> dict[str, int]:
    """The same answer by a search that goes nowhere else meanwhile."""
    found = edge = {begun(search)["person"]}
    for _ in range(STEPS):
        edge = {friend for person in edge for friend in friends(person)} - found
        found = found | edge
    return {"search": search, "people": len(found), "farthest": len(edge)}


flow = draw("friends", 12)

if __name__ == "__main__":
    from headrace.spark.session import local_session

    spark = local_session("friends", cores=2)
    folder = Path(tempfile.mkdtemp())
    print(draw(f"{folder}/answers", SEARCHES).explain())
    job = draw(f"{folder}/answers", SEARCHES).start(spark, at=folder / "flows", commit_s=0.2)
    told: dict[int, dict[str, int]] = {}
    is_over = False
    while not is_over:
        is_over = job.wait(timeout_s=0.2)
        for answer in pq.read_table(f"{folder}/answers", schema=ANSWER).to_pylist():
            if answer["search"] not in told:
                told[answer["search"]] = answer
                people, farthest = answer["people"], answer["farthest"]
                print(f"search {answer['search']} is complete: {people} people, {farthest} of them {STEPS} steps away")
    wanted = {search: one_by_one(search) for search in range(SEARCHES)}
    print(f"{len(told)} searches, each as one by one: {'yes' if told == wanted else 'no'}")

    job = draw_kept(f"{folder}/visits", SEARCHES).start(spark, at=folder / "flows", commit_s=0.2)
    job.wait()
    visits = pq.read_table(f"{folder}/visits", schema=SEARCH).to_pylist()
    people = {search: len({at["person"] for at in visits if at["search"] == search}) for search in wanted}
    is_same = people == {search: answer["people"] for search, answer in wanted.items()}
    tasks = job.status()["tasks"]
    kept = [tasks[f"visit.{number}"]["stages"]["visit"] for number in range(2)]
    keys, most = (sum(each[name] for each in kept) for name in ("keys", "most"))
    print(f"with friends that are loaded: {'the same' if is_same else 'others'}; kept in the end: {keys}")
    print(f"the friends of {PEOPLE} people, and never those of more than {most} were kept at once")
    spark.stop()
