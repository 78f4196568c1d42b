"""The front end on real Spark: answers as the batch kernel gives them, whatever dies and however often one asks."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from headrace.measure.run import measure_table
from headrace.queues.log import LogQueues
from headrace.service.app import ARROW, make_app
from headrace.service.limits import Limits
from headrace.service.registry import Registry
from headrace.service.streams import StreamSpec, read_streams
from headrace.testing.flows import until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

TEXT = """
CREATE STREAM payments (txn STRING ID, ts TIMESTAMP TIME, card STRING, amount DOUBLE);
SELECT sum(amount) AS spent, count(*) AS n FROM payments GROUP BY card OVER sliding 5 minutes
"""
START = dt.datetime(2026, 3, 3, 12, tzinfo=dt.UTC)


def event(number: int) -> dict[str, Any]:
    moment = START + dt.timedelta(seconds=number)
    return {"txn": f"t{number}", "ts": moment.isoformat(), "card": f"c{number % 7}", "amount": (number * 37 % 1000) / 4}


def expected(count: int, spec: StreamSpec) -> list[dict[str, Any]]:
    rows = [{**event(n), "ts": START + dt.timedelta(seconds=n), "place": n} for n in range(count)]
    table = pa.Table.from_pylist(rows, spec.schema.append(pa.field("place", pa.int64())))
    metrics = spec.metrics()
    answers = measure_table(metrics.definition, table)
    return list(answers.select(["txn", *metrics.names]).to_pylist())


def _plain(answer: dict[str, Any]) -> dict[str, Any]:
    """Without what became of it this time."""
    return {name: value for name, value in answer.items() if not name.startswith("status")}


class Service:
    """The front end, and a client of it."""

    def __init__(self, spark: SparkSession, folder: Path, limits: Limits | None = None, tasks: int = 1):
        self.registry = Registry(spark, str(folder), LogQueues(folder / "queues"), tasks)
        self.registry.start(read_streams(TEXT))
        app = make_app(self.registry, limits, timeout_s=20.0)
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")
        until(lambda: all(self.registry.engine(spec.name).is_ready for spec in self.registry.specs()))

    async def post(self, body: Any, stream: str = "payments", **more: Any) -> httpx.Response:
        return await self.client.post(f"/streams/{stream}/events", json=body, **more)

    def kill_worker(self) -> None:
        workers = self.registry.engine("payments").job.status()["workers"].values()
        os.kill(next(worker["pid"] for worker in workers if worker["up"]), signal.SIGKILL)


@pytest.fixture
def service(spark: SparkSession, tmp_path: Path) -> Iterator[Service]:
    made = Service(spark, tmp_path)
    yield made
    made.registry.close()


def test_every_event_is_answered_and_a_request_sent_again_gets_the_same_answer(service: Service) -> None:
    async def run() -> None:
        wanted = expected(40, service.registry.engine("payments").spec)
        one = await service.post(event(0))
        assert one.status_code == 200, one.text
        many = await service.post([event(n) for n in range(1, 40)])
        answers = [*one.json()["answers"], *many.json()["answers"]]
        assert [{name: answer[name] for name in ("txn", "spent", "n")} for answer in answers] == wanted
        assert {answer["status"] for answer in answers} == {"ok"}
        again = (await service.post(event(7))).json()["answers"][0]
        assert _plain(again) == _plain(answers[7])
        assert again["status"] == "duplicate"
        last = (await service.post(event(40))).json()["answers"][0]
        assert last["n"] == expected(41, service.registry.engine("payments").spec)[-1]["n"]

    asyncio.run(run())


def test_arrow_is_answered_as_json_is(service: Service) -> None:
    async def run() -> None:
        schema = service.registry.engine("payments").spec.schema
        rows = [{**event(n), "ts": START + dt.timedelta(seconds=n)} for n in range(20)]
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_table(pa.Table.from_pylist(rows, schema))
        found = await service.client.post(
            "/streams/payments/events", content=sink.getvalue().to_pybytes(), headers={"content-type": ARROW}
        )
        answers = found.json()["answers"]
        wanted = expected(20, service.registry.engine("payments").spec)
        assert [{name: answer[name] for name in ("txn", "spent", "n")} for answer in answers] == wanted

    asyncio.run(run())


def test_a_killed_worker_loses_nothing_and_a_new_front_end_knows_the_answers(
    spark: SparkSession, tmp_path: Path
) -> None:
    service = Service(spark, tmp_path)
    answers: dict[int, dict[str, Any]] = {}

    async def send(number: int) -> None:
        found = await service.post(event(number))
        assert found.status_code == 200, found.text
        answers[number] = found.json()["answers"][0]

    async def run() -> None:
        for number in range(120):
            if number in (30, 80):
                service.kill_worker()
            await send(number)

    asyncio.run(run())
    wanted = expected(120, service.registry.engine("payments").spec)
    assert [{name: answers[n][name] for name in ("txn", "spent", "n")} for n in range(120)] == wanted
    service.registry.close()
    service = Service(spark, tmp_path)
    again = asyncio.run(service.post(event(100))).json()["answers"][0]
    assert _plain(again) == _plain(answers[100])
    assert again["status"] == "duplicate"
    service.registry.close()


def test_metrics_come_and_go_while_events_are_answered(service: Service) -> None:
    async def run() -> None:
        sent, has_top = 0, list[bool]()

        async def load() -> None:
            nonlocal sent
            while not done.is_set():
                answer = (await service.post(event(sent))).json()["answers"][0]
                has_top.append("top" in answer)
                if "top" in answer:
                    # As if it had always been there: the events of the hour before it count.
                    card = [event(n)["amount"] for n in range(sent + 1) if n % 7 == sent % 7]
                    assert answer["top"] == max(card)
                sent += 1

        done = asyncio.Event()
        loading = asyncio.create_task(load())
        text = "SELECT max(amount) AS top FROM payments GROUP BY card OVER sliding 1 hour"
        added = await service.client.post("/streams/payments/metrics", content=text)
        assert added.status_code == 200, added.text
        assert set(added.json()["from"]) == {"events.0"}
        listed = await service.client.get("/streams/payments/metrics")
        assert [metric["name"] for metric in listed.json()["metrics"]] == ["spent", "n", "top"]
        await asyncio.sleep(0.3)
        gone = await service.client.delete("/streams/payments/metrics/top")
        assert gone.status_code == 200, gone.text
        await asyncio.sleep(0.2)
        done.set()
        await loading
        changes = sum(one != other for one, other in itertools.pairwise(has_top))
        assert changes == 2, has_top
        assert not has_top[0]
        assert not has_top[-1]

    asyncio.run(run())


BAD: list[tuple[bytes, str, int, str]] = [
    (b"nonsense", "application/json", 400, "not JSON"),
    (b'{"txn": "a"', "application/json", 400, "not JSON"),
    (b"[" * 100_000, "application/json", 400, "not JSON"),
    (b'{"txn": "a", "ts": "2026-03-03T12:00:00Z", "amount": NaN}', "application/json", 400, "NaN is not in JSON"),
    (b"7", "application/json", 422, "must be an event"),
    (b"[]", "application/json", 422, "no event"),
    (b"[1]", "application/json", 422, "event 0 is not a JSON object"),
    (b'{"txn": "a"}', "application/json", 422, "event 0 has no ts"),
    (b'{"ts": "2026-03-03T12:00:00Z"}', "application/json", 422, "event 0 has no txn"),
    (b'{"txn": 1, "ts": "2026-03-03T12:00:00Z"}', "application/json", 422, "field txn: 1 is not a string"),
    (b'{"txn": "a", "ts": "yesterday"}', "application/json", 422, 'field ts: "yesterday" is not a timestamp'),
    (b'{"txn": "a", "ts": 5}', "application/json", 422, "field ts: 5 is not a timestamp"),
    (b'{"txn": "a", "ts": "2026-03-03T12:00:00Z", "amount": "1"}', "application/json", 422, "is not a double"),
    (b'{"txn": "a", "ts": "2026-03-03T12:00:00Z", "amuont": 1}', "application/json", 422, "did you mean amount"),
    (b'{"txn": "\\ud800", "ts": "2026-03-03T12:00:00Z"}', "application/json", 422, "is not a string"),
    (b"not arrow", ARROW, 400, "Arrow stream"),
    (b" " * 5_000_000, "application/json", 413, "too large"),
]


@pytest.fixture(scope="module")
def idle(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    made = Service(spark, tmp_path_factory.mktemp("idle"), Limits(tokens=("secret", "other")))
    made.client.headers["authorization"] = "Bearer secret"
    yield made
    made.registry.close()


@pytest.mark.parametrize(("body", "kind", "status", "said"), BAD)
def test_what_is_wrong_is_said_and_nothing_enters_the_log(
    idle: Service, body: bytes, kind: str, status: int, said: str
) -> None:
    before = idle.registry.engine("payments").job.reports()["events.0"]["records_in"]

    async def run() -> httpx.Response:
        return await idle.client.post("/streams/payments/events", content=body, headers={"content-type": kind})

    found = asyncio.run(run())
    assert found.status_code == status, found.text
    assert said in found.json()["error"]
    assert idle.registry.engine("payments").job.reports()["events.0"]["records_in"] == before == 0


def test_an_arrow_bomb_is_refused(idle: Service) -> None:
    schema = idle.registry.engine("payments").spec.schema
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        rows = [{"txn": "a" * 1_000_000, "ts": START, "card": None, "amount": None}] * 100
        writer.write_table(pa.Table.from_pylist(rows, schema))
    body = sink.getvalue().to_pybytes()
    assert len(body) < 1_000_000

    async def run() -> httpx.Response:
        return await idle.client.post("/streams/payments/events", content=body, headers={"content-type": ARROW})

    found = asyncio.run(run())
    assert (found.status_code, "compressed" in found.json()["error"]) == (400, True)


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "said"),
    [
        ("POST", "/streams/paiments/events", {}, 404, "did you mean payments"),
        ("GET", "/nowhere", {}, 404, "Not Found"),
        ("PUT", "/streams", {}, 405, "Method Not Allowed"),
        ("GET", "/streams", {"authorization": ""}, 401, "Authorization: Bearer"),
        ("GET", "/streams", {"authorization": "Bearer wrong"}, 403, "not one of those"),
        ("DELETE", "/streams/payments/metrics/nn", {}, 422, "there is no metric nn"),
        ("POST", "/streams/payments/metrics", {}, 422, "line"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    idle: Service, method: str, path: str, headers: dict[str, str], status: int, said: str
) -> None:
    found = asyncio.run(idle.client.request(method, path, headers=headers, content=b"{}"))
    assert found.status_code == status, found.text
    assert said in found.json()["error"]


def test_figures_and_health(idle: Service) -> None:
    async def run() -> None:
        assert (await idle.client.get("/health", headers={"authorization": ""})).json()["ready"]
        text = (await idle.client.get("/metrics")).text
        assert 'headrace_events_total{stream="payments"} 0' in text
        shard = 'stream="payments",task="events.0",stage="score"'
        assert f'headrace_status_total{{{shard},status="ok"}} 0' in text
        assert f"headrace_answer_seconds_count{{{shard}}} 0" in text
        assert f"headrace_remembered_events{{{shard}}} 0" in text
        about = (await idle.client.get("/streams/payments")).json()
        assert [metric["name"] for metric in about["metrics"]] == ["spent", "n"]

    asyncio.run(run())


def test_streams_are_created_and_deleted(idle: Service) -> None:
    service = idle
    new = {
        "name": "logins",
        "columns": {"id": "string", "at": "timestamp", "user": "string"},
        "time": "at",
        "id": "id",
        "metrics": "SELECT count(*) AS n FROM logins GROUP BY user OVER sliding 1 hour",
    }

    async def run() -> None:
        made = await service.client.post("/streams", json=new)
        assert made.status_code == 201, made.text
        login = {"id": "1", "at": "2026-03-03T12:00:00Z", "user": "ann"}
        assert (await service.post(login, "logins")).json()["answers"][0]["n"] == 1
        twice = await service.client.post("/streams", json=new)
        assert (twice.status_code, "already" in twice.json()["error"]) == (409, True)
        for change, said in (({"columns": {"id": "strin"}}, "is not among"), ({"metrics": "SELECT"}, "line 1")):
            bad = await service.client.post("/streams", json={**new, "name": "other", **change})
            assert (bad.status_code, said in bad.json()["error"]) == (422, True), bad.text
        text = "SELECT count(*) AS n FROM third GROUP BY user OVER sliding 1 hour"
        third = await service.client.post("/streams", json={**new, "name": "third", "metrics": text})
        assert (third.status_code, "task slots" in third.json()["error"]) == (409, True), third.text
        assert (await service.client.delete("/streams/logins")).status_code == 200
        assert (await service.post(login, "logins")).status_code == 404

    asyncio.run(run())


def test_a_stream_that_was_deleted_begins_anew(spark: SparkSession, tmp_path: Path) -> None:
    """Nothing of it is left that another one of its name would read: no event, no answer, no state."""
    service = Service(spark, tmp_path, tasks=2)
    spec = service.registry.engine("payments").spec

    async def run() -> None:
        for _ in range(2):
            answers = (await service.post([event(n) for n in range(30)])).json()["answers"]
            found = [{name: answer[name] for name in ("txn", "spent", "n")} for answer in answers]
            assert found == expected(30, spec)
            assert {answer["status"] for answer in answers} == {"ok"}
            assert (await service.client.delete("/streams/payments")).status_code == 200
            assert (await service.client.post("/streams", json=spec.as_json())).status_code == 201

    asyncio.run(run())
    service.registry.close()


def test_a_metric_over_a_column_that_is_not_there(idle: Service) -> None:
    text = "SELECT sum(amuont) AS x FROM payments GROUP BY card OVER sliding 1 hour"
    found = asyncio.run(idle.client.post("/streams/payments/metrics", content=text))
    assert (found.status_code, "did you mean amount" in found.json()["error"]) == (422, True), found.text
