"""Asking: the requests and surveys of the node for messages of REQ and SURVEYOR."""

from __future__ import annotations

from typing import Final, final

import iris.aio
from iris.doors.clients import CLIENT_HEADER, Client, Clients
from iris.doors.nng.messages import answer_of, read_message
from iris.doors.options import REQUEST, SURVEY, request_of
from iris.doors.problems import Problem, problem_of
from iris.doors.values import AS_VALUE, enveloped, to_json

SURVEY_TIMEOUT: Final = 0.8
"""Seconds that a survey takes if the client does not say: a SURVEYOR that sets no NNG_OPT_SURVEYOR_SURVEYTIME waits
for one second."""


@final
class Asking:
    """Asks clusters for the client of a door.

    Args:
        node: node whose place is lent.
        clients: clients that may use it.
        name: name of the client.
        max_payload: bytes of a payload at most.
    """

    def __init__(self, node: iris.aio.Node, clients: Clients, name: str, max_payload: int) -> None:
        self._node = node
        self._clients = clients
        self._name = name
        self._max_payload = max_payload

    async def request(self, data: bytes) -> bytes:
        """Ask one member, and return the answer of the door.

        Raises:
            Problem, IrisError: what the client is told.
        """
        client = self._clients.named(self._name)
        with client.calling(), client.holding() as hold:
            client.check_rate()
            client.charge(len(data))
            await client.processor.rest()
            with client.processor.working():
                cluster, payload, options = read_message(data, "a cluster", self._max_payload, REQUEST)
            client.check("call", cluster)
            hold(_kept(payload, data))
            reply = await self._node.request(cluster, payload, headers=_from(client), **request_of(options))
        return answer_of(reply)

    async def survey(self, data: bytes) -> bytes:
        """Ask all members, and return the answer of the door: those of all, who lacks, and what went wrong.

        It is one message, as a RESPONDENT answers a survey once.

        Raises:
            Problem, IrisError: what the client is told.
        """
        client = self._clients.named(self._name)
        encoded: list[dict[str, object]] = []
        size = 0
        with client.calling(), client.holding() as hold:
            client.check_rate()
            client.charge(len(data))
            await client.processor.rest()
            with client.processor.working():
                cluster, payload, options = read_message(data, "a cluster", self._max_payload, SURVEY, SURVEY_TIMEOUT)
            client.check("call", cluster)
            hold(_kept(payload, data))
            surveying = self._node.survey(cluster, payload, headers=_from(client), **options)
            async with surveying as answers:
                async for one in answers:
                    encoded.append({"member": str(one.member), **enveloped(one.payload)})
                    size += len(to_json(encoded[-1]) or b"") + 1
                    if size > self._max_payload:
                        many = (
                            f"the answers of {len(encoded)} members have more than {self._max_payload} bytes together"
                        )
                        raise Problem(413, "too_large", f"{many}: survey fewer with count=")
        return answer_of(
            {
                "answers": encoded,
                "ended_by": answers.ended_by,
                "expected": answers.expected,
                "missing": [str(node) for node in answers.missing],
                "errors": {str(node): problem_of(error).document() for node, error in answers.errors.items()},
            }
        )


def _kept(payload: object, data: bytes) -> int:
    """Return how many bytes are kept for a message while it is worked on."""
    return len(data) if isinstance(payload, bytes | str) else AS_VALUE * len(data)


def _from(client: Client) -> dict[str, str]:
    return {CLIENT_HEADER: client.name}
