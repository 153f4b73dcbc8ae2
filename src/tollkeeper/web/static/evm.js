// Wallets on EVM networks: those that announce themselves (EIP-6963), else window.ethereum (EIP-1193).
import { Told, sleep } from "./shared.js";

const hex = (bytes) => `0x${[...bytes].map((one) => one.toString(16).padStart(2, "0")).join("")}`;
const fields = (text) => text.split(",").map((one) => ({ name: one.split(" ")[1], type: one.split(" ")[0] }));
const TYPES = {
  EIP712Domain: fields("string name,string version,uint256 chainId,address verifyingContract"),
  TransferWithAuthorization: fields("address from,address to,uint256 value,uint256 validAfter,uint256 validBefore,bytes32 nonce"),
};

class Wallet {
  family = "evm";
  seconds = 300;

  constructor(name, icon, provider) {
    Object.assign(this, { name, icon, provider });
  }

  ask(method, ...params) {
    return this.provider.request({ method, params });
  }

  async connect() {
    [this.account] = await this.ask("eth_requestAccounts");
    if (!this.account) throw new Told("Your wallet shows no account. Nothing was charged. Unlock it, and try again.");
    return this.account;
  }

  async isOn(offer) {
    return Number(await this.ask("eth_chainId")) === offer.chainId;
  }

  async choose(offer) {
    if (await this.isOn(offer)) return;
    const chainId = `0x${offer.chainId.toString(16)}`;
    try {
      await this.ask("wallet_switchEthereumChain", { chainId });
    } catch (error) {
      if (error?.code === 4001) throw error;
      const nativeCurrency = { name: "Ether", symbol: "ETH", decimals: 18 };
      const chain = { chainId, chainName: offer.label, nativeCurrency, rpcUrls: [offer.node], blockExplorerUrls: [new URL(offer.explorer).origin] };
      await this.ask("wallet_addEthereumChain", chain);
    }
    if (!await this.isOn(offer)) {
      throw new Told(`Your wallet is on another network. Nothing was charged. Switch it to ${offer.label}, and try again.`);
    }
  }

  async pay({ requirements: { scheme, network, payTo, maxAmountRequired, asset, extra }, chainId }, until) {
    const authorization = { from: this.account, to: payTo, value: maxAmountRequired, validAfter: "0",
      validBefore: String(until), nonce: hex(crypto.getRandomValues(new Uint8Array(32))) };
    const typed = { types: TYPES, primaryType: "TransferWithAuthorization", message: authorization,
      domain: { name: extra.name, version: extra.version, chainId, verifyingContract: asset } };
    const signature = await this.ask("eth_signTypedData_v4", this.account, JSON.stringify(typed));
    return btoa(JSON.stringify({ x402Version: 1, scheme, network, payload: { signature, authorization } }));
  }

  signText(text) {
    return this.ask("personal_sign", hex(new TextEncoder().encode(text)), this.account);
  }
}

export async function discover(add) {
  const known = new Set();
  addEventListener("eip6963:announceProvider", ({ detail: { info, provider } }) => {
    if (!known.has(provider)) add(new Wallet(info.name, info.icon, provider));
    known.add(provider);
  });
  dispatchEvent(new Event("eip6963:requestProvider"));
  await sleep(300);
  if (!known.size && window.ethereum) add(new Wallet("the wallet in this browser", "", window.ethereum));
}
