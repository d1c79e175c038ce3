"""The peers of `semel bench inbox`, each by its own interface and in a process of its own.

    procrastinate   jobs in PostgreSQL          the effect is committed by itself, then the job is marked: at least once
    pgqueuer        jobs in PostgreSQL          the same
    dbos            a transaction step          the effect and the step's record are one commit, by workflow id
    python-cqrs     an inbox with SQLAlchemy    the effect and the row's status are one commit

Where a peer leaves a choice, it gets the one that is faster for it: DBOS runs workflows directly and without its queue,
which looks for work once a second; pgqueuer takes all messages in one batch; python-cqrs gets a mediator that does
nothing but call the handler.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any

from semel.bench.inbox_meter import Meter, Took, answer

EFFECT = "CREATE TABLE IF NOT EXISTS effect (id text PRIMARY KEY, amount integer)"
INSERT = "INSERT INTO effect VALUES (%s, %s)"


def placed(count: int, body_bytes: int) -> list[dict[str, Any]]:
    return [{"id": os.urandom(16).hex(), "amount": number, "note": "x" * body_bytes} for number in range(count)]


class _Peer:
    def __init__(self, url: str, postmaster: int | None, body_bytes: int) -> None:
        import psycopg

        self.url, self.postmaster, self.body_bytes = url, postmaster, body_bytes
        self.meter = Meter(1, None)
        with psycopg.connect(url) as connection:
            connection.execute(EFFECT)

    def __call__(self, what: str, asked: Mapping[str, Any]) -> Took:
        messages = placed(asked["messages"], self.body_bytes)
        before = self._effects()
        self.meter = Meter(len(messages), self.postmaster)
        if what == "store":
            self.store(messages)
        else:
            self.handle(messages, asked["workers"])
            if (found := self._effects() - before) != len(messages):
                raise RuntimeError(f"{found} of {len(messages)} messages had their effect")
        return self.meter.took()

    def _effects(self) -> int:
        import psycopg

        with psycopg.connect(self.url) as connection:
            [(count,)] = connection.execute("SELECT count(*) FROM effect").fetchall()
        return int(count)

    def store(self, messages: list[dict[str, Any]]) -> None:
        raise NotImplementedError

    def handle(self, messages: list[dict[str, Any]], workers: int) -> None:
        raise NotImplementedError


class _Effects:
    """The handlers' own connections, for peers that give them none."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._idle: list[Any] = []

    async def write(self, message: Mapping[str, Any]) -> None:
        import psycopg

        connection = self._idle.pop() if self._idle else await psycopg.AsyncConnection.connect(self._url)
        await connection.execute(INSERT, (message["id"], message["amount"]))
        await connection.commit()
        self._idle.append(connection)

    async def close(self) -> None:
        for connection in self._idle:
            await connection.close()


# -- procrastinate


class Procrastinate(_Peer):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        asyncio.run(self._prepare())

    def _app(self, handle: Callable[..., Awaitable[None]]) -> tuple[Any, Any]:
        import procrastinate

        app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=self.url, max_size=20))
        return app, app.task(name="handle", queue="orders")(handle)

    async def _prepare(self) -> None:
        app, _ = self._app(_nothing)
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    def store(self, messages: list[dict[str, Any]]) -> None:
        asyncio.run(self._store(messages))

    async def _store(self, messages: list[dict[str, Any]]) -> None:
        app, task = self._app(_nothing)
        async with app.open_async():
            for message in messages:
                await task.defer_async(**message)
                self.meter.hit()
            await app.connector.execute_query_async("DELETE FROM procrastinate_jobs")

    def handle(self, messages: list[dict[str, Any]], workers: int) -> None:
        asyncio.run(self._handle(messages, workers))

    async def _handle(self, messages: list[dict[str, Any]], workers: int) -> None:
        effects = _Effects(self.url)

        async def handle(**message: Any) -> None:
            await effects.write(message)
            self.meter.hit()

        app, task = self._app(handle)
        async with app.open_async():
            await task.batch_defer_async(*messages)
            await app.run_worker_async(
                queues=["orders"], concurrency=workers, wait=False, install_signal_handlers=False, listen_notify=False
            )
        await effects.close()


async def _nothing(**message: Any) -> None:
    return None


# -- pgqueuer


class Pgqueuer(_Peer):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        asyncio.run(self._with(lambda app: app.qm.queries.install()))

    async def _with(self, run: Callable[[Any], Awaitable[Any]]) -> None:
        import psycopg
        from pgqueuer import PgQueuer

        async with await psycopg.AsyncConnection.connect(self.url, autocommit=True) as connection:
            await run(PgQueuer.from_psycopg_connection(connection))

    def store(self, messages: list[dict[str, Any]]) -> None:
        async def store(app: Any) -> None:
            for body in _bodies(messages):
                await app.qm.queries.enqueue("orders", body)
                self.meter.hit()
            await app.qm.queries.clear_queue()

        asyncio.run(self._with(store))

    def handle(self, messages: list[dict[str, Any]], workers: int) -> None:
        asyncio.run(self._with(lambda app: self._handle(app, messages, workers)))

    async def _handle(self, app: Any, messages: list[dict[str, Any]], workers: int) -> None:
        import json

        effects, count = _Effects(self.url), len(messages)

        free = asyncio.Semaphore(workers)

        async def handle(job: Any) -> None:
            async with free:
                await effects.write(json.loads(job.payload))
            self.meter.hit()
            if self.meter.done.is_set():
                app.shutdown.set()

        app.entrypoint("orders")(handle)
        await app.qm.queries.enqueue(["orders"] * count, _bodies(messages), [0] * count)
        # it looks for the next batch when notified, or after this time: so one batch is made to hold them all
        await app.run(dequeue_timeout=timedelta(seconds=0.1), batch_size=count)
        await effects.close()


