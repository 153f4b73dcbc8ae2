"""The embedded Solana chain: LiteSVM with a clock of slots, blockhashes and what was executed (specification 2.4).

LiteSVM runs the real token programs; what a cluster does around it is added here: a blockhash that moves with every
slot and is recent for 150 of them, signatures checked on sending and not on simulating, a transaction executed once,
finality some slots later. There is one validator, no fork and no stake. Play money only.
"""

from __future__ import annotations

import base64
import binascii
import json
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from solders.account import Account
from solders.keypair import Keypair
from solders.litesvm import LiteSVM
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.rpc.responses import RpcResponseContext, RpcSimulateTransactionResult, SimulateTransactionResp
from solders.system_program import TransferParams, transfer
from solders.token.state import Mint, TokenAccount, TokenAccountState
from solders.transaction import VersionedTransaction
from solders.transaction_metadata import FailedTransactionMetadata

from tollkeeper.chains.solana.config import LAMPORTS_PER_SIGNATURE
from tollkeeper.core.networks import NETWORKS, Network
from tollkeeper.core.solana.programs import (
    RECENT_BLOCKHASHES_SYSVAR,
    TOKEN_PROGRAM,
    associated_token_account,
    read_mint,
    read_token_account,
)
from tollkeeper.core.solana.programs import TokenAccount as Held
from tollkeeper.core.solana.rules import FEE_PAYER_WITHOUT_MONEY
from tollkeeper.sandbox.rpc_server import INVALID_PARAMS, ServedRpcError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NETWORK: Final = NETWORKS["solana-devnet"]
RECENT_SLOTS: Final = 150
TIMES_KEPT: Final = 10_000  # slots whose time is known, more than an hour of them
FINAL_SLOTS: Final = 32
LAMPORTS_PER_SOL: Final = 10**9
_BAD_SIGNATURE: Final = "SignatureFailure"
_SIMULATION_FAILED: Final = -32002
_SIGNATURE_FAILURE: Final = -32003
_MINT_SUPPLY: Final = 10**15
_DECIMALS: Final = NETWORK.usdc.decimals


class TransactionRefused(ServedRpcError):  # noqa: N818 - the chain's answer, not a fault
    """A node does not take this transaction. `error` is the chain's word for it, None where there is none."""

    def __init__(self, message: str, error: object = None) -> None:
        self.error = error
        if error is None:
            super().__init__(message, code=INVALID_PARAMS)
        elif error == _BAD_SIGNATURE:
            super().__init__(message, code=_SIGNATURE_FAILURE)
        else:
            data = {"err": error, "logs": [], "accounts": None, "unitsConsumed": 0, "returnData": None}
            super().__init__(message, code=_SIMULATION_FAILED, data=data)


@dataclass(frozen=True, slots=True)
class Executed:
    """A transaction that is on the chain. `error` None is success; `fee` is in lamports.

    `held`: the token accounts behind it, by their places in the message.
    """

    slot: int
    time_seconds: int
    error: Any
    logs: list[str]
    compute_units: int
    fee: int
    raw: bytes
    accounts: frozenset[str]
    held: dict[int, Held]


@dataclass(frozen=True, slots=True)
class SolanaSimulation:
    """Result of executing a transaction now."""

    error: Any
    logs: list[str]
    compute_units: int


