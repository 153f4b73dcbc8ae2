"""The words that every answer of the API is made of.

Promises:
- A refusal is an `ApiError`, and what it is answered with stands in one table (`errors.Code`). Any other exception is
  a fault of ours.
- A body is a type in `bodies`, or in the `bodies` of its part; its JSON Schema is made of the type, so that no
  description stands beside the code that answers.
- JSON of strangers is read strictly (`strict_json`): no member comes twice, no number is too large, nothing is too
  deep.

Begin with `errors`, then `bodies`; `openapi` makes the document of a part's table of operations.
"""
