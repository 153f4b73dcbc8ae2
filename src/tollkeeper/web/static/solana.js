// Wallets on Solana (Wallet Standard). The gateway makes the transaction; the wallet shows and signs it.
import { Told } from "./shared.js";

const DIGITS = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";
const WANTED = ["standard:connect", "solana:signTransaction", "solana:signMessage"];

function base58(bytes) {
  let number = 0n, text = "";
  for (const one of bytes) number = number * 256n + BigInt(one);
  for (; number; number /= 58n) text = DIGITS[Number(number % 58n)] + text;
  return "1".repeat(bytes.findIndex((one) => one) < 0 ? bytes.length : bytes.findIndex((one) => one)) + text;
}

class Wallet {
  family = "solana";
  seconds = 60;

  constructor(standard) {
    Object.assign(this, { name: standard.name, icon: standard.icon, features: standard.features });
  }

  async connect() {
    [this.account] = (await this.features["standard:connect"].connect()).accounts;
    if (!this.account) throw new Told("Your wallet shows no account. Nothing was charged. Unlock it, and try again.");
    return this.account.address;
  }

  choose({ cluster, label }) {
    this.chain = `solana:${cluster}`;
    if (!this.account.chains.includes(this.chain)) {
      throw new Told(`Your wallet is on another network. Nothing was charged. Switch it to ${label}, and try again.`);
    }
  }

  async pay({ network, requirements }, _until, ask) {
    const { transaction } = await ask("/api/v1/solana/transactions", { network, payer: this.account.address });
    const bytes = Uint8Array.from(atob(transaction), (one) => one.charCodeAt());
    const [{ signedTransaction }] = await this.features["solana:signTransaction"]
      .signTransaction({ transaction: bytes, account: this.account, chain: this.chain });
    const signed = btoa(String.fromCharCode(...signedTransaction));
    const { scheme } = requirements;
    return btoa(JSON.stringify({ x402Version: 1, scheme, network: requirements.network, payload: { transaction: signed } }));
  }

  async signText(text) {
    const [{ signature }] = await this.features["solana:signMessage"]
      .signMessage({ account: this.account, message: new TextEncoder().encode(text) });
    return base58(signature);
  }
}

export function discover(add) {
  const known = new Set();
  const register = (...wallets) => {
    for (const one of wallets) {
      if (!known.has(one) && WANTED.every((feature) => feature in one.features)) add(new Wallet(one));
      known.add(one);
    }
    return () => {};
  };
  addEventListener("wallet-standard:register-wallet", ({ detail }) => detail({ register }));
  dispatchEvent(new CustomEvent("wallet-standard:app-ready", { detail: { register } }));
}
