"""Election by etcd: a key that belongs to a lease of etcd's, over the JSON gateway of its version 3 API.

Source: https://etcd.io/docs/v3.5/dev-guide/api_grpc_gateway/.
"""

from __future__ import annotations

import base64
import http.client
import os
import ssl
from collections.abc import Mapping
from contextlib import closing
from typing import Any, Final, final
from urllib.parse import parse_qs, urlsplit

import msgspec

from iris.kernel.errors import ConfigError
from iris.spark_bridge.election.engine import ANSWER, LEASE, EngineAway

_PORT: Final = 2379
_MOST: Final = 1024 * 1024
"""Limit of an answer, in bytes."""
_FILES: Final = frozenset({"ca", "cert", "key"})


@final
class Etcd:
    """The lease at a cluster of etcd.

    Args:
        url: ``etcd://HOST:PORT,HOST:PORT/PREFIX``, ``etcds://`` with TLS; files of TLS as
            ``?ca=FILE&cert=FILE&key=FILE``.  User and password are in the environment, as ``ETCDCTL_USER``.
        name: distinguishes the leases of one prefix.
        holder: distinguishes the processes that want it.

    Raises:
        ConfigError: the URL cannot be read, or a file of it, or it has a user.
    """

    def __init__(self, url: str, name: str, holder: str) -> None:
        if "@" in url:  # wherever it stands: before it is a password
            raise ConfigError(
                "the URL of the election has an @, as before a user's password, which others on this machine can see: "
                "put USER:PASSWORD in ETCDCTL_USER in the environment, and write %40 for an @ that is none"
            )
        parts = urlsplit(url)
        hosts = parts.netloc
        self._user, _, self._password = os.environ.get("ETCDCTL_USER", "").partition(":")
        self._hosts = [_address(host) for host in hosts.split(",")]
        self._tls = _tls_context(parts.query) if parts.scheme == "etcds" else None
        if self._tls is None and parts.query:
            raise ConfigError(f"election {parts.scheme}://{hosts} has files of TLS: write etcds://")
        prefix = parts.path.strip("/") or "iris"
        self._key = _encode(f"{prefix}/{name}")
        self._holder = _encode(holder)
        self._lease = ""
        """The lease's number in etcd; empty if there is none."""
        self._token = ""

    def is_free(self) -> bool:
        """See ``Engine``."""
        return not self._ask("kv/range", {"key": self._key}).get("kvs")

    def acquire(self) -> bool:
        """See ``Engine``."""
        try:
            return self._acquire()
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise EngineAway(f"etcd: what answers is not etcd: {error!r}") from None

    def _acquire(self) -> bool:
        if self._lease:
            kept = self._ask("lease/keepalive", {"ID": self._lease})
            if int(kept.get("result", {}).get("TTL", 0)) <= 0:
                self._lease = ""
            elif self._is_held_here(self._ask("kv/range", {"key": self._key})):
                return True  # a look waits for no disk, as a transaction does: on a busy one the lease would end
        if not self._lease:
            self._lease = str(self._ask("lease/grant", {"TTL": LEASE})["ID"])
        absent = {"key": self._key, "target": "CREATE", "result": "EQUAL", "create_revision": "0"}
        put = {"request_put": {"key": self._key, "value": self._holder, "lease": self._lease}}
        look = {"request_range": {"key": self._key}}
        answer = self._ask("kv/txn", {"compare": [absent], "success": [put], "failure": [look]})
        if answer.get("succeeded"):
            return True
        if self._is_held_here(answer["responses"][0]["response_range"]):
            return True
        self.release()
        return False

    def _is_held_here(self, found: Mapping[str, Any]) -> bool:
        return any(each.get("lease") == self._lease for each in found.get("kvs", ()))

    def release(self) -> None:
        """See ``Engine``."""
        lease, self._lease = self._lease, ""
        if lease:
            self._ask("lease/revoke", {"ID": lease})

    def close(self) -> None:
        """See ``Engine``: there are no connections between two questions."""

    def _ask(self, path: str, question: Mapping[str, Any]) -> Any:
        """Ask one host after the other, first the one that answered last."""
        problems: list[str] = []
        for host in list(self._hosts):
            try:
                answer = self._ask_host(host, path, question)
            except EngineAway as error:
                problems.append(str(error))
            except (OSError, http.client.HTTPException, msgspec.MsgspecError) as error:
                problems.append(f"{host[0]}:{host[1]} does not answer: {error!r}")
            else:
                return answer
            self._hosts.append(self._hosts.pop(0))
            self._token = ""  # it may have ended
        raise EngineAway(f"etcd: {'; '.join(problems)}")

    def _ask_host(self, host: tuple[str, int], path: str, question: Mapping[str, Any]) -> Any:
        if self._user and not self._token:
            login = {"name": self._user, "password": self._password}
            self._token = str(self._post(host, "auth/authenticate", login)["token"])
        return self._post(host, path, question)

    def _post(self, host: tuple[str, int], path: str, question: Mapping[str, Any]) -> dict[str, Any]:
        connection = (
            http.client.HTTPConnection(*host, timeout=ANSWER)
            if self._tls is None
            else http.client.HTTPSConnection(*host, timeout=ANSWER, context=self._tls)
        )
        with closing(connection):
            headers = {"Authorization": self._token} if self._token else {}
            connection.request("POST", f"/v3/{path}", msgspec.json.encode(question), headers)
            response = connection.getresponse()
            answer = msgspec.json.decode(response.read(_MOST), type=dict[str, Any])
        if response.status != http.HTTPStatus.OK:
            raise EngineAway(f"{host[0]}:{host[1]} refuses {path}: {answer.get('message', response.status)}")
        return answer


def _encode(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _address(host: str) -> tuple[str, int]:
    parts = urlsplit(f"//{host}")
    try:
        port = parts.port
    except ValueError:
        port = -1
    if not parts.hostname or port == -1:
        raise ConfigError(f"election names the host {host!r} of etcd: write HOST:PORT")
    return parts.hostname, port or _PORT


def _tls_context(query: str) -> ssl.SSLContext:
    files = {name: values[-1] for name, values in parse_qs(query).items()}
    if unknown := files.keys() - _FILES:
        raise ConfigError(f"election has {', '.join(sorted(unknown))} behind the ?: use ca, cert and key")
    try:
        context = ssl.create_default_context(cafile=files.get("ca"))
        if "cert" in files:
            context.load_cert_chain(files["cert"], files.get("key"))
    except OSError as error:
        raise ConfigError(f"a file of TLS for the election cannot be read: {error}") from None
    return context
