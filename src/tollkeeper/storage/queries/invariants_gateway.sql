-- What must hold of every gateway's database at any moment (security 5): each statement lists what does not, as subject
-- and found. Its name begins with the invariant that it belongs to; `storage.books.invariants` says each in words.
-- `:since_ms` (0: ever) leaves out what was not changed since, and `:since_id` the calls whose ids are smaller.

-- name: i1_one_purchase_per_payment
SELECT network || '/' || asset || '/' || payer || '/' || nonce AS subject, count(*) || ' purchases' AS found
FROM purchases GROUP BY network, asset, payer, nonce HAVING count(*) > 1;

-- name: i2_remaining_is_the_ledger
WITH looked_at AS (
    SELECT purchase_number AS number FROM uncounted_calls
    UNION SELECT number FROM purchases WHERE updated_ms >= :since_ms
    UNION SELECT p.number FROM single_calls s JOIN purchases p ON p.id = s.purchase_id WHERE s.id >= :since_id
)
SELECT t.id AS subject, 'remaining ' || t.remaining || ', granted ' || t.granted || ', ledger ' || (t.given - t.taken) AS found
FROM looked_at l JOIN credit_totals t ON t.number = l.number
WHERE t.remaining <> t.given - t.taken OR t.remaining < 0 OR t.remaining > t.granted;

-- name: i2_granted_is_what_was_bought
SELECT id AS subject, state || ', bought ' || credits || ', granted ' || granted || ', entries ' || given AS found
FROM credit_totals
WHERE updated_ms >= :since_ms
    AND (granted <> given OR granted <> CASE WHEN state IN ('LIVE', 'VOID') THEN credits ELSE 0 END);

-- The days of purchases against the rows of the journal that they count and that are still there.
-- name: i2_days_are_the_calls
SELECT 'purchase number ' || purchase_number || ', day ' || day AS subject,
    CAST(sum(calls) AS BIGINT) || ' calls more than the journal has' AS found
FROM (
    SELECT purchase_number, day, calls - folded AS calls FROM call_days WHERE calls <> folded
    UNION ALL SELECT purchase_number, day, -calls FROM counted_calls
) AS compared GROUP BY purchase_number, day HAVING sum(calls) <> 0;

-- The state stands twice: where it is decided, and beside the credits that are taken only while it is LIVE and not held.
-- name: i2_credits_are_live_where_their_purchase_is
SELECT p.id AS subject, p.state || ', its credits ' || CASE c.is_live WHEN 1 THEN 'live' WHEN 0 THEN 'not' ELSE 'not there' END
    AS found
FROM purchases p LEFT JOIN credits c ON c.number = p.number
WHERE p.updated_ms >= :since_ms
    AND coalesce(c.is_live, 0) <> CASE WHEN p.state = 'LIVE' AND p.failure IS NULL THEN 1 ELSE 0 END;

-- name: i2_credits_are_of_a_purchase
SELECT 'credits ' || c.number AS subject, 'of no purchase' AS found
FROM credits c LEFT JOIN purchases p ON p.number = c.number WHERE p.number IS NULL;

-- What is left out of its wallet's look while it holds something. The other way round costs a look and hides nothing.
-- name: i2_what_is_marked_used_up_holds_nothing
SELECT p.id AS subject, 'remaining ' || c.remaining AS found
FROM purchases p JOIN credits c ON c.number = p.number WHERE p.updated_ms >= :since_ms AND c.remaining > 0 AND p.is_used_up = 1;

-- That every spend has its call, and every call its spend (I3), needs no check: what is written of a call is its spend's entry.
-- Of calls in the journal no index keeps two of one id away. The last 2,000 rows are looked at (some 100,000 calls): whatever
-- asks for a call once more does so within seconds, and a look at all of them would have to sort them.
-- name: i3_a_call_is_charged_once
WITH recent AS MATERIALIZED (
    SELECT c.key AS id FROM call_journal j CROSS JOIN json_each(j.spent) c
    WHERE j.number > (SELECT max(number) FROM call_journal) - 2000
)
SELECT id AS subject, count(*) || ' credits taken' AS found
FROM (SELECT id FROM recent UNION ALL SELECT s.id FROM recent r JOIN single_calls s ON s.id = r.id)
GROUP BY id HAVING count(*) > 1;

