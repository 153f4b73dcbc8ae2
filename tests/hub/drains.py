"""Transactions that would make a careless fee payer pay more than a fee, or a fee for something else (A-27 to A-32).

Each has a name and is made for one blockhash, payer and fee payer: what a careless fee payer signed would be executed,
or fail for a fee. `FAMILIES` says which of them are attacks of one kind, and by which words they are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from solders.hash import Hash
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from tests.core.solana_payments import (
    DEVNET,
    Draft,
    account_of,
    compute_limit,
    compute_price,
    encoded,
    instruction,
    key,
    lighthouse,
    memo,
    readable,
    signer,
    transfer,
    writable,
)
from tests.hub.odd_bytes import odd_bytes
from tollkeeper.core.solana.programs import (
    ASSOCIATED_TOKEN_PROGRAM,
    COMPUTE_BUDGET_PROGRAM,
    MEMO_PROGRAM,
    SYSTEM_PROGRAM,
    TOKEN_2022_PROGRAM,
    TOKEN_PROGRAM,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tollkeeper.core.x402.version1 import SolanaPayload

_LAMPORTS = (10**9).to_bytes(8, "little")
_STAKE = "Stake11111111111111111111111111111111111111"
_VOTE = "Vote111111111111111111111111111111111111111"
_TABLES = "AddressLookupTab1e1111111111111111111111111"
_LOADER = "BPFLoaderUpgradeab1e11111111111111111111111"
_BY_SIGNATURE: Final = {
    "Ed25519": "Ed25519SigVerify111111111111111111111111111",
    "secp256k1": "KeccakSecp256k11111111111111111111111111111",
    "secp256r1": "Secp256r1SigVerify1111111111111111111111111",
}
_JUDGED = 20  # signatures in one instruction, at the price of a transaction's own
_SECOND = Keypair.from_seed(b"\x51" * 32)


@dataclass(frozen=True)
class Scene:
    """Who would be robbed, by whom, of what, and for whom."""

    fee_payer: Keypair
    thief: Keypair
    pay_to: str
    blockhash: str
    amount: int = 1_000

    def draft(self, *instructions: Instruction, signers: tuple[Keypair, ...] = ()) -> SolanaPayload:
        """Signed by the thief and whoever helps."""
        signed = (self.thief, *signers)
        blockhash = bytes(Hash.from_string(self.blockhash))
        return Draft(instructions, self.fee_payer.pubkey(), signed, blockhash).payload()

    def usual(self) -> tuple[Instruction, Instruction, Instruction]:
        """The honest three."""
        moved = transfer(self.amount, payer=self.thief.pubkey(), pay_to=self.pay_to)
        return compute_limit(), compute_price(), moved


def _both(address: Pubkey) -> AccountMeta:
    return AccountMeta(address, is_signer=True, is_writable=True)


def _system(scene: Scene, owner: Pubkey, who: str) -> Iterator[tuple[str, Instruction]]:
    thief = scene.thief.pubkey()
    system = key(SYSTEM_PROGRAM)
    nonce = [writable(account_of(owner)), readable(key("SysvarRecentB1ockHashes11111111111111111111")), signer(owner)]
    made = {
        "transfer of lamports": (b"\x02\0\0\0" + _LAMPORTS, [_both(owner), writable(thief)]),
        "account": (b"\0\0\0\0" + _LAMPORTS + bytes(8) + bytes(system), [_both(owner), _both(_SECOND.pubkey())]),
        "new owner": (b"\x01\0\0\0" + bytes(key(TOKEN_PROGRAM)), [_both(owner)]),
        "allocation": (b"\x08\0\0\0" + (10**6).to_bytes(8, "little"), [_both(owner)]),
        "advanced nonce": (b"\x04\0\0\0", nonce),
        "withdrawal from a nonce account": (b"\x05\0\0\0" + _LAMPORTS, [writable(account_of(owner)), *nonce]),
    }
    for name, (data, accounts) in made.items():
        yield f"{name} by {who}", instruction(SYSTEM_PROGRAM, data, accounts)


def _token(owner: Pubkey, thief: Pubkey, who: str) -> Iterator[tuple[str, Instruction]]:
    account, thiefs, mint = writable(account_of(owner)), writable(account_of(thief)), writable(key(DEVNET.address))
    made = {
        "plain token transfer": (b"\x03" + bytes(8), [account, thiefs, signer(owner)]),
        "approval": (b"\x04" + b"\xff" * 8, [account, readable(thief), signer(owner)]),
        "approval with decimals": (b"\x0d" + b"\xff" * 8 + b"\x06", [account, mint, readable(thief), signer(owner)]),
        "new authority": (b"\x06\x02\x01" + bytes(thief), [account, signer(owner)]),
        "closed account": (b"\x09", [account, writable(thief), signer(owner)]),
        "burnt tokens": (b"\x08" + bytes(8), [account, mint, signer(owner)]),
        "minted tokens": (b"\x07" + _LAMPORTS, [mint, thiefs, signer(owner)]),
        "frozen account": (b"\x0a", [account, mint, signer(owner)]),
        "wrapped lamports": (b"\x11", [account]),
    }
    for name, (data, accounts) in made.items():
        yield f"{name} of {who}", instruction(TOKEN_PROGRAM, data, accounts)


def _accounts(funder: Pubkey, who: str) -> Iterator[tuple[str, Instruction]]:
    owner = _SECOND.pubkey()
    accounts = [
        _both(funder),
        writable(account_of(owner)),
        readable(owner),
        readable(key(DEVNET.address)),
        readable(key(SYSTEM_PROGRAM)),
        readable(key(TOKEN_PROGRAM)),
    ]
    for name, data in {"token account": b"", "token account where there is none": b"\x01"}.items():
        yield f"{name} at the cost of {who}", instruction(ASSOCIATED_TOKEN_PROGRAM, data, accounts)


def _programs(owner: Pubkey) -> Iterator[tuple[str, Instruction]]:
    for program in (_STAKE, _VOTE, _TABLES, _LOADER, str(_SECOND.pubkey())):
        yield f"call of {program}", instruction(program, b"\x01\0\0\0", [_both(owner)])
        yield f"call of {program} without accounts", instruction(program, b"\x01\0\0\0")


def _judged_signatures(thief: Keypair) -> Iterator[tuple[str, Instruction]]:
    """Programs that judge signatures: whoever pays the fee pays for each of them."""
    for name, program in _BY_SIGNATURE.items():
        yield f"signatures by {name}", instruction(program, bytes([_JUDGED, 0]) + bytes(14 * _JUDGED))
    said = b"as often as you like"
    at = 2 + 14 * _JUDGED
    places = (at + 32, 0xFFFF, at, 0xFFFF, at + 96, len(said), 0xFFFF)
    one = b"".join(place.to_bytes(2, "little") for place in places)
    data = bytes([_JUDGED, 0]) + one * _JUDGED + bytes(thief.pubkey()) + bytes(thief.sign_message(said)) + said
    yield "signatures that hold", instruction(_BY_SIGNATURE["Ed25519"], data)


def _bad_instructions(scene: Scene) -> Iterator[tuple[str, Instruction]]:
    ours, thief = scene.fee_payer.pubkey(), scene.thief.pubkey()
    for owner, who in ((ours, "us"), (thief, "the payer")):
        yield from _system(scene, owner, who)
        yield from _token(owner, thief, who)
        yield from _accounts(owner, who)
    yield from _programs(ours)
    yield from _judged_signatures(scene.thief)


def _budgets(scene: Scene) -> Iterator[tuple[str, SolanaPayload]]:
    limit, price, moved = scene.usual()
    heap = instruction(COMPUTE_BUDGET_PROGRAM, b"\x01" + (2**18).to_bytes(4, "little"))
    loaded = instruction(COMPUTE_BUDGET_PROGRAM, b"\x04" + (2**20).to_bytes(4, "little"))
    old = instruction(COMPUTE_BUDGET_PROGRAM, b"\0" + (10**6).to_bytes(4, "little") + (10**9).to_bytes(4, "little"))
    for name, used in {
        "no limit": (price, moved, memo()),
        "no price": (limit, moved, memo()),
        "neither limit nor price": (moved, memo(), memo()),
        "price before limit": (price, limit, moved),
        "two limits": (limit, limit, price, moved),
        "two prices": (limit, price, price, moved),
        "a second limit at the end": (limit, price, moved, compute_limit(1_400_000)),
        "a second price at the end": (limit, price, moved, compute_price(2**64 - 1)),
        "a limit just too high": (compute_limit(400_001), price, moved),
        "the highest limit": (compute_limit(2**32 - 1), price, moved),
        "a price just too high": (limit, compute_price(100_001), moved),
        "the reference's highest price": (limit, compute_price(5_000_000), moved),
        "the highest price": (limit, compute_price(2**64 - 1), moved),
        "the old request": (old, price, moved),
        "a heap frame first": (heap, price, moved),
        "a heap frame at the end": (limit, price, moved, heap),
        "a limit of loaded data": (limit, price, moved, loaded),
        "a long limit": (instruction(COMPUTE_BUDGET_PROGRAM, bytes(limit.data) + b"\0"), price, moved),
        "a short price": (limit, instruction(COMPUTE_BUDGET_PROGRAM, bytes(price.data)[:-1]), moved),
        "nothing else": (limit, price),
        "too much": (limit, price, moved, *[memo()] * 5),
    }.items():
        yield f"budget: {name}", scene.draft(*used)


def _transfers(scene: Scene) -> Iterator[tuple[str, SolanaPayload]]:
    limit, price, moved = scene.usual()
    ours, thief = scene.fee_payer.pubkey(), scene.thief.pubkey()
    other_mint = str(_SECOND.pubkey())
    data, accounts = bytes(moved.data), list(moved.accounts)
    for name, bad in {
        "from our account": transfer(scene.amount, payer=ours, pay_to=str(thief)),
        "another mint": transfer(scene.amount, payer=thief, pay_to=scene.pay_to, mint=other_mint),
        "other decimals": transfer(scene.amount, payer=thief, pay_to=scene.pay_to, decimals=0),
        "Token-2022": transfer(scene.amount, payer=thief, pay_to=scene.pay_to, program=TOKEN_2022_PROGRAM),
        "a fee of Token-2022": instruction(TOKEN_2022_PROGRAM, b"\x1a\x01" + data[1:] + bytes(8), accounts),
        "a signer of a multisignature wallet": instruction(TOKEN_PROGRAM, data, [*accounts, signer(ours)]),
        "a fifth account": instruction(TOKEN_PROGRAM, data, [*accounts, readable(thief)]),
        "three accounts": instruction(TOKEN_PROGRAM, data, accounts[:3]),
        "a byte too many": instruction(TOKEN_PROGRAM, data + b"\0", accounts),
        "a byte too few": instruction(TOKEN_PROGRAM, data[:-1], accounts),
        "of no program": instruction(MEMO_PROGRAM, data, accounts),
        "from us as account": transfer(scene.amount, payer=thief, pay_to=scene.pay_to, source=ours),
        "of nothing": transfer(0, payer=thief, pay_to=scene.pay_to),
        "of the recipient's to itself": transfer(
            scene.amount, payer=thief, pay_to=scene.pay_to, source=account_of(scene.pay_to)
        ),
        "of the thief's to itself": transfer(scene.amount, payer=thief, pay_to=str(thief)),
        "to us as account": transfer(scene.amount, payer=thief, pay_to=scene.pay_to, destination=ours),
    }.items():
        yield f"transfer: {name}", scene.draft(limit, price, bad)
    yield "transfer: twice", scene.draft(limit, price, moved, moved)
    yield "transfer: of us afterwards", scene.draft(limit, price, moved, transfer(1, payer=ours, pay_to=str(thief)))


def _signers(scene: Scene) -> Iterator[tuple[str, SolanaPayload]]:
    usual = scene.usual()
    ours, blockhash = scene.fee_payer.pubkey(), bytes(Hash.from_string(scene.blockhash))
    helped = instruction(MEMO_PROGRAM, b"x", [signer(_SECOND.pubkey())])
    yield "signers: a third", scene.draft(*usual, helped, signers=(_SECOND,))
    yield "signers: a third that did not sign", scene.draft(*usual, helped)
    yield "signers: we sign a memo", scene.draft(*usual, instruction(MEMO_PROGRAM, b"we agree", [signer(ours)]))
    yield "signers: we are read by a memo", scene.draft(*usual, instruction(MEMO_PROGRAM, b"x", [readable(ours)]))
    yield "signers: we are asserted about", scene.draft(*usual, lighthouse(ours))
    yield "signers: nobody", Draft(usual, ours, (), blockhash).payload()
    yield "signers: somebody else", Draft(usual, ours, (_SECOND,), blockhash).payload()
    yield "signers: the payer pays", Draft(usual, scene.thief.pubkey(), (scene.thief,), blockhash).payload()
    yield "signers: a stranger pays", Draft(usual, _SECOND.pubkey(), (scene.thief,), blockhash).payload()


def _bytes(scene: Scene) -> Iterator[tuple[str, SolanaPayload]]:
    blockhash = bytes(Hash.from_string(scene.blockhash))
    raw = bytes(Draft(scene.usual(), scene.fee_payer.pubkey(), (scene.thief,), blockhash).transaction())
    yield "bytes: a lookup table", encoded(raw[:-1] + b"\x01" + bytes(32) + b"\x01\x00\x00")
    yield "bytes: an unused lookup table", encoded(raw[:-1] + b"\x01" + bytes(32) + b"\x00\x00")
    yield "bytes: something behind", encoded(raw + b"\x00")
    yield "bytes: something missing", encoded(raw[:-1])
    yield "bytes: version 1", encoded(raw[:129] + b"\x81" + raw[130:])
    yield "bytes: a long length", encoded(b"\x82\x00" + raw[1:])
    for bit in (0, 255, 256, 511):
        changed = bytearray(raw)
        changed[65 + bit // 8] ^= 1 << bit % 8
        yield f"bytes: bit {bit} of the signature", encoded(bytes(changed))
    for name, at in {"amount": len(raw) - 10, "blockhash": raw.index(blockhash)}.items():
        changed = bytearray(raw)
        changed[at] ^= 1
        yield f"bytes: another {name} than was signed", encoded(bytes(changed))


def _derived_otherwise(owner: str) -> dict[str, Pubkey]:
    """Accounts whose addresses follow from the right parts, and not as a wallet's token account does."""
    wallet, token, mint = (bytes(key(one)) for one in (owner, TOKEN_PROGRAM, DEVNET.address))
    program = key(ASSOCIATED_TOKEN_PROGRAM)
    _, usual = Pubkey.find_program_address([wallet, token, mint], program)
    hashed = (wallet + token + mint + bytes([bump]) + bytes(program) for bump in range(usual - 1, -1, -1))
    others = (Pubkey(sha256(one + b"ProgramDerivedAddress").digest()) for one in hashed)
    lower = next(one for one in others if not one.is_on_curve())
    return {
        "with another bump": lower,
        "in another order": Pubkey.find_program_address([mint, token, wallet], program)[0],
        "without the token's program": Pubkey.find_program_address([wallet, mint], program)[0],
        "by the token's program": Pubkey.find_program_address([wallet, token, mint], key(TOKEN_PROGRAM))[0],
    }


