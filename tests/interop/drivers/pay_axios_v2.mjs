// Buys one call with npm @x402/axios 2.11.0. Request and answer as in pay_fetch_v2.mjs.
import { clientOf } from "./clients_v2.mjs";
import { answered, asResponse, official, pay } from "./driver_io.mjs";

const axios = official("axios");
const { wrapAxiosWithPayment, x402Client, x402HTTPClient } = official("@x402/axios");

await pay(async (request) => {
  const client = await clientOf(request, x402Client);
  const paying = wrapAxiosWithPayment(axios.create(), client);
  const { url, method = "GET", headers = {}, body: data } = request;
  const answer = await answered(paying.request({ url, method, headers, data }));
  const header = (name) => answer.headers[name.toLowerCase()];
  const receipted = header("payment-response") || header("x-payment-response");
  return { response: asResponse(answer), receipt: receipted ? new x402HTTPClient(client).getPaymentSettleResponse(header) : null };
});
