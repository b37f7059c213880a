"""A Hugging Face hub on localhost: models and data sets with revisions, closed doors, and servers that say nothing.

Set `HF_ENDPOINT` to its `url`. It answers as the real hub does, by status and X-Error-Code.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

Files = dict[str, bytes]


@dataclass
class FakeRepo:
    kind: Literal["model", "dataset"]
    id: str
    commits: dict[str, Files] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    gated: bool = False
    """Everyone sees what is in it; files come with the right token only."""
    private: bool = False
    """Without the right token it does not exist."""
    status: int | None = None
    """Answers everything with this."""
    hangs: bool = False
    """Takes a request and says nothing."""

    def commit(self, files: dict[str, str | bytes], *revisions: str) -> str:
        """A new commit, which `main` and the revisions point to from now on."""
        contents = {name: text.encode() if isinstance(text, str) else text for name, text in files.items()}
        commit = hashlib.sha1(repr((self.id, len(self.commits), sorted(contents.items()))).encode()).hexdigest()
        self.commits[commit] = contents
        self.refs |= dict.fromkeys(["main", *revisions], commit)
        return commit


@dataclass
class FakeHub:
    url: str
    token: str
    repos: dict[tuple[str, str], FakeRepo] = field(default_factory=dict)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    """Method, path and Authorization header of everything that was asked."""
    stopping: threading.Event = field(default_factory=threading.Event)

    def model(self, hub_id: str, files: dict[str, str | bytes] | None = None, **traits: Any) -> FakeRepo:
        return self._add(FakeRepo("model", hub_id, **traits), files)

    def dataset(self, hub_id: str, files: dict[str, str | bytes] | None = None, **traits: Any) -> FakeRepo:
        return self._add(FakeRepo("dataset", hub_id, **traits), files)

    def downloaded(self) -> list[str]:
        """Names of the files whose content was fetched, sorted."""
        return sorted({path.split("/resolve/")[1].split("/", 1)[1] for method, path, _ in self.requests
                       if method == "GET" and "/resolve/" in path})  # fmt: skip

    def _add(self, repo: FakeRepo, files: dict[str, str | bytes] | None) -> FakeRepo:
        repo.commit(files or {})
        self.repos[repo.kind, repo.id] = repo
        return repo


def point_at(monkeypatch: pytest.MonkeyPatch, url: str, home: Path) -> None:
    """Makes the libraries of this process ask this hub, with empty caches and no token of the machine's owner.

    They read the environment when they are imported, which may have happened.
    """
    constants = "huggingface_hub.constants"
    monkeypatch.setattr(f"{constants}.ENDPOINT", url)
    monkeypatch.setattr(f"{constants}.HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(f"{constants}.HF_HOME", str(home))
    monkeypatch.setattr(f"{constants}.HF_HUB_CACHE", str(home / "hub"))
    monkeypatch.setattr(f"{constants}.HF_TOKEN_PATH", str(home / "token"))
    monkeypatch.setattr(f"{constants}.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("datasets.config.HF_ENDPOINT", url)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("datasets.config.HF_UPDATE_DOWNLOAD_COUNTS", False)
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "HF_DATASETS_CACHE"):
        monkeypatch.delenv(name, raising=False)


@contextmanager
def fake_hub(token: str = "hf_secretsecretsecretsecretsecret12") -> Iterator[FakeHub]:
    """Runs one until the block ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    hub = FakeHub(f"http://127.0.0.1:{server.server_port}", token)
    server.hub = hub  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        hub.stopping.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self._body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        hub: FakeHub = self.server.hub  # type: ignore[attr-defined]
        path = unquote(urlsplit(self.path).path)
        hub.requests.append((self.command, path, self.headers.get("Authorization")))
        knows_token = self.headers.get("Authorization") == f"Bearer {hub.token}"
        if self.headers.get("Authorization") and not knows_token:
            return self._refuse(401, "", "Invalid credentials in Authorization header")
        repo, rest = self._find(hub, path)
        if repo is None or (repo.private and not knows_token):
            # What the real hub says to strangers of what is not there, and of what is not theirs.
            return self._refuse(404 if knows_token else 401, "RepoNotFound" if knows_token else "", "Not found")
        if repo.hangs:
            hub.stopping.wait(30)
            return None
        if repo.status is not None:
            return self._refuse(repo.status, "", "Internal Error")
        if repo.gated and not knows_token and (rest.startswith("resolve/") or rest == "auth-check"):
            return self._refuse(401, "GatedRepo", "Access to this repository is restricted")
        return self._serve(repo, rest)

    def _find(self, hub: FakeHub, path: str) -> tuple[FakeRepo | None, str]:
        path = path.removeprefix("/api").strip("/")
        kind = "dataset" if path.startswith("datasets/") else "model"
        path = path.removeprefix("datasets/").removeprefix("models/")
        for (known_kind, hub_id), repo in hub.repos.items():
            if known_kind == kind and (path == hub_id or path.startswith(f"{hub_id}/")):
                return repo, path.removeprefix(hub_id).strip("/")
        return None, ""

    def _serve(self, repo: FakeRepo, rest: str) -> None:
        what, _, tail = rest.partition("/")
        if what == "auth-check":
            return self._json({})
        if what in ("", "revision"):
            commit = self._commit(repo, tail or "main")
            return None if commit is None else self._json(self._info(repo, commit))
        # Revisions of these tests hold no slash, but for what the tests of refs/pr/1 ask for.
        revision, _, name = tail.partition("/")
        commit = self._commit(repo, revision)
        if commit is None:
            return None
        files = repo.commits[commit]
        if what == "tree":
            recursive = parse_qs(urlsplit(self.path).query).get("recursive", ["false"])[0].lower() == "true"
            return self._json(_tree(files, name, recursive=recursive))
        if what == "paths-info":
            return self._json(_paths(files, self._asked_paths()))
        assert what == "resolve", f"unexpected request {self.command} {self.path}"
        if name not in files:
            return self._refuse(404, "EntryNotFound", "Entry not found", commit)
        return self._answer(200, files[name], "application/octet-stream", commit)

    def _asked_paths(self) -> list[str]:
        text = self._body.decode()
        if text.startswith("{"):
            paths = json.loads(text)["paths"]
            return [paths] if isinstance(paths, str) else paths
        return parse_qs(text)["paths"]

    def _commit(self, repo: FakeRepo, revision: str) -> str | None:
        commit = repo.refs.get(revision, revision)
        if commit in repo.commits:
            return commit
        self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return None

    def _info(self, repo: FakeRepo, commit: str) -> dict[str, Any]:
        return {
            "_id": "1", "id": repo.id, "modelId": repo.id, "sha": commit, "private": repo.private, "tags": [],
            "gated": "auto" if repo.gated else False, "downloads": 0, "likes": 0,
            "siblings": [{"rfilename": name} for name in repo.commits[commit]],
        }  # fmt: skip

    def _json(self, value: Any) -> None:
        self._answer(200, json.dumps(value).encode(), "application/json", None)

    def _refuse(self, status: int, code: str, message: str, commit: str | None = None) -> None:
        headers = {"X-Error-Code": code, "X-Error-Message": message} if code else {"X-Error-Message": message}
        self._answer(status, b"{}", "application/json", commit, headers)

    def _answer(
        self, status: int, body: bytes, kind: str, commit: str | None, headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if commit is not None:
            self.send_header("X-Repo-Commit", commit)
            self.send_header("ETag", f'"{hashlib.sha1(body).hexdigest()}"')
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keeps the tests' output clean."""


def _entry(files: Files, name: str) -> dict[str, Any]:
    return {"type": "file", "path": name, "size": len(files[name]), "oid": hashlib.sha1(files[name]).hexdigest()}


def _tree(files: Files, folder: str, *, recursive: bool) -> list[dict[str, Any]]:
    inside = [name for name in files if not folder or name.startswith(f"{folder}/")]
    rests = {name: name.removeprefix(folder).strip("/") for name in inside}
    folders = {f"{folder}/{rest.split('/')[0]}".strip("/") for rest in rests.values() if "/" in rest}
    found = [{"type": "directory", "path": name, "oid": "0" * 40, "size": 0} for name in sorted(folders)]
    return found + [_entry(files, name) for name in inside if recursive or "/" not in rests[name]]


def _paths(files: Files, asked: list[str]) -> list[dict[str, Any]]:
    found = [_entry(files, name) for name in asked if name in files]
    folders = [name for name in asked if any(file.startswith(f"{name}/") for file in files)]
    return found + [{"type": "directory", "path": name, "oid": "0" * 40, "size": 0} for name in folders]
