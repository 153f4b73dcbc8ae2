"""The engine for many nodes: PostgreSQL, spoken to through asyncpg (`pip install tollkeeper[postgresql]`)."""