-- name: i3_what_was_served_is_not_given_back
WITH recent AS MATERIALIZED (
    SELECT c.value AS id, CAST(s.key AS BIGINT) AS status
    FROM call_journal j CROSS JOIN json_each(j.ended) s CROSS JOIN json_each(s.value) c
    WHERE j.number > (SELECT max(number) FROM call_journal) - 2000
)
SELECT e.id AS subject, 'given back, and answered with ' || e.status AS found
FROM recent e CROSS JOIN credits_given g WHERE g.cause = e.id AND g.reason = 'restore' AND e.status < 400;

-- name: i3_a_restored_call_has_its_credit_back
SELECT c.id AS subject, c.state || ', given back ' || coalesce(e.delta, 0) AS found
FROM single_calls c LEFT JOIN credits_given e ON e.cause = c.id AND e.reason = 'restore'
WHERE c.id >= :since_id
    AND ((c.state = 'RESTORED' AND coalesce(e.delta, 0) <> 1) OR (c.state <> 'RESTORED' AND e.cause IS NOT NULL));

-- name: i3_what_is_given_back_was_spent
SELECT e.cause AS subject, e.delta || ' given back of no call' AS found
FROM credits_given e
WHERE e.reason = 'restore' AND NOT EXISTS (SELECT 1 FROM single_calls c WHERE c.id = e.cause AND c.purchase_id = e.purchase_id)
    AND e.cause NOT IN (
        SELECT s.cause FROM credit_entries s JOIN credits_given g ON g.cause = s.cause AND g.reason = 'restore'
        WHERE s.reason = 'spend' AND s.purchase_id = g.purchase_id
    );

-- name: i4_calls_within_the_credits
SELECT id AS subject, taken || ' calls of ' || granted || ' credits' AS found
FROM credit_totals WHERE updated_ms >= :since_ms AND taken > granted;

-- name: i5_credits_rest_on_a_payment
SELECT id AS subject, state || ', confirmed ' || confirmed || ', trusted ' || assume_valid || ', transaction '
    || coalesce(transaction_hash, 'none') AS found
FROM purchases
WHERE updated_ms >= :since_ms AND (state = 'LIVE' OR (state = 'VOID' AND failure LIKE 'gate_deleted%'))
    AND (coalesce(transaction_hash, '') = '' OR (confirmed = 0 AND assume_valid = 0));

-- name: i11_terms_are_a_version_of_the_gate
SELECT p.id AS subject, 'gate ' || p.gate_id || ' version ' || p.gate_version || ', price ' || p.price_micro || ', credits '
    || p.credits || ', ' || p.network AS found
FROM purchases p
WHERE p.updated_ms >= :since_ms AND (CAST(p.value_micro AS BIGINT) < p.price_micro OR NOT EXISTS (
    SELECT 1 FROM paygate_versions v
    WHERE v.gate_id = p.gate_id AND v.version <= p.gate_version AND v.price_micro = p.price_micro
        AND v.credits = p.credits
        AND (v.network = p.network OR v.accepts IS NOT NULL)  -- which those are is sealed
));

-- Values are summed in two parts, billions (thousands of USDC) and the rest, so that no sum is larger than an integer.
-- name: i13_a_payers_debt_is_within_the_cap
SELECT payer AS subject, count(*) || ' payments of ' || (CAST(sum(high) AS BIGINT) + CAST(sum(low) AS BIGINT) / 1000000000) || ' thousand USDC and '
    || CAST(sum(low) AS BIGINT) % 1000000000 || ' micro-units' AS found
FROM (
    SELECT payer, CAST(value_micro AS BIGINT) / 1000000000 AS high, CAST(value_micro AS BIGINT) % 1000000000 AS low
    FROM purchases WHERE assume_valid = 1 AND confirmed = 0 AND state IN ('CLAIMED', 'LIVE', 'VOID')
) AS owed
GROUP BY payer HAVING count(*) > :payments
    OR (CAST(sum(high) AS BIGINT) + CAST(sum(low) AS BIGINT) / 1000000000, CAST(sum(low) AS BIGINT) % 1000000000) > (CAST(:value_micro AS BIGINT) / 1000000000, CAST(:value_micro AS BIGINT) % 1000000000);