def _bodies(messages: list[dict[str, Any]]) -> list[bytes | None]:
    import json

    return [json.dumps(message).encode() for message in messages]


# -- DBOS


class Dbos(_Peer):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        import sqlalchemy
        from dbos import DBOS, DBOSClient, SQLAlchemyDatasource

        DBOS(config={"name": "bench", "system_database_url": self.url, "log_level": "ERROR"})
        source = SQLAlchemyDatasource.create(self.url, engine_kwargs={"pool_size": 20})
        insert = sqlalchemy.text("INSERT INTO effect VALUES (:id, :amount)")

        @source.transaction(isolation_level="READ COMMITTED")
        def write(message: dict[str, Any]) -> None:
            source.sql_session().execute(insert, message)

        @DBOS.workflow(name="handle")
        def handle(message: dict[str, Any]) -> None:
            write(message)

        self._workflow = handle
        DBOS.launch()
        self._client = DBOSClient(system_database_url=self.url)

    def store(self, messages: list[dict[str, Any]]) -> None:
        for message in messages:
            self._client.enqueue(
                {"queue_name": "nobody", "workflow_name": "handle", "workflow_id": message["id"]}, message
            )
            self.meter.hit()

    def handle(self, messages: list[dict[str, Any]], workers: int) -> None:
        waiting: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        for message in messages:
            waiting.put(message)
        threads = [threading.Thread(target=self._work, args=(waiting,)) for _ in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _work(self, waiting: queue.SimpleQueue[dict[str, Any]]) -> None:
        from dbos import SetWorkflowID

        while True:
            try:
                message = waiting.get_nowait()
            except queue.Empty:
                return
            with SetWorkflowID(message["id"]):
                self._workflow(message)
            self.meter.hit()


# -- python-cqrs


class PythonCqrs(_Peer):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        import cqrs
        from cqrs.inbox.map import InboxMessageMap
        from cqrs.inbox.sqlalchemy import Base

        class Placed(cqrs.DomainEvent):
            id: str
            amount: int
            note: str

        self._kind, self._map = Placed, InboxMessageMap()
        self._map.register("Placed", Placed)
        asyncio.run(self._with_engine(lambda engine: _create(engine, Base.metadata)))

    async def _with_engine(self, run: Callable[[Any], Awaitable[None]]) -> None:
        from sqlalchemy import make_url
        from sqlalchemy.ext.asyncio import create_async_engine

        engine = create_async_engine(make_url(self.url).set(drivername="postgresql+psycopg"), pool_size=20)
        try:
            await run(engine)
        finally:
            await engine.dispose()

    def store(self, messages: list[dict[str, Any]]) -> None:
        asyncio.run(self._with_engine(lambda engine: self._store(engine, messages)))

    async def _store(self, engine: Any, messages: list[dict[str, Any]]) -> None:
        for message in messages:
            await self._add(engine, [message])
            self.meter.hit()
        await self._forget(engine)

    async def _add(self, engine: Any, messages: list[dict[str, Any]]) -> None:
        from cqrs.inbox.sqlalchemy import SqlAlchemyInboxRepository
        from sqlalchemy.ext.asyncio import AsyncSession

        async with AsyncSession(engine) as session:
            repository = SqlAlchemyInboxRepository(session, message_map=self._map)
            await repository.add([(message["id"], self._kind(**message)) for message in messages])
            await session.commit()

    async def _forget(self, engine: Any) -> None:
        from sqlalchemy import text

        async with engine.begin() as connection:
            await connection.execute(text("DELETE FROM inbox"))

    def handle(self, messages: list[dict[str, Any]], workers: int) -> None:
        asyncio.run(self._with_engine(lambda engine: self._handle(engine, messages, workers)))

    async def _handle(self, engine: Any, messages: list[dict[str, Any]], workers: int) -> None:
        for at in range(0, len(messages), 100):
            await self._add(engine, messages[at : at + 100])
        await asyncio.gather(*(self._work(engine) for _ in range(workers)))

    async def _work(self, engine: Any) -> None:
        """One commit for each message, so one row at a time."""
        from cqrs.inbox.processor import InboxProcessor
        from cqrs.inbox.sqlalchemy import SqlAlchemyInboxRepository
        from sqlalchemy import text
        from sqlalchemy.ext.asyncio import AsyncSession

        insert = text("INSERT INTO effect VALUES (:id, :amount)")
        async with AsyncSession(engine) as session:

            class Mediator:
                async def send(self, event: Any) -> None:
                    await session.execute(insert, {"id": event.id, "amount": event.amount})

            repository = SqlAlchemyInboxRepository(session, message_map=self._map)
            processor = InboxProcessor(repository, self._map, event_mediator=Mediator())
            while rows := await repository.get_many(batch_size=1):
                for row in rows:
                    await processor.process(row)
                await session.commit()
                self.meter.hit(len(rows))


async def _create(engine: Any, metadata: Any) -> None:
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)


PEERS: dict[str, type[_Peer]] = {
    "procrastinate": Procrastinate,
    "pgqueuer": Pgqueuer,
    "dbos": Dbos,
    "python-cqrs": PythonCqrs,
}


if __name__ == "__main__":
    _, name, url, postmaster, body_bytes = sys.argv
    answer(PEERS[name](url, int(postmaster) or None, int(body_bytes)))
