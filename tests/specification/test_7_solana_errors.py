"""Specification 7 on Solana: what a refused payment, a wrong parameter and a failing target are told there."""

from __future__ import annotations

from solders.keypair import Keypair

from tests.gateway.recording_target import Received, Writer
from tests.specification.client import header
from tests.specification.program import bearer_header
from tests.specification.rows import row
from tests.specification.solana_world import NETWORK, SolanaWorld, payload

SIZE_LIMIT_BYTES = 10_485_760


@row("7-INVALID_SIGNATURE-payment-solana")
async def test_a_failed_payment_signature_has_type_payment(solana: SolanaWorld) -> None:
    world, gate = solana.world, await solana.gate()
    forged = await solana.payment(gate, is_signed=False)
    assert (await world.call(gate, forged)).refusal == (402, "INVALID_SIGNATURE", "payment")
    moved = await world.transfer(await solana.moving(is_signed=False))
    assert moved.refusal == (400, "INVALID_SIGNATURE", "payment")


@row("7-INVALID_ADDRESS-solana")
async def test_an_invalid_address_is_400(solana: SolanaWorld) -> None:
    world = solana.world
    gate = await solana.gate()
    for wrong in ("5zMMC9", "0x" + "71" * 20):
        answers = [
            await world.create(network=NETWORK, paymentAddress=wrong),
            await world.update(gate, paymentAddress=wrong),
            await world.transfer({**await solana.moving(), "recipient": wrong}),
            await world.transfer({**await solana.moving(), "asset": wrong}),
        ]
        assert [answer.refusal for answer in answers] == [(400, "INVALID_ADDRESS", "validation")] * 4


@row("7-INVALID_AMOUNT-solana")
async def test_an_invalid_amount_is_400(solana: SolanaWorld) -> None:
    world = solana.world
    asking = await solana.asking()
    asking["paymentRequirements"]["maxAmountRequired"] = "0.01"
    answers = [await world.verify(asking), await world.settle(asking)]
    answers += [await world.transfer({**await solana.moving(), "amount": wrong}) for wrong in ("0.01", "-1", -1)]
    assert [answer.refusal for answer in answers] == [(400, "INVALID_AMOUNT", "validation")] * 5


@row("7-INVALID_NETWORK-solana")
async def test_an_unsupported_network_is_400_and_402_in_a_payment(solana: SolanaWorld) -> None:
    world = solana.world
    bearer = bearer_header((await solana.login(Keypair()))["accessToken"])
    query = {"limit": "1", "network": "solana-testnet"}
    answers = [
        await world.create(network="solana-mainnet", paymentAddress=solana.owner),
        await world.create(network="solana-testnet", paymentAddress=solana.owner),
        await world.transfer({**await solana.moving(), "network": "solana-mainnet"}),
        await world.hub("GET", "/api/v1/history", params=query, headers=bearer),
    ]
    assert [answer.refusal for answer in answers] == [(400, "INVALID_NETWORK", "validation")] * 4
    gate = await solana.gate()
    elsewhere = header(payload(await solana.transaction(10_000), "solana-mainnet"))
    assert (await world.call(gate, elsewhere)).refusal == (402, "INVALID_NETWORK", "payment")


@row("7-MISSING_PARAMETER-solana")
async def test_a_missing_required_parameter_is_400_and_named(solana: SolanaWorld) -> None:
    world = solana.world
    body = await solana.moving()
    for name in ("payload", "network", "asset", "amount", "recipient"):
        refused = await world.transfer({key: value for key, value in body.items() if key != name})
        assert refused.refusal == (400, "MISSING_PARAMETER", "validation")
        assert refused.error["details"]["field"] == name


@row("7-PAYMENT_INVALID-solana")
async def test_a_payment_that_fails_verification_is_invalid(solana: SolanaWorld) -> None:
    world, gate = solana.world, await solana.gate()
    stranger = str((await solana.funded()).pubkey())
    for wrong in (
        "unreadable",
        await solana.payment(gate, recipient=stranger),
        await solana.payment(gate, value=10_001),
    ):
        assert (await world.call(gate, wrong)).refusal == (402, "PAYMENT_INVALID", "payment")
    moved = await world.transfer({**await solana.moving(), "recipient": stranger})
    assert moved.refusal == (400, "PAYMENT_INVALID", "payment")


@row("7-INSUFFICIENT_FUNDS-solana", "7-INSUFFICIENT_FUNDS-400-solana")
async def test_too_small_a_balance_is_named(solana: SolanaWorld, row_id: str) -> None:
    """So it is for a wallet that has no token account, which holds nothing."""
    world = solana.world
    for payer in (await solana.funded(9_999), await solana.funded(), Keypair()):
        if row_id == "7-INSUFFICIENT_FUNDS-solana":
            gate = await solana.gate()
            refused = await world.call(gate, await solana.payment(gate, payer=payer))
            assert refused.refusal == (402, "INSUFFICIENT_FUNDS", "payment")
        else:
            refused = await world.transfer(await solana.moving(payer=payer))
            assert refused.refusal == (400, "INSUFFICIENT_FUNDS", "payment")


@row("7-NONCE_ALREADY_USED-solana", "7-NONCE_ALREADY_USED-400-solana")
async def test_a_used_transaction_is_named(solana: SolanaWorld, row_id: str) -> None:
    world = solana.world
    asking = await solana.asking()
    transaction = (await world.settle({**asking, "confirm": True})).body["transaction"]
    if row_id == "7-NONCE_ALREADY_USED-solana":
        refused = await world.call(await solana.gate(), header(asking["paymentPayload"]))
        assert refused.refusal == (402, "NONCE_ALREADY_USED", "payment")
    else:
        moving = {**await solana.moving(), "payload": asking["paymentPayload"]["payload"]}
        refused = await world.transfer(moving)
        assert refused.refusal == (400, "NONCE_ALREADY_USED", "payment")
    assert refused.error["details"]["transaction"] == transaction
    assert world.target.requests == []


@row("7-INSUFFICIENT_AMOUNT-solana")
async def test_too_small_a_payment_is_named(solana: SolanaWorld) -> None:
    gate = await solana.gate()
    refused = await solana.world.call(gate, await solana.payment(gate, value=9_999))
    assert refused.refusal == (402, "INSUFFICIENT_AMOUNT", "payment")


@row("7-PAYMENT_EXPIRED-solana")
async def test_a_payment_whose_time_has_passed_is_named(solana: SolanaWorld) -> None:
    gate = await solana.gate()
    paid, moving = await solana.payment(gate), await solana.moving()
    await solana.node("sandbox_advance", 400)
    assert (await solana.world.call(gate, paid)).refusal == (402, "PAYMENT_EXPIRED", "payment")
    assert (await solana.world.transfer(moving)).refusal == (400, "PAYMENT_EXPIRED", "payment")


@row("7-proxy-2-solana")
async def test_too_large_a_response_consumes_the_credit(solana: SolanaWorld) -> None:
    async def sized(_request: Received, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (SIZE_LIMIT_BYTES + 1))
        writer.write(bytes(SIZE_LIMIT_BYTES + 1))

    world, gate = solana.world, await solana.gate(credits=2)
    world.target.answer = sized
    paid = await solana.payment(gate)
    for remaining in ("1", "0"):
        answer = await world.call(gate, paid)
        assert answer.refusal == (502, "UPSTREAM_TOO_LARGE", "server")
        assert answer.headers["x-credits-remaining"] == remaining
    assert (await world.call(gate, paid)).status == 402