def misdirected(scene: Scene) -> dict[str, SolanaPayload]:
    """Payments that are right but for whose account is paid, by their names. What is asked decides, so not `drains`."""
    thief, ours, second = (str(one.pubkey()) for one in (scene.thief, scene.fee_payer, _SECOND))
    accounts = {f"to {whose} account": account_of(who) for whose, who in (("the thief's", thief), ("our", ours))}
    accounts |= {"to a stranger's account": account_of(second), "to the recipient": key(scene.pay_to)}
    accounts |= {
        "to the thief": key(thief),
        "to the recipient's account of Token-2022": account_of(scene.pay_to, token_program=TOKEN_2022_PROGRAM),
        "to the recipient's account of another mint": account_of(scene.pay_to, mint=second),
    }
    accounts |= {f"to an account derived {how}": account for how, account in _derived_otherwise(scene.pay_to).items()}
    limit, price, _ = scene.usual()
    return {
        f"misdirected: {name}": scene.draft(
            limit, price, transfer(scene.amount, payer=scene.thief.pubkey(), destination=destination)
        )
        for name, destination in accounts.items()
    }


@dataclass(frozen=True)
class Attack:
    """One kind of attack: how the names of its transactions begin, and the ends of the words that refuse them."""

    names: tuple[str, ...]
    reasons: frozenset[str]

    def of(self, found: dict[str, SolanaPayload]) -> dict[str, SolanaPayload]:
        """Those that are attacks of this kind."""
        return {name: payload for name, payload in found.items() if name.startswith(self.names)}


