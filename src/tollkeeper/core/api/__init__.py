"""The API's common words: errors, schemas, strict JSON."""