class EmbeddedSolanaChain:
    """One chain. With `holds` set, what is sent waits until it is cleared; it may expire there."""

    def __init__(self, network: Network = NETWORK, token_program: str = TOKEN_PROGRAM) -> None:
        """A chain that says it is this network, with the token's mint and nobody on it."""
        self.network = network
        self.token_program = token_program
        self.mint = network.usdc.address
        self.slot = 1
        self.holds = False
        self.first_slot = 0  # what was before it, a node no longer has
        self.lacks = range(0)  # slots between, as of a node that was away and began anew from a snapshot
        self.ahead_seconds = 0  # of the clock, are the times of its next blocks
        self.executed: dict[str, Executed] = {}
        # Signatures and blockhashes are judged here: LiteSVM's own checks would also refuse simulations.
        # What was executed is remembered here too, so that it can be taken back.
        self._svm = LiteSVM().with_sigverify(False).with_blockhash_check(False).with_transaction_history(0)  # noqa: FBT003
        self._times: OrderedDict[int, int] = OrderedDict()  # slot -> the Unix time of its block
        self._recent: OrderedDict[str, int] = OrderedDict()  # blockhash -> the last slot in which it is recent
        self._waiting: dict[str, VersionedTransaction] = {}
        self._messages: set[bytes] = set()  # that were executed
        self._before: dict[str, dict[Pubkey, Account]] = {}  # by signature: what the transaction found
        self._remember_blockhash()
        token = bytes(Mint(None, _MINT_SUPPLY, _DECIMALS, is_initialized=True, freeze_authority=None))
        self._put(self.mint, token)

    @property
    def blockhash(self) -> str:
        """The newest blockhash."""
        return str(self._svm.latest_blockhash())

    @property
    def last_valid_slot(self) -> int:
        """The last slot in which a transaction with the newest blockhash can be executed."""
        return self._recent[self.blockhash]

    def is_recent(self, blockhash: str) -> bool:
        """Tell whether a transaction with this blockhash may still be executed."""
        return self._recent.get(blockhash, -1) >= self.slot

    def time_of(self, slot: int) -> int | None:
        """The Unix time of a slot's block; None where it is not there, or no longer known."""
        return self._times.get(slot)

    def found(self, signature: str) -> Executed | None:
        """A transaction that was executed, where the node has its block."""
        executed = self.executed.get(signature)
        return None if executed is None or executed.slot in self.lacks else executed

    def is_final(self, slot: int) -> bool:
        """Tell whether this slot was finalised."""
        return slot <= self.slot - FINAL_SLOTS

    def next_slot(self, count: int = 1) -> None:
        """Let slots pass; each has a blockhash of its own."""
        for _ in range(count):
            self.slot += 1
            self._svm.expire_blockhash()
            self._remember_blockhash()
        if not self.holds:
            self.release()

    def release(self) -> None:
        """Execute what was held; what has expired is gone."""
        self.holds = False
        waiting, self._waiting = self._waiting, {}
        for transaction in waiting.values():
            if self.is_recent(str(transaction.message.recent_blockhash)):
                self._execute(transaction)

    @property
    def held_count(self) -> int:
        """How many transactions wait."""
        return len(self._waiting)

    def drop(self) -> None:
        """Lose what was held, as a node that restarts does."""
        self._waiting = {}

    def roll_back(self, slots: int) -> int:
        """Leave the fork: what was executed in the last so many slots never was. Returns how many transactions."""
        gone = [name for name, executed in self.executed.items() if executed.slot > self.slot - slots]
        for signature in reversed(gone):
            executed = self.executed.pop(signature)
            self._messages.discard(bytes(VersionedTransaction.from_bytes(executed.raw).message))
            for address, account in self._before.pop(signature).items():
                self._svm.set_account(address, account)
        return len(gone)

    def airdrop(self, owner: str, lamports: int) -> None:
        """Give an account lamports."""
        self._svm.airdrop(Pubkey.from_string(owner), lamports)

    def send_airdrop(self, owner: str, lamports: int) -> str:
        """Give an account lamports by a transaction, as a cluster's faucet does. Returns its signature.

        Raises: TransactionRefused where it could not be executed; ValueError for what is no address.
        """
        faucet, to = Keypair(), Pubkey.from_string(owner)  # a new one each time: no two transactions are alike
        money = Account(lamports + LAMPORTS_PER_SIGNATURE, b"", Pubkey.default(), executable=False)
        self._svm.set_account(faucet.pubkey(), money)
        given = transfer(TransferParams(from_pubkey=faucet.pubkey(), to_pubkey=to, lamports=lamports))
        message = MessageV0.try_compile(faucet.pubkey(), [given], [], self._svm.latest_blockhash())
        return self.send(bytes(VersionedTransaction(message, [faucet])), skips_preflight=False)

    def drain(self, owner: str) -> None:
        """Take all lamports from an account."""
        self._svm.set_account(Pubkey.from_string(owner), Account(0, b"", Pubkey.default(), executable=False))

    def open_account(self, owner: str, amount: int = 0) -> str:
        """The owner's token account, made where it is missing, with so much more in it. Returns its address."""
        address = associated_token_account(owner, self.mint, self.token_program)
        state = TokenAccount(
            mint=Pubkey.from_string(self.mint),
            owner=Pubkey.from_string(owner),
            amount=self.token_balance(address) + amount,
            delegate=None,
            state=TokenAccountState.Initialized,
            is_native=None,
            delegated_amount=0,
            close_authority=None,
        )
        self._put(address, bytes(state))
        return address

    def token_balance(self, account: str) -> int:
        """Base units in a token account; 0 where there is none."""
        found = self.account(account)
        return 0 if found is None else TokenAccount.from_bytes(bytes(found.data)).amount

    def balance(self, address: str) -> int:
        """Lamports."""
        return self._svm.get_balance(Pubkey.from_string(address)) or 0

    def account(self, address: str) -> Account | None:
        """The account at an address."""
        if address == RECENT_BLOCKHASHES_SYSVAR:
            return self._listed_blockhashes()
        return self._svm.get_account(Pubkey.from_string(address))

    def rent(self, size_bytes: int) -> int:
        """Lamports that make an account of this size exempt from rent."""
        return self._svm.minimum_balance_for_rent_exemption(size_bytes)

    def simulate(self, raw: bytes, *, replaces_blockhash: bool, checks_signatures: bool) -> SolanaSimulation:
        """Return the result that executing a transaction would have.

        Raises: TransactionRefused if it is unreadable or unsigned.
        """
        transaction = _parsed(raw)
        if checks_signatures:
            _check_signatures(transaction)
        # The age first, as a cluster: what was executed is remembered there only while it could be executed again.
        if not replaces_blockhash and not self.is_recent(str(transaction.message.recent_blockhash)):
            return SolanaSimulation("BlockhashNotFound", [], 0)
        if bytes(transaction.message) in self._messages:
            return SolanaSimulation("AlreadyProcessed", [], 0)
        result = self._svm.simulate_transaction(transaction)
        meta = result.meta()
        error = self._error(result.err()) if isinstance(result, FailedTransactionMetadata) else None
        return SolanaSimulation(error, meta.logs(), meta.compute_units_consumed())

    def send(self, raw: bytes, *, skips_preflight: bool) -> str:
        """Take a signed transaction. Returns its signature.

        Raises: TransactionRefused. Without preflight what cannot be executed is taken, and lost, as a validator does.
        """
        transaction = _parsed(raw)
        _check_signatures(transaction)
        signature = str(transaction.signatures[0])
        if not skips_preflight:
            simulated = self.simulate(raw, replaces_blockhash=False, checks_signatures=False)
            if simulated.error is not None:
                raise TransactionRefused(f"Transaction simulation failed: {simulated.error}", simulated.error)
        if signature in self.executed or signature in self._waiting:
            return signature
        if self.holds:
            self._waiting[signature] = transaction
        elif self.is_recent(str(transaction.message.recent_blockhash)):
            self._execute(transaction)
        return signature

    def _execute(self, transaction: VersionedTransaction) -> None:
        keys = transaction.message.account_keys
        found = {address: self._svm.get_account(address) for address in keys}
        result = self._svm.send_transaction(transaction)
        if isinstance(result, FailedTransactionMetadata):
            meta, error = result.meta(), self._error(result.err())
        else:
            meta, error = result, None
        if _is_unpaid(error):  # no leader takes it into a block
            return
        self._before[str(transaction.signatures[0])] = {
            address: account for address, account in found.items() if account is not None and not account.executable
        }
        self._messages.add(bytes(transaction.message))
        self.executed[str(transaction.signatures[0])] = Executed(
            slot=self.slot,
            time_seconds=self._times[self.slot],
            error=error,
            logs=meta.logs(),
            compute_units=meta.compute_units_consumed(),
            fee=meta.fee(),
            raw=bytes(transaction),
            accounts=frozenset(map(str, keys)),
            held=self._held(keys, found),
        )

    def _held(self, keys: Sequence[Pubkey], found: Mapping[Pubkey, Account | None]) -> dict[int, Held]:
        """Those of them that are token accounts now, as far as they were there before."""
        held = {}
        for place, address in enumerate(keys):
            before = found[address]
            if before is None or str(before.owner) != self.token_program:
                continue
            now = self._svm.get_account(address)
            data = b"" if now is None else bytes(now.data)
            account = read_token_account(data)
            if account is not None and read_mint(data) is None:
                held[place] = account
        return held

    def _error(self, error: Any) -> Any:  # noqa: ANN401 - one of the library's many classes; JSON
        """The chain's word for an error, as RPC nodes write it."""
        result = RpcSimulateTransactionResult(
            err=error, logs=[], accounts=None, units_consumed=0, return_data=None, inner_instructions=None
        )
        context = RpcResponseContext(self.slot)
        response = SimulateTransactionResp(result, context)  # type: ignore[call-arg]  # the stub has one of two
        return json.loads(response.to_json())["result"]["value"]["err"]

    def _put(self, address: str, data: bytes) -> None:
        owner = Pubkey.from_string(self.token_program)
        self._svm.set_account(Pubkey.from_string(address), Account(self.rent(len(data)), data, owner, executable=False))

    def _listed_blockhashes(self) -> Account:
        """List the recent blockhashes as a cluster does: the newest first, each with the price of a signature."""
        newest = [Pubkey.from_string(one) for one in reversed(self._recent)][:RECENT_SLOTS]
        price = LAMPORTS_PER_SIGNATURE.to_bytes(8, "little")
        data = len(newest).to_bytes(8, "little") + b"".join(bytes(one) + price for one in newest)
        owner = Pubkey.from_string("Sysvar1111111111111111111111111111111111111")
        return Account(self.rent(len(data)), data, owner, executable=False)

    def _remember_blockhash(self) -> None:
        self._times[self.slot] = int(time.time()) + self.ahead_seconds
        if len(self._times) > TIMES_KEPT:
            self._times.popitem(last=False)
        self._recent[self.blockhash] = self.slot + RECENT_SLOTS
        while len(self._recent) > 2 * RECENT_SLOTS:
            self._recent.popitem(last=False)


def decoded(text: str) -> bytes:
    """The bytes of a transaction as a request holds it. Raises: TransactionRefused."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise TransactionRefused("failed to decode: invalid base64") from error


def _is_unpaid(error: Any) -> bool:  # noqa: ANN401 - JSON
    text = error if isinstance(error, str) else json.dumps(error, separators=(",", ":"))
    return text in FEE_PAYER_WITHOUT_MONEY


def _parsed(raw: bytes) -> VersionedTransaction:
    try:
        transaction = VersionedTransaction.from_bytes(raw)
        transaction.sanitize()
    except Exception as error:  # the library has no class of its own for this
        raise TransactionRefused(f"failed to deserialize transaction: {error}") from error
    return transaction


def _check_signatures(transaction: VersionedTransaction) -> None:
    if not all(transaction.verify_with_results()):
        raise TransactionRefused("Transaction signature verification failure", _BAD_SIGNATURE)
