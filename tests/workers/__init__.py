"""`tollkeeper serve --workers`: several processes on one port and one database, as their callers see them."""
