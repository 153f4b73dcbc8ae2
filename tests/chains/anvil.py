"""Anvil as a process of the tests, with Circle's FiatTokenV2_2 at base-sepolia's canonical USDC address.

anvil 1.7 mines what comes, but for one in some five thousand transactions that come while it mines another: that one
waits in its pool until something else comes, or for ever, queued behind a nonce that is mined already. A hub gets over
it (F9), 45 seconds later; a test that is about something else need not wait for that, so a node that stands still over
a full pool is told to mine, and given what it queued once more.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.chains.abi import encode_call
from tests.chains.rpc_client import RpcClient, RpcFailure
from tests.ports import free_port
from tollkeeper.core.evm.encoding import keccak256
from tollkeeper.sandbox.evm.chain import BASE_SEPOLIA_CHAIN_ID
from tollkeeper.sandbox.evm.node import BUYER_BALANCE_MICRO, RELAYER_BALANCE_WEI, USDC_ADDRESS, planted_token

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tollkeeper.sandbox.wallets import TestWallets

_INSTALLED: Final = Path(__file__).parents[2] / ".cache" / "chains" / "node_modules"
_ANVIL: Final = _INSTALLED / "@foundry-rs" / "anvil-linux-amd64" / "bin" / "anvil"
_CONTRACTS: Final = _INSTALLED / "@offchainlabs" / "stablecoin-evm" / "artifacts" / "hardhat" / "contracts"
_START_SECONDS: Final = 20
_RECEIPT_SECONDS: Final = 10
_STILL_SECONDS: Final = 1.0
_IMPLEMENTATION_SLOT: Final = "0x" + keccak256(b"org.zeppelinos.proxy.implementation").hex()
_ADMIN_SLOT: Final = "0x" + keccak256(b"org.zeppelinos.proxy.admin").hex()
_PROXY_ADMIN: Final = "0x00000000000000000000000000000000000000ad"
_LOST_AND_FOUND: Final = "0x00000000000000000000000000000000000000f0"
FIAT_TOKEN_NAME: Final = "USDC"  # what it is called on base-sepolia


def anvil_binary() -> Path:
    """The installed one, or what ANVIL names."""
    binary = Path(os.environ.get("ANVIL", _ANVIL))
    if not binary.exists():
        msg = f"{binary} is missing: run tests/chains/setup"
        raise FileNotFoundError(msg)
    return binary


@contextlib.contextmanager
def run_anvil() -> Iterator[str]:
    """A fresh node for base-sepolia's chain id; its URL."""
    binary = anvil_binary()
    port = free_port()
    command = [str(binary), "--host", "127.0.0.1", "--port", str(port), "--chain-id", str(BASE_SEPOLIA_CHAIN_ID)]
    process = subprocess.Popen([*command, "--silent"])
    try:
        _wait_until_listening(process, port)
        with _kept_mining(f"http://127.0.0.1:{port}") as url:
            yield url
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def _kept_mining(url: str) -> Iterator[str]:
    """Meanwhile a node that mines by itself is not left with the same transactions at the same height."""
    is_over = threading.Event()
    watch = threading.Thread(target=_keep_mining, args=(url, is_over), daemon=True)
    watch.start()
    try:
        yield url
    finally:
        is_over.set()
        watch.join()


def _keep_mining(url: str, is_over: threading.Event) -> None:
    before: dict[str, Any] | None = None
    methods = ("anvil_getAutomine", "txpool_status", "eth_blockNumber")
    asked: list[dict[str, object]] = [{"jsonrpc": "2.0", "id": one, "method": one, "params": []} for one in methods]
    with contextlib.closing(RpcClient(url)) as rpc:
        while not is_over.wait(_STILL_SECONDS):
            try:
                now = {answer["id"]: answer["result"] for answer in rpc.post(asked)}
                pool = now["txpool_status"]
                if now == before and now["anvil_getAutomine"]:
                    if int(pool["queued"], 16):
                        _queue_again(rpc)
                    if int(pool["pending"], 16):
                        rpc.call("evm_mine")
                before = now
            except (OSError, http.client.HTTPException, KeyError, ValueError, RpcFailure):
                before = None  # a node that a test has frozen or ended


def _queue_again(rpc: RpcClient) -> None:
    """What waits for no other transaction, though the node thinks so, comes anew; what waits behind a gap stays."""
    for sender, queued in rpc.call("txpool_content")["queued"].items():
        nonces = sorted(map(int, queued))
        if nonces[0] == int(rpc.call("eth_getTransactionCount", sender, "latest"), 16):
            raws = [rpc.call("eth_getRawTransactionByHash", queued[str(nonce)]["hash"]) for nonce in nonces]
            rpc.call("anvil_removePoolTransactions", sender)
            for raw in raws:
                rpc.call("eth_sendRawTransaction", raw)


