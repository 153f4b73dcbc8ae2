// Asks a facilitator with npm @x402/core 2.27.0's HTTPFacilitatorClient, with v1 payloads. Request and answer as in
// facilitate_py_v2.py.
import { facilitate, official } from "./driver_io.mjs";

const { x402Client } = official("@x402/core/client");
const { HTTPFacilitatorClient } = official("@x402/core/server");
const { registerExactEvmScheme } = official("@x402/evm/exact/client");
const { privateKeyToAccount } = official("viem/accounts");

await facilitate((url) => {
  const facilitator = new HTTPFacilitatorClient({ url });
  return async ({ operation, payload, requirements, privateKey }) => {
    if (operation === "supported") return facilitator.getSupported();
    if (operation === "sign") {
      const client = new x402Client();
      registerExactEvmScheme(client, { signer: privateKeyToAccount(privateKey) });
      return client.createPaymentPayload({ x402Version: 1, error: "", accepts: [requirements] });
    }
    return facilitator[operation](payload, requirements);
  };
});
