"""`headrace metrics` where nothing answers, or says no; docs/serving.md shows it with a real service."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from headrace.cli.app import app
from headrace.errors import HeadraceError


class _Refuses(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, body = (401, b'{"error": "this needs a token"}') if "tokens" in self.path else (502, b"<html>")
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Refuses) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def _list(stream: str, at: str) -> str:
    with pytest.raises(HeadraceError) as raised:
        CliRunner().invoke(app, ["metrics", "list", stream, "--at", at], catch_exceptions=False)
    return str(raised.value)


def test_what_the_service_says_is_said(address: str) -> None:
    assert _list("tokens", address) == "this needs a token; put it into HEADRACE_TOKEN"
    assert _list("payments", address) == "the service refused: 502 Bad Gateway"


def test_no_service() -> None:
    assert "no answer from http://127.0.0.1:9 (" in _list("payments", "http://127.0.0.1:9")
    assert _list("payments", "file:///etc") == (
        "--at file:///etc: give the address of the service, such as http://127.0.0.1:8080"
    )


def test_json_is_what_is_printed_for_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [{"name": "n", "type": "bigint", "is": "count(*) over sliding 1 hour", "bytes": 1234}]
    monkeypatch.setattr("headrace.cli.metrics._ask", lambda *_: {"metrics": found})
    assert json.loads(CliRunner().invoke(app, ["metrics", "list", "payments", "--json"]).stdout) == found
    assert "1.2 KB" in CliRunner().invoke(app, ["metrics", "list", "payments"]).stdout
