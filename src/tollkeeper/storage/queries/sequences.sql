-- name: next_value
INSERT INTO sequences (name, value) VALUES (:name, 1)
ON CONFLICT (name) DO UPDATE SET value = sequences.value + 1
RETURNING value;
