"""``iris survey``: ask every member of a cluster."""

from __future__ import annotations

import click

from iris._command_connection import Connection, connected, run_until_done
from iris._command_number import POSITIVE, takes_wait
from iris._command_output import note, write_line, write_object
from iris._command_payload import as_fields, as_text, read_headers, read_payload, takes_headers, takes_payload


@click.command()
@click.argument("cluster")
@takes_payload
@takes_headers
@click.option("--operation", metavar="NAME", help="Which of the service's request handlers.")
@click.option("--timeout", type=POSITIVE, default=1.0, show_default=True, help="Seconds.")
@takes_wait
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each answer and one for who is missing.")
@connected
def survey(
    connection: Connection,
    cluster: str,
    payload: str,
    json_payload: bool,
    headers: tuple[str, ...],
    operation: str | None,
    timeout: float,
    wait: float,
    as_json: bool,
) -> int:
    """Ask every member of CLUSTER and print each answer with the id of its member.

    The exit status is 1 if a member did not answer in time.
    PAYLOAD is a text; @FILE sends the bytes of a file, - those of standard input.
    """
    value = read_payload(payload, json_payload)
    given_headers = read_headers(headers)

    async def ask_all() -> int:
        count = 0
        async with (
            connection.open() as node,
            node.survey(
                cluster, value, timeout=timeout, operation=operation, headers=given_headers, wait=wait
            ) as answers,
        ):
            async for answer in answers:
                count += 1
                if as_json:
                    write_object({"member": answer.member, **as_fields(answer.payload)})
                else:
                    write_line(f"{answer.member} {as_text(answer.payload)}")
        missing = {member: str(answers.errors.get(member, "no answer in time")) for member in sorted(answers.missing)}
        if as_json:
            write_object({"answers": count, "missing": missing})
        for member, reason in missing.items():
            note(f"{member} is missing: {reason}")
        return 1 if missing else 0

    return run_until_done(ask_all)
