"""Transfers between two banks that keep their accounts in PostgreSQL; a step that ran is undone if the saga fails."""

import time

import psycopg
import trio

import iris

TABLES = """
CREATE TABLE IF NOT EXISTS accounts (name TEXT PRIMARY KEY, money BIGINT NOT NULL);
CREATE TABLE IF NOT EXISTS booked (token TEXT PRIMARY KEY, undone BOOLEAN NOT NULL);
"""


def token(request):
    """Return what a step and its undo book: who asks, which saga, and which of its steps."""
    return f"{request.sender.cluster}/{request.undoes or request.idempotency_key}"


def book(request, account, amount):
    with psycopg.connect() as database:  # one transaction: the token and the money, both or neither
        step = "INSERT INTO booked VALUES (%s, false) ON CONFLICT DO NOTHING"
        if database.execute(step, (token(request),)).rowcount:  # else it is booked already, or undone
            step = "UPDATE accounts SET money = money + %s WHERE name = %s"
            if not database.execute(step, (amount, account)).rowcount:
                raise iris.RemoteError("no_account", f"{account} has none")  # and the token is not booked


def unbook(request, account, amount):
    with psycopg.connect() as database:
        step = "INSERT INTO booked VALUES (%s, true) ON CONFLICT DO NOTHING"
        if database.execute(step, (token(request),)).rowcount:
            return  # the step has not booked, and with its token booked it never will
        step = "UPDATE booked SET undone = true WHERE token = %s AND NOT undone"
        if database.execute(step, (token(request),)).rowcount:
            database.execute("UPDATE accounts SET money = money - %s WHERE name = %s", (amount, account))


def undo(request, account, amount):
    while True:
        try:
            return unbook(request, account, amount)
        except psycopg.OperationalError:  # what raises has its outcome, and is not called again: so it waits
            time.sleep(1)


def bank(name):
    service = iris.Service(name, outcomes=iris.Outcomes(keep=30 * 86400, rerun=True))

    @service.request("take", thread=True)
    def take(request):
        book(request, request.payload["from"], -request.payload["amount"])

    @service.request("give_back", thread=True)
    def give_back(request):
        undo(request, request.payload["from"], -request.payload["amount"])

    @service.request("give", thread=True)
    def give(request):
        book(request, request.payload["to"], request.payload["amount"])

    @service.request("take_back", thread=True)
    def take_back(request):
        undo(request, request.payload["to"], request.payload["amount"])

    return service


async def transfer(node, order):
    async with node.bridge().saga(f"transfer-{order['id']}") as saga:
        await saga.request("north", order, operation="take", undo="give_back")
        await saga.request("south", order, operation="give", undo="take_back")


async def main():
    orders = [
        {"id": 1, "from": "ann", "to": "ben", "amount": 30},
        {"id": 2, "from": "ann", "to": "eve", "amount": 20},
        {"id": 1, "from": "ann", "to": "ben", "amount": 30},  # once more: its first worker died before it said so
    ]
    with psycopg.connect(autocommit=True) as database:  # where it is: PGHOST, PGDATABASE and so on
        database.execute(TABLES)
        database.execute("INSERT INTO accounts VALUES ('ann', 100), ('ben', 0) ON CONFLICT DO NOTHING")
        async with (
            iris.open_node("banks") as banks,
            banks.join("north", bank("north")),
            banks.join("south", bank("south")),
            iris.open_node("desk") as desk,
            desk.bridge().queue("transfers") as queue,
        ):
            await desk.wait_for("south")
            for order in orders:
                await queue.put(order, key="ann")
            done = 0
            async for job in queue.receive(limit=1):
                async with job:
                    try:
                        await transfer(desk, job.payload)
                    except iris.SagaUndone as undone:
                        print(undone, *undone.failed)
                done += 1
                if done == len(orders):
                    break
        print(database.execute("SELECT name, money FROM accounts ORDER BY name").fetchall())


if __name__ == "__main__":
    trio.run(main)