_USED: Final = "fee_payer_included_in_instruction_accounts"
_LIMIT, _PRICE = "compute_limit_instruction", "compute_price_instruction"
# What an instruction that does not belong there is told, by its place: first, second or third, or behind them.
_OTHER: Final = frozenset({_LIMIT, "_instructions", "not_a_transfer_instruction", "not_spl_token_transfer_checked"})
_ANYWHERE: Final = _OTHER | {_USED}
FAMILIES: Final = {
    "a transfer of lamports": Attack(("transfer of lamports",), _ANYWHERE),
    "an approval": Attack(("approval",), _ANYWHERE),
    "a closed account": Attack(("closed account",), _ANYWHERE),
    "a new authority": Attack(("new authority", "new owner"), _ANYWHERE),
    "an account at our cost": Attack(("account by", "allocation by"), _ANYWHERE),
    "a token account at our cost": Attack(("token account",), _ANYWHERE),
    "our fee payer as authority": Attack(
        (
            *("transfer: from our account", "transfer: of us afterwards", "plain token transfer of us"),
            *("burnt tokens of us", "transfer: a signer of a multisignature", "signers: we sign"),
        ),
        frozenset({_USED}),
    ),
    "a priority fee": Attack(
        ("budget: a limit just", "budget: a price just", "budget: the highest", "budget: the reference's"),
        frozenset({f"{_LIMIT}_too_high", f"{_PRICE}_too_high"}),
    ),
    "a budget that is missing or there twice": Attack(
        ("budget: no ", "budget: neither", "budget: two", "budget: a second", "budget: price before"),
        frozenset({_LIMIT, _PRICE, "_instructions"}),
    ),
    "a lookup table": Attack(("bytes: a lookup table", "bytes: an unused lookup"), frozenset({"payload_transaction"})),
    "more signers": Attack(("signers: a third",), frozenset({"excessive_signers"})),
    "something else than was signed": Attack(
        ("bytes: another", "bytes: bit", "signers: nobody", "signers: somebody else"), frozenset({"signature_invalid"})
    ),
    "a length in another spelling": Attack(("length:",), frozenset({"payload_transaction"})),
    "a header that lies": Attack(("header:",), frozenset({"payload_transaction", "excessive_signers"})),
    "an account or a program that is not there": Attack(
        ("position:", "account named twice", "end:"), frozenset({"payload_transaction"})
    ),
    "signatures that we would pay for": Attack(("signatures ",), _OTHER),
    "a nonce account": Attack(("advanced nonce", "withdrawal from a nonce"), _ANYWHERE),
    "another mint": Attack(("transfer: another mint",), frozenset({"mint_mismatch"})),
    "other decimals": Attack(("transfer: other decimals",), frozenset({"mint_mismatch"})),
    "an account that pays itself": Attack(
        ("transfer: of the recipient's to itself", "transfer: of the thief's to itself"),
        frozenset({"transfer_to_incorrect_ata"}),
    ),
    "another account": Attack(("misdirected",), frozenset({"transfer_to_incorrect_ata", _USED})),
}


def drains(scene: Scene) -> dict[str, SolanaPayload]:
    """Every transaction that must get no signature, by its name."""
    odd = odd_bytes(scene.draft(*scene.usual()), lambda message: bytes(scene.thief.sign_message(message)))
    found = dict([*_budgets(scene), *_transfers(scene), *_signers(scene), *_bytes(scene), *odd])
    for name, bad in _bad_instructions(scene):
        limit, price, moved = scene.usual()
        found[f"{name}, first"] = scene.draft(bad, limit, price, moved, signers=(_SECOND,))
        found[f"{name}, before the transfer"] = scene.draft(limit, price, bad, moved, signers=(_SECOND,))
        found[f"{name}, in place of the transfer"] = scene.draft(limit, price, bad, signers=(_SECOND,))
        found[f"{name}, at the end"] = scene.draft(limit, price, moved, bad, signers=(_SECOND,))
    return found
