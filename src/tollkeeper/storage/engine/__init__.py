"""The interface of a database, its schema and its named SQL."""
