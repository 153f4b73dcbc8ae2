// A wallet in the browser of a test: EIP-1193 announced by EIP-6963. Its keys and its owner's moods are Python's.
(() => {
  const provider = {
    request: async ({ method, params = [] }) => {
      const { result, error } = JSON.parse(await window.__evm(JSON.stringify({ method, params })));
      if (error) throw Object.assign(new Error(error.message), { code: error.code });
      return result;
    },
    on() {},
  };
  if (!ANNOUNCES) {
    window.ethereum = provider;
    return;
  }
  const icon = "data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg' width='24' height='24'/>";
  const detail = Object.freeze({ info: { uuid: "1", name: "Test Wallet", icon, rdns: "example.test" }, provider });
  const announce = () => window.dispatchEvent(new CustomEvent("eip6963:announceProvider", { detail }));
  window.addEventListener("eip6963:requestProvider", announce);
  announce();
})();
