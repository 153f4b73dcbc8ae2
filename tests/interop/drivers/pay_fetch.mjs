// Buys one call with npm x402-fetch 1.2.0, the v1 line. Request and answer as in pay_py_v2.py.
import { fetchOptions, official, pay } from "./driver_io.mjs";

const { createSigner, decodeXPaymentResponse, wrapFetchWithPayment } = official("x402-fetch");

await pay(async (request) => {
  const signer = await createSigner(request.network ?? "base-sepolia", request.privateKey);
  const config = request.rpcUrl ? { svmConfig: { rpcUrl: request.rpcUrl } } : undefined;
  const paying = wrapFetchWithPayment(fetch, signer, undefined, undefined, config);
  const response = await paying(request.url, fetchOptions(request));
  const header = response.headers.get("x-payment-response");
  return { response, receipt: header ? decodeXPaymentResponse(header) : null };
});