-- name: i13_a_gates_debt_is_within_the_cap
SELECT 'gate ' || gate_id AS subject, count(*) || ' payments of ' || (CAST(sum(high) AS BIGINT) + CAST(sum(low) AS BIGINT) / 1000000000)
    || ' thousand USDC and ' || CAST(sum(low) AS BIGINT) % 1000000000 || ' micro-units' AS found
FROM (
    SELECT gate_id, CAST(value_micro AS BIGINT) / 1000000000 AS high, CAST(value_micro AS BIGINT) % 1000000000 AS low
    FROM purchases WHERE assume_valid = 1 AND confirmed = 0 AND state IN ('CLAIMED', 'LIVE', 'VOID')
) AS owed
GROUP BY gate_id HAVING count(*) > :gate_payments
    OR (CAST(sum(high) AS BIGINT) + CAST(sum(low) AS BIGINT) / 1000000000, CAST(sum(low) AS BIGINT) % 1000000000)
        > (CAST(:gate_value_micro AS BIGINT) / 1000000000, CAST(:gate_value_micro AS BIGINT) % 1000000000);

-- A sealed address is longer than any address, and a sealed request does not begin as JSON does.
-- name: i14_addresses_and_requests_are_sealed
SELECT 'paygates ' || id AS subject, 'payment_address' AS found FROM paygates WHERE length(payment_address) < 61
UNION ALL SELECT 'paygate_versions ' || gate_id || '/' || version, 'pay_to' FROM paygate_versions WHERE length(pay_to) < 61
UNION ALL SELECT 'purchases ' || id, 'pay_to' FROM purchases WHERE updated_ms >= :since_ms AND length(pay_to) < 61
UNION ALL SELECT 'purchases ' || id, 'request' FROM purchases WHERE updated_ms >= :since_ms AND substr(request, 1, 1) = :brace;

-- name: i14_secrets_are_hashed
SELECT 'paygates ' || id AS subject, 'management_hash' AS found FROM paygates WHERE length(management_hash) <> 32
UNION ALL SELECT 'purchases ' || id, 'header_hash' FROM purchases WHERE updated_ms >= :since_ms AND length(header_hash) <> 32
UNION ALL SELECT 'refresh_tokens of ' || session_id, 'digest' FROM refresh_tokens WHERE length(digest) <> 32;

-- The counters are the answer to the owner's question what was earned; they are written in the commits that they count.
-- name: counters_are_the_sales
-- Revenue as it is counted: 10^18 so many times, and micro-units.
SELECT 'gate ' || c.gate_id AS subject, 'counted ' || c.purchases || ' for ' || c.revenue_high || ' times 10^18 and '
    || c.revenue_micro || ' micro-units, sold ' || coalesce(s.purchases, 0) || ' for ' || coalesce(s.high / 1000000000, 0)
    || ' times 10^18 and ' || coalesce(s.high % 1000000000 * 1000000000 + s.low, 0) AS found
FROM paygate_counters c
LEFT JOIN (
    SELECT gate_id, count(*) AS purchases, CAST(sum(value_micro / 1000000000) AS BIGINT) + CAST(sum(value_micro % 1000000000) AS BIGINT) / 1000000000 AS high,
        CAST(sum(value_micro % 1000000000) AS BIGINT) % 1000000000 AS low
    FROM (
        SELECT gate_id,
            CASE WHEN state = 'VOID' AND failure NOT LIKE 'gate_deleted%' THEN 0 ELSE CAST(value_micro AS BIGINT) END AS value_micro
        FROM purchases WHERE state IN ('LIVE', 'VOID')
    ) AS sold GROUP BY gate_id
) s ON s.gate_id = c.gate_id
WHERE c.purchases <> coalesce(s.purchases, 0) OR c.revenue_high <> coalesce(s.high / 1000000000, 0)
    OR c.revenue_micro <> coalesce(s.high % 1000000000 * 1000000000 + s.low, 0);

-- On Solana a payment names no end: minutes after it was signed it can be made no more.
-- name: i10_no_claim_open_long_after_its_end
SELECT id AS subject, state || ' since ' || attempt_ms || ' ms' AS found FROM purchases
WHERE state = 'CLAIMED' AND attempt_ms < CAST(:before_ms AS BIGINT) - 600000
    AND (valid_before_seconds < CAST(:now_seconds AS BIGINT) - 600 OR (valid_before_seconds IS NULL AND payer NOT LIKE '0x%'));
