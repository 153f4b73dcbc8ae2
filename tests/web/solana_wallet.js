// A wallet in the browser of a test: Wallet Standard. Its key and its owner's moods are Python's.
(() => {
  const bytes = (text) => Uint8Array.from(atob(text), (one) => one.charCodeAt());
  const ask = async (method, given = "") => {
    const { result, error } = JSON.parse(await window.__solana(JSON.stringify({ method, given })));
    if (error) throw Object.assign(new Error(error.message), { code: error.code });
    return result;
  };
  const account = (address) => ({ address, publicKey: new Uint8Array(32), features: [], chains: CHAINS });
  const wallet = {
    version: "1.0.0", name: "Test Solana Wallet", icon: "data:image/svg+xml,", chains: CHAINS, accounts: [],
    features: {
      "standard:connect": { version: "1.0.0", connect: async () => ({ accounts: [account(await ask("connect"))] }) },
      "solana:signTransaction": { version: "1.0.0", supportedTransactionVersions: ["legacy", 0],
        signTransaction: async ({ transaction }) => [{ signedTransaction: bytes(await ask("signTransaction", btoa(String.fromCharCode(...transaction)))) }] },
      "solana:signMessage": { version: "1.0.0",
        signMessage: async ({ message }) => [{ signedMessage: message, signature: bytes(await ask("signMessage", btoa(String.fromCharCode(...message)))) }] },
    },
  };
  window.addEventListener("wallet-standard:app-ready", ({ detail }) => detail.register(wallet));
})();
