"""Fetches files of a Hugging Face repository through huggingface-hub: resumed, in parallel, digests checked."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from imp_server.core import InvalidModel, ModelFileMissing
from imp_server.weights.file_sets import choose
from imp_server.weights.known import HubModel
from imp_server.weights.manifest import CHUNK, OnProgress, check_digest, check_space, sha256_of

PARALLEL = 4
"""Files fetched at once."""


@dataclass(frozen=True, slots=True)
class Remote:
    """A file of the repository as the hub describes it; an LFS file has a SHA-256, a small one its git blob id."""

    name: str
    size: int
    sha256: str
    blob_id: str


def fetch_hub(
    source: HubModel, revision: str, folder: Path, on_progress: OnProgress, endpoint: str | None = None
) -> tuple[str, dict[str, str]]:
    """Download what `source` names into `folder`; (main, path -> sha256).

    A cut download goes on where it stopped. Raises ModelFileMissing if the hub or the file can't be reached,
    InvalidModel if a file isn't the one that the hub describes.
    """
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # its warnings would tear the progress bar
    commit, remotes = _listing(source.repo, revision, endpoint)
    main, names = choose(sorted(remotes), source.file, f"hf:{source.repo}")
    check_space(folder, sum(remotes[name].size for name in names))
    stopping = threading.Event()

    def one(remote: Remote) -> str:
        path = folder / remote.name
        goes_on = path.is_file()
        while True:
            _download(source.repo, commit, remote, folder, endpoint, _bar(remote, on_progress, stopping))
            try:
                return _verified(remote, path, on_progress)
            except InvalidModel:
                if not goes_on:
                    raise
                goes_on = False  # what an earlier pull left may be damaged: once more, from the beginning

    with ThreadPoolExecutor(PARALLEL) as pool:
        futures = {name: pool.submit(one, remotes[name]) for name in names}
        try:
            wait(futures.values(), return_when=FIRST_EXCEPTION)
        finally:
            stopping.set()
            pool.shutdown(cancel_futures=True)
        failed = [f.exception() for f in futures.values() if f.done() and not f.cancelled() and f.exception()]
        for error in sorted(failed, key=lambda e: isinstance(e, _Stopped)):
            raise error or RuntimeError
        digests = {name: future.result() for name, future in futures.items()}
    return main, digests


def family_at_hub(repo: str, revision: str, endpoint: str | None = None) -> tuple[str, str]:
    """What the hub says of the repository without its files: GGUF's architecture, and config.json's model type.

    Empty where it doesn't say, or can't be reached.
    """
    from huggingface_hub import HfApi

    try:
        with _Explained(repo, revision):
            info = HfApi(endpoint=endpoint).model_info(repo, revision=revision, timeout=20)
    except ModelFileMissing:
        return "", ""
    told = [(info.gguf or {}).get("architecture"), (info.config or {}).get("model_type")]
    architecture, model_type = (text if isinstance(text, str) else "" for text in told)
    return architecture, model_type


def _listing(repo: str, revision: str, endpoint: str | None) -> tuple[str, dict[str, Remote]]:
    """The commit that `revision` means now, and its files."""
    from huggingface_hub import HfApi

    with _Explained(repo, revision):
        info = HfApi(endpoint=endpoint).model_info(repo, revision=revision, files_metadata=True, timeout=20)
    remotes = {}
    for file in info.siblings or []:
        digest = file.lfs.sha256 if file.lfs else ""
        remotes[file.rfilename] = Remote(file.rfilename, file.size or 0, digest or "", file.blob_id or "")
    return info.sha or revision, remotes


def _download(repo: str, commit: str, remote: Remote, folder: Path, endpoint: str | None, bar: type) -> None:
    """Bytes that an earlier pull has left are kept. hf_hub_download would begin anew: it drops what was cut."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    target = folder / remote.name
    target.parent.mkdir(parents=True, exist_ok=True)
    url = hf_hub_url(repo, remote.name, revision=commit, endpoint=endpoint)
    with _Explained(repo, commit), target.open("ab") as file:
        done = file.tell()
        if done > remote.size:
            done = file.truncate(0)
        if done == remote.size and done:
            return
        http_get(
            url,
            file,
            resume_size=done,
            headers=build_hf_headers(),
            expected_size=remote.size,
            displayed_filename=remote.name,
            tqdm_class=bar,
        )


def _verified(remote: Remote, path: Path, on_progress: OnProgress) -> str:
    """The file's SHA-256, after comparing it (or the git blob id of a small file) with the hub's."""
    size = path.stat().st_size
    if remote.size and size != remote.size:
        path.unlink()
        raise InvalidModel(f"{remote.name} has {size} bytes instead of {remote.size}; pull it again")

    def told(done: int) -> None:
        if size > 64 * CHUNK:
            on_progress(f"check {path.name}", done, size)

    digest = sha256_of(path, told)
    if not remote.sha256 and remote.blob_id:
        blob = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        blob.update(path.read_bytes())
        if blob.hexdigest() != remote.blob_id:
            path.unlink()
            check_digest(remote.name, blob.hexdigest(), remote.blob_id)
    if remote.sha256 and digest != remote.sha256:
        path.unlink()
        check_digest(remote.name, digest, remote.sha256)
    return digest


class _Stopped(Exception):
    """Another file failed, or the user stopped us."""


def _bar(remote: Remote, on_progress: OnProgress, stopping: threading.Event) -> type:
    """What huggingface-hub takes for a tqdm class: reports bytes, and ends the download when `stopping` is set."""

    class Bar:
        def __init__(self, *_: Any, total: int | None = None, initial: int = 0, **__: Any) -> None:
            self.total = total or remote.size
            self.n = initial

        def update(self, n: float | None = 1) -> None:
            self.n += int(n or 0)
            on_progress(remote.name, self.n, self.total)
            if stopping.is_set():
                raise _Stopped

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *_: object) -> None: ...

        def __getattr__(self, name: str) -> Callable[..., None]:
            """Every other method of a tqdm bar changes only what it shows."""
            if name.startswith("_"):
                raise AttributeError(name)
            return lambda *_, **__: None

    return Bar


class _Explained:
    """Turns huggingface-hub's exceptions into one line."""

    def __init__(self, repo: str, revision: str) -> None:
        self.repo = repo
        self.revision = revision

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type | None, error: BaseException | None, _: TracebackType | None) -> None:
        from huggingface_hub import errors

        if not isinstance(error, Exception) or isinstance(error, _Stopped):
            return
        repo = f"hf:{self.repo}"
        if isinstance(error, errors.GatedRepoError):
            text = f"{repo} is gated: accept its licence on the hub, then set HF_TOKEN to a token of yours"
        elif isinstance(error, errors.RepositoryNotFoundError):
            text = f"{repo} doesn't exist (or is private: set HF_TOKEN to a token that may read it)"
        elif isinstance(error, errors.RevisionNotFoundError):
            text = f"{repo} has no revision {self.revision}"
        elif isinstance(error, (errors.EntryNotFoundError, errors.HFValidationError)):
            text = f"{repo}: {str(error).splitlines()[0]}"
        else:
            detail = str(error).splitlines()[0][:160] if str(error) else type(error).__name__
            text = (
                f"can't reach the Hugging Face hub for {repo} ({detail}); check the network, or use a model that "
                "is here (`imp ls`, --model PATH)"
            )
        raise ModelFileMissing(text) from None
