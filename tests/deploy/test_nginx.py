"""The example configuration of nginx, run on loopback: TLS, passwords and limits in front of the server."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from tests.deploy.planted import Running, random_bundle, running

from randens.deploy import Predictor
from randens.deploy.server import Settings, loopback_hosts

EXAMPLE = Path(__file__).parents[2] / "examples" / "deploy" / "nginx.conf"
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
OPENSSL = shutil.which("openssl")
REQUIRED = os.environ.get("RANDENS_REQUIRE_NGINX") == "1"
X = np.random.default_rng(0).random((3, 1, 4, 4)).astype(np.float32)

pytestmark = pytest.mark.skipif(
    not REQUIRED and (NGINX is None or OPENSSL is None),
    reason="nginx or openssl is not installed (apt-get install nginx openssl)",
)

_WHOLE = """
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
worker_processes 1;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/site.conf;
}}
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


@contextlib.contextmanager
def proxied(folder: Path, server: Running) -> Iterator[str]:
    """The example with this machine's places in it; the address of the proxy."""
    assert NGINX is not None
    assert OPENSSL is not None
    port = free_port()
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    key = ["-newkey", "rsa:2048", "-nodes", "-keyout", str(folder / "key.pem")]
    said(OPENSSL, "req", "-x509", "-days", "2", *key, "-out", str(folder / "certificate.pem"), *subject)
    (folder / "passwords").write_text(f"alice:{said(OPENSSL, 'passwd', '-apr1', 'secret')}\n")
    text = EXAMPLE.read_text()
    for old, new in (
        ("127.0.0.1:8000;", f"127.0.0.1:{server.port};"),
        ("listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;"),
        ("/etc/randens/tls/", f"{folder}/"),
        ("/etc/randens/passwords;", f"{folder}/passwords;"),
    ):
        assert old in text
        text = text.replace(old, new)
    (folder / "site.conf").write_text(text)
    # nginx's worker may be another user than the one who runs the tests.
    folder.chmod(0o755)
    (folder / "passwords").chmod(0o644)
    user = "user root;\n" if os.geteuid() == 0 else ""
    (folder / "nginx.conf").write_text(user + _WHOLE.format(folder=folder))
    command = [NGINX, "-p", str(folder), "-c", str(folder / "nginx.conf")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        try:
            for _ in range(5000):
                assert child.poll() is None, child.stderr.read() if child.stderr else ""
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                    break
                time.sleep(0.02)
            yield f"https://localhost:{port}"
        finally:
            child.terminate()
            child.wait(300)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, list[int], Path]]:
    folder = tmp_path_factory.mktemp("nginx")
    bundle = random_bundle(folder / "b", (1.0, 0.0, 0.0))
    expected: list[int] = Predictor(bundle).logits(X)[0].argmax(axis=1).tolist()
    with (
        running(bundle, Settings(hosts=loopback_hosts())) as server,
        proxied(folder, server) as url,
        httpx.Client(
            base_url=url,
            verify=ssl.create_default_context(cafile=str(folder / "certificate.pem")),
            timeout=300,
        ) as client,
    ):
        yield client, expected, folder


ALICE = ("alice", "secret")


def test_predictions_come_through_tls(site: tuple[httpx.Client, list[int], Path]) -> None:
    client, expected, _ = site
    answer = client.post("/v1/predict", json={"inputs": X.tolist()}, auth=ALICE)
    assert [p["label"] for p in answer.json()["predictions"]] == expected
    assert answer.headers["strict-transport-security"].startswith("max-age=")
    assert answer.headers["cache-control"] == "no-store"
    assert client.get("/healthz", auth=ALICE).json() == {"status": "ok"}
    assert "text/html" in client.get("/", auth=ALICE).headers["content-type"]


@pytest.mark.parametrize("auth", [None, ("alice", "wrong"), ("bob", "secret")])
def test_without_the_password_nothing_does(
    site: tuple[httpx.Client, list[int], Path], auth: tuple[str, str] | None
) -> None:
    client = site[0]
    headers = {} if auth is None else {"authorization": httpx.BasicAuth(*auth)._auth_header}
    for path in ("/", "/healthz", "/v1/model"):
        assert client.get(path, headers=headers).status_code == 401
    assert client.post("/v1/predict", json={"inputs": X.tolist()}, headers=headers).status_code == 401


def test_counters_and_large_bodies_stay_outside(site: tuple[httpx.Client, list[int], Path]) -> None:
    client = site[0]
    assert client.get("/metrics", auth=ALICE).status_code == 404
    assert client.post("/v1/predict", content=bytes(9 << 20), auth=ALICE).status_code == 413


def test_refusals_of_the_server_come_through(site: tuple[httpx.Client, list[int], Path]) -> None:
    answer = site[0].post("/v1/predict", json={"inputs": [1]}, auth=ALICE)
    assert answer.status_code == 422
    assert "inputs" in answer.json()["detail"]


def test_plain_http_is_refused(site: tuple[httpx.Client, list[int], Path]) -> None:
    plain = str(site[0].base_url).replace("https:", "http:")
    assert httpx.get(plain, auth=ALICE).status_code == 400
