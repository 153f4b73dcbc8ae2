"""How SQLite would answer a stored query."""

from dataclasses import replace

from tollkeeper.storage.engine.database import Database, Statement


async def plan_of(database: Database, statement: Statement) -> list[str]:
    """The steps, as it plans them where nothing was counted beforehand, as in every database of ours."""
    rows = await database.read(replace(statement, sql=f"EXPLAIN QUERY PLAN {statement.sql}"))
    return [row["detail"] for row in rows]
