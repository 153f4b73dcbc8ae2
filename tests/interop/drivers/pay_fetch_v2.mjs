// Buys one call with npm @x402/fetch 2.27.0, spend controls as they come. Request and answer as in pay_py_v2.py, and
// `versions` as in clients_v2.mjs.
import { clientOf } from "./clients_v2.mjs";
import { fetchOptions, official, pay } from "./driver_io.mjs";

const { wrapFetchWithPayment, x402Client, x402HTTPClient } = official("@x402/fetch");

await pay(async (request) => {
  const client = await clientOf(request, x402Client);
  const response = await wrapFetchWithPayment(fetch, client)(request.url, fetchOptions(request));
  const header = (name) => response.headers.get(name);
  const receipted = header("payment-response") || header("x-payment-response");
  return { response, receipt: receipted ? new x402HTTPClient(client).getPaymentSettleResponse(header) : null };
});
