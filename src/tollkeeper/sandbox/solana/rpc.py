"""The sandbox's Solana chain as JSON-RPC: the methods that the official x402 stacks, solana-py and @solana/kit call.

A result that depends on the chain's state comes with its slot, as on a cluster. What the chain does is not decided
here.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

from tollkeeper.sandbox.rpc_server import INVALID_PARAMS, JsonRpcApp, ServedRpcError
from tollkeeper.sandbox.solana.chain import (
    FINAL_SLOTS,
    LAMPORTS_PER_SOL,
    RECENT_SLOTS,
    decoded,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.sandbox.solana.chain import EmbeddedSolanaChain, Executed

    Json = Any

_VERSION: Final = "2.0.0"
_BLOCK_NOT_AVAILABLE: Final = -32004
_SLOT_SKIPPED: Final = -32007
_AIRDROP_MAX: Final = 10 * LAMPORTS_PER_SOL
_SIGNATURES_MAX: Final = 1_000
_SLOTS_IN_EPOCH: Final = 432_000
_BLOCKS_LISTED_MAX: Final = 500_000
_ADVANCED_MAX: Final = 100_000


def solana_rpc_app(chain: EmbeddedSolanaChain) -> JsonRpcApp:
    """The chain as a table of methods."""
    return JsonRpcApp({**_of_cluster(chain), **_of_accounts(chain), **_of_transactions(chain), **_of_tests(chain)})


def _at(chain: EmbeddedSolanaChain, value: Json) -> Json:
    return {"context": {"apiVersion": _VERSION, "slot": chain.slot}, "value": value}


def _height(chain: EmbeddedSolanaChain, config: Json) -> int:
    is_final = isinstance(config, dict) and config.get("commitment") == "finalized"
    return max(0, chain.slot - FINAL_SLOTS) if is_final else chain.slot


def _of_cluster(chain: EmbeddedSolanaChain) -> dict[str, Callable[..., Json]]:
    def get_latest_blockhash(_config: Json = None) -> Json:
        return _at(chain, {"blockhash": chain.blockhash, "lastValidBlockHeight": chain.last_valid_slot})

    def get_epoch_info(config: Json = None) -> Json:
        height = _height(chain, config)
        return {
            "absoluteSlot": height,
            "blockHeight": height,
            "epoch": height // _SLOTS_IN_EPOCH,
            "slotIndex": height % _SLOTS_IN_EPOCH,
            "slotsInEpoch": _SLOTS_IN_EPOCH,
            "transactionCount": len(chain.executed),
        }

    def get_block_time(slot: int) -> int:
        seconds = chain.time_of(slot)
        if seconds is None:
            raise ServedRpcError(f"Block not available for slot {slot}", code=_BLOCK_NOT_AVAILABLE)
        return seconds

    def get_blocks(first: int, last: int | None = None, config: Json = None) -> list[int]:
        newest = _height(chain, config)
        end = newest if last is None else min(newest, last)
        if end - first > _BLOCKS_LISTED_MAX:
            raise ServedRpcError(f"Slot range too large; max {_BLOCKS_LISTED_MAX}", code=INVALID_PARAMS)
        return [slot for slot in range(max(first, chain.first_slot), end + 1) if slot not in chain.lacks]

    def get_block(slot: int, _config: Json = None) -> Json:
        """Without its transactions: each slot has a block here, so its height is its slot."""
        if slot > chain.slot:
            raise ServedRpcError(f"Block not available for slot {slot}", code=_BLOCK_NOT_AVAILABLE)
        if slot in chain.lacks or slot - 1 in chain.lacks:  # none is shown without its parent's hash
            message = f"Slot {slot} was skipped, or missing due to ledger jump to recent snapshot"
            raise ServedRpcError(message, code=_SLOT_SKIPPED)
        return {"blockHeight": slot, "parentSlot": max(0, slot - 1), "blockTime": chain.time_of(slot)}

    return {
        "getHealth": lambda: "ok",
        "getVersion": lambda: {"solana-core": _VERSION, "feature-set": 0},
        "getGenesisHash": lambda: chain.network.genesis_hash,
        "getSlot": lambda config=None: _height(chain, config),
        "getBlockHeight": lambda config=None: _height(chain, config),
        "getFirstAvailableBlock": lambda: chain.first_slot,
        "getBlockTime": get_block_time,
        "getBlocks": get_blocks,
        "getBlock": get_block,
        "getEpochInfo": get_epoch_info,
        "getLatestBlockhash": get_latest_blockhash,
        "isBlockhashValid": lambda blockhash, _config=None: _at(chain, chain.is_recent(blockhash)),
        "getMinimumBalanceForRentExemption": lambda size, _config=None: chain.rent(size),
    }


def _of_accounts(chain: EmbeddedSolanaChain) -> dict[str, Callable[..., Json]]:
    def account(address: str, config: Json = None) -> Json:
        found = chain.account(address)
        if found is None or not found.lamports:
            return None
        data = bytes(found.data)
        part = (config or {}).get("dataSlice") or {"offset": 0, "length": len(data)}
        shown = data[part["offset"] :][: part["length"]]
        return {
            "data": [base64.b64encode(shown).decode(), "base64"],
            "executable": found.executable,
            "lamports": found.lamports,
            "owner": str(found.owner),
            "rentEpoch": 0,
            "space": len(data),
        }

    def get_account_info(address: str, config: Json = None) -> Json:
        return _at(chain, account(address, config))

    def get_multiple_accounts(addresses: list[str], config: Json = None) -> Json:
        return _at(chain, [account(address, config) for address in addresses])

    def get_token_account_balance(address: str, _config: Json = None) -> Json:
        if account(address) is None:
            raise ServedRpcError("Invalid param: could not find account", code=INVALID_PARAMS)
        return _at(chain, _amount(chain.token_balance(address)))

    def request_airdrop(address: str, lamports: int, _config: Json = None) -> Json:
        if not 0 < lamports <= _AIRDROP_MAX:
            raise ServedRpcError("airdrop request failed")
        return chain.send_airdrop(address, lamports)

    return {
        "getAccountInfo": get_account_info,
        "getMultipleAccounts": get_multiple_accounts,
        "getBalance": lambda address, _config=None: _at(chain, chain.balance(address)),
        "getTokenAccountBalance": get_token_account_balance,
        "requestAirdrop": request_airdrop,
    }


def _of_transactions(chain: EmbeddedSolanaChain) -> dict[str, Callable[..., Json]]:
    def simulate_transaction(text: str, config: Json = None) -> Json:
        wanted = config or {}
        replaces = bool(wanted.get("replaceRecentBlockhash"))
        checks = bool(wanted.get("sigVerify"))
        simulated = chain.simulate(decoded(text), replaces_blockhash=replaces, checks_signatures=checks)
        new = {"blockhash": chain.blockhash, "lastValidBlockHeight": chain.last_valid_slot}
        value = {
            "err": simulated.error,
            "logs": simulated.logs,
            "accounts": None,
            "unitsConsumed": simulated.compute_units,
            "returnData": None,
            "innerInstructions": None,
            "loadedAccountsDataSize": 0,
            "replacementBlockhash": new if replaces else None,
        }
        return _at(chain, value)

    def send_transaction(text: str, config: Json = None) -> Json:
        skips = bool((config or {}).get("skipPreflight"))
        return chain.send(decoded(text), skips_preflight=skips)

    def get_signature_statuses(signatures: list[str], _config: Json = None) -> Json:
        return _at(chain, [_status(chain, chain.found(signature)) for signature in signatures])

    def get_transaction(signature: str, config: Json = None) -> Json:
        executed = chain.found(signature)
        is_final_wanted = isinstance(config, dict) and config.get("commitment") == "finalized"
        if executed is None or (is_final_wanted and not chain.is_final(executed.slot)):
            return None
        return _transaction(executed, chain.token_program)

    def get_signatures_for_address(address: str, config: Json = None) -> Json:
        wanted = config or {}
        is_confirmed_enough = wanted.get("commitment") == "confirmed"
        found = [
            {
                "signature": name,
                "slot": one.slot,
                "err": one.error,
                "memo": None,
                "blockTime": one.time_seconds,
                "confirmationStatus": _depth(chain, one),
            }
            for name, one in reversed(chain.executed.items())
            if address in one.accounts
            and one.slot not in chain.lacks
            and (is_confirmed_enough or chain.is_final(one.slot))
        ]
        names = [one["signature"] for one in found]
        start = names.index(wanted["before"]) + 1 if "before" in wanted else 0
        return found[start : start + wanted.get("limit", _SIGNATURES_MAX)]

    return {
        "getSignaturesForAddress": get_signatures_for_address,
        "simulateTransaction": simulate_transaction,
        "sendTransaction": send_transaction,
        "getSignatureStatuses": get_signature_statuses,
        "getTransaction": get_transaction,
    }


def _of_tests(chain: EmbeddedSolanaChain) -> dict[str, Callable[..., Json]]:
    """Return the methods for tests, which no cluster has."""

    def advance(slots: int = RECENT_SLOTS + 1) -> int:
        if slots > _ADVANCED_MAX:  # nobody is answered meanwhile
            raise ValueError(f"at most {_ADVANCED_MAX} slots at a time")
        chain.next_slot(slots)
        return chain.slot

    def hold() -> bool:
        chain.holds = True
        return True

    def release() -> bool:
        chain.release()
        return True

    def drop() -> bool:
        chain.drop()
        return True

    return {
        "sandbox_advance": advance,
        "sandbox_hold": hold,
        "sandbox_heldCount": lambda: chain.held_count,
        "sandbox_release": release,
        "sandbox_drop": drop,
        "sandbox_rollBack": chain.roll_back,
        "sandbox_openAccount": lambda owner, amount=0: chain.open_account(owner, amount),
    }


def _amount(amount: int) -> Json:
    text = f"{amount // 10**6}.{amount % 10**6:06}".rstrip("0").rstrip(".")
    return {"amount": str(amount), "decimals": 6, "uiAmountString": text, "uiAmount": None}


def _status(chain: EmbeddedSolanaChain, executed: Executed | None) -> Json:
    if executed is None:
        return None
    is_final = chain.is_final(executed.slot)
    return {
        "slot": executed.slot,
        "confirmations": None if is_final else chain.slot - executed.slot + 1,
        "err": executed.error,
        "status": {"Ok": None} if executed.error is None else {"Err": executed.error},
        "confirmationStatus": _depth(chain, executed),
    }


def _depth(chain: EmbeddedSolanaChain, executed: Executed) -> str:
    return "finalized" if chain.is_final(executed.slot) else "confirmed"


def _transaction(executed: Executed, program: str) -> Json:
    return {
        "slot": executed.slot,
        "blockTime": executed.time_seconds,
        "version": 0,
        "transaction": [base64.b64encode(executed.raw).decode(), "base64"],
        "meta": {
            "err": executed.error,
            "status": {"Ok": None} if executed.error is None else {"Err": executed.error},
            "fee": executed.fee,
            "logMessages": executed.logs,
            "computeUnitsConsumed": executed.compute_units,
            "preBalances": [],
            "postBalances": [],
            "innerInstructions": [],
            "preTokenBalances": [],
            "postTokenBalances": [
                {
                    "accountIndex": place,
                    "mint": one.mint,
                    "owner": one.owner,
                    "programId": program,
                    "uiTokenAmount": _amount(one.amount),
                }
                for place, one in executed.held.items()
            ],
            "rewards": [],
            "loadedAddresses": {"readonly": [], "writable": []},
        },
    }
