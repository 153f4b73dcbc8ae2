// Buys one call with npm @x402/fetch 2.27.0, v1 and v2 registered, spend controls as they come. Request and answer as
// in pay_py_v2.py.
import { fetchOptions, official, pay } from "./driver_io.mjs";

const { wrapFetchWithPayment, x402Client, x402HTTPClient } = official("@x402/fetch");
const { registerExactEvmScheme } = official("@x402/evm/exact/client");
const { privateKeyToAccount } = official("viem/accounts");

await pay(async (request) => {
  const client = new x402Client();
  registerExactEvmScheme(client, { signer: privateKeyToAccount(request.privateKey) });
  const response = await wrapFetchWithPayment(fetch, client)(request.url, fetchOptions(request));
  const header = (name) => response.headers.get(name);
  const receipted = header("payment-response") || header("x-payment-response");
  return { response, receipt: receipted ? new x402HTTPClient(client).getPaymentSettleResponse(header) : null };
});