def _wait_until_listening(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.005)
    msg = f"anvil does not listen (exit code {process.poll()})"
    raise RuntimeError(msg)


def fund_wallets(rpc: RpcClient, wallets: TestWallets) -> None:
    """Ether as in the sandbox: for the relayer and the faucet."""
    for wallet in (wallets.relayer, wallets.faucet):
        rpc.call("anvil_setBalance", wallet.address, hex(RELAYER_BALANCE_WEI))


def plant_test_token(rpc: RpcClient, wallets: TestWallets, *, name: str) -> None:
    """Our own token at the canonical address, with the buyers' balances. Any node with anvil's methods takes it."""
    buyers = {wallet.address: BUYER_BALANCE_MICRO for wallet in (wallets.buyer, wallets.second_buyer)}
    planted = planted_token(buyers, name=name)
    rpc.call("anvil_setCode", USDC_ADDRESS, "0x" + planted.account.code.hex())
    for slot, value in planted.storage.items():
        rpc.call("anvil_setStorageAt", USDC_ADDRESS, f"0x{slot:064x}", f"0x{value:064x}")
    rpc.call("evm_mine")  # until its first block, anvil simulates calls at a time long ago


def deploy_fiat_token(rpc: RpcClient, wallets: TestWallets, *, name: str = FIAT_TOKEN_NAME) -> None:
    """Circle's token behind its proxy at the canonical address, set up as on the real network. The faucet may mint."""
    owner = rpc.call("eth_accounts")[0]
    checker = _deploy(rpc, owner, _artifact("util/SignatureChecker")["bytecode"])
    token = _artifact("v2/FiatTokenV2_2")
    implementation = _deploy(rpc, owner, _link(token, checker))
    rpc.call("anvil_setCode", USDC_ADDRESS, _artifact("v1/FiatTokenProxy")["deployedBytecode"])
    rpc.call("anvil_setStorageAt", USDC_ADDRESS, _IMPLEMENTATION_SLOT, _slot_value(implementation))
    rpc.call("anvil_setStorageAt", USDC_ADDRESS, _ADMIN_SLOT, _slot_value(_PROXY_ADMIN))

    def send(sender: str, signature: str, *arguments: object) -> None:
        data = "0x" + encode_call(signature, *arguments).hex()
        _send(rpc, {"from": sender, "to": USDC_ADDRESS, "data": data})

    roles = (owner, owner, owner, owner)
    initialize = "initialize(string,string,string,uint8,address,address,address,address)"
    send(owner, initialize, name, "USDC", "USD", 6, *roles)
    send(owner, "initializeV2(string)", name)
    send(owner, "initializeV2_1(address)", _LOST_AND_FOUND)
    send(owner, "initializeV2_2(address[],string)", [], "USDC")
    for minter in (owner, wallets.faucet.address):
        send(owner, "configureMinter(address,uint256)", minter, 2**200)
    for buyer in (wallets.buyer, wallets.second_buyer):
        send(owner, "mint(address,uint256)", buyer.address, BUYER_BALANCE_MICRO)


def _artifact(path: str) -> dict[str, Any]:
    name = path.rsplit("/", 1)[1]
    artifact: dict[str, Any] = json.loads((_CONTRACTS / f"{path}.sol" / f"{name}.json").read_text("utf-8"))
    return artifact


def _link(artifact: dict[str, Any], library: str) -> str:
    code: str = artifact["bytecode"]
    for places in artifact["linkReferences"].values():
        for offsets in places.values():
            for offset in offsets:
                start = 2 + 2 * offset["start"]
                code = code[:start] + library[2:] + code[start + 40 :]
    return code


def _deploy(rpc: RpcClient, sender: str, code: str) -> str:
    address: str = _send(rpc, {"from": sender, "data": code})["contractAddress"]
    return address


def _send(rpc: RpcClient, transaction: dict[str, str]) -> dict[str, Any]:
    receipt = wait_for_receipt(rpc, rpc.call("eth_sendTransaction", transaction))
    if receipt["status"] != "0x1":
        msg = f"a transaction of the setup reverted: {transaction['data'][:10]}"
        raise RuntimeError(msg)
    return receipt


def wait_for_receipt(rpc: RpcClient, transaction_hash: str) -> dict[str, Any]:
    """The receipt, once there is one: anvil answers a send before it has mined."""
    deadline = time.monotonic() + _RECEIPT_SECONDS
    while time.monotonic() < deadline:
        receipt: dict[str, Any] | None = rpc.call("eth_getTransactionReceipt", transaction_hash)
        if receipt is not None:
            return receipt
        time.sleep(0.002)
    msg = f"no receipt for {transaction_hash}"
    raise TimeoutError(msg)


def _slot_value(address: str) -> str:
    return f"0x{int(address, 16):064x}"
