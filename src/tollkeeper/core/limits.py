"""The limits of specification and contract, the unit in the name (specification 8, contract 2-6, security A-33).

The specification's values are not settings; what an operator may change is a setting whose default stands here.
"""

from __future__ import annotations

from typing import Final

# Specification 8
PROXY_TIMEOUT_SECONDS: Final = 600
PROXY_RESPONSE_SIZE_BYTES: Final = 10_485_760
HISTORY_LIMIT_MAX: Final = 100
ACCESS_TOKEN_LIFETIME_SECONDS: Final = 15 * 60
REFRESH_TOKEN_LIFETIME_SECONDS: Final = 7 * 24 * 3600

# Contract 2: listings whose limit the specification does not require
LIST_LIMIT_DEFAULT: Final = 20
OFFSET_MAX: Final = 2**53 - 1

# Contract 2: who asks for readiness wants to know soon, also of a database that does not answer
READINESS_WAIT_SECONDS: Final = 3

# Contract 4 and 5
CHALLENGE_TIMEOUT_SECONDS: Final = 60
FORMER_PRICE_SECONDS: Final = 120
SETTLE_WAIT_SECONDS: Final = 30
ACCEPT_WAIT_SECONDS: Final = 4
# Of x402 version 2, whose servers ask twice and no more (contract 10.2); proxies mostly cut an answer at 60 s.
SETTLE_HOLD_SECONDS: Final = 50
SETTLE_REQUEST_LIFETIME_SECONDS: Final = 60
TRUST_LOST_SECONDS: Final = 24 * 3600  # so long a trusted sale that was not paid counts against the caps on trust
PAYMENT_ATTEMPTS_MAX: Final = 3
SETTLEMENTS_UNDER_WAY_MAX: Final = 20_000  # of a network, at a time: a minute of 300 a second, which no hub makes
VALID_BEFORE_MARGIN_SECONDS: Final = 6
SALE_VALUE_MAX_MICRO: Final = 10**18 - 1  # the largest price that can be written; the books count in 64 bits
# What one payer may make the hub pay for nothing (security A-24): failures on the chain within 60 minutes, and payments
# that are under way at once.
PAYER_FAILURES_MAX: Final = 10
PAYER_UNDER_WAY_MAX: Final = 1_000

# Contract 6
HANDOVER_LIFETIME_SECONDS: Final = 60
LOGIN_MESSAGE_LIFETIME_SECONDS: Final = 5 * 60

# Input (security A-33): what one request may make us read or parse
REQUEST_HEAD_SIZE_BYTES: Final = 32 * 1024
# Of a head, of callers and targets alike: a header of two bytes takes fifty times as many here.
HEADERS_MAX: Final = 256
PAYMENT_HEADER_SIZE_BYTES: Final = 8 * 1024
JSON_BODY_SIZE_BYTES: Final = 64 * 1024
JSON_DEPTH: Final = 8
JSON_METADATA_DEPTH: Final = 64  # where sellers put schemas of their own beside what takes part (contract 5.1)
JSON_INTEGER_DIGITS: Final = 80
RESPONSE_MEMORY_SIZE_BYTES: Final = 1024 * 1024
CALL_BODY_SIZE_BYTES: Final = 100 * 1024 * 1024  # of a call that is forwarded, unless the settings say otherwise

# Creates that may be sent again (contract 2)
IDEMPOTENCY_KEPT_SECONDS: Final = 24 * 3600

# Contract 5.2: how long the hub keeps with a caller's key that its request was refused, and nothing started
REFUSALS_KEPT_SECONDS: Final = 24 * 3600

# Signed forwarding (contract 4.7)
SIGNED_BODY_SIZE_BYTES: Final = 1024 * 1024
SECRET_OVERLAP_SECONDS: Final = 24 * 3600
SECRETS_IN_FORCE_MAX: Final = 5

# PayGate fields (contract 3.1)
SEARCH_LENGTH: Final = 200
TITLE_LENGTH: Final = 200
DESCRIPTION_LENGTH: Final = 2000
TARGET_URL_LENGTH: Final = 2048
CREDITS_MAX: Final = 10**9
ACCEPTS_MAX: Final = 8
TARGET_HEADERS_MAX: Final = 32
TARGET_HEADERS_SIZE_BYTES: Final = 8 * 1024
CREDITS_EXPIRE_AFTER_MAX_SECONDS: Final = 10 * 365 * 24 * 3600
SLUG_LENGTH: Final = 8

# Files (contract 4.8)
FILE_NAME_LENGTH: Final = 200
DOWNLOAD_LIFETIME_SECONDS: Final = 15 * 60

# Contract 2: how long the request log, single calls and the hours' sums are kept, unless the settings say otherwise
REQUEST_LOG_DAYS: Final = 30
JOURNAL_DAYS: Final = 30
STATISTICS_DAYS: Final = 730
