// Buys one call with npm x402-axios 0.7.2 (v1). Request and answer as in pay_fetch.mjs.
import { answered, asResponse, official, pay } from "./driver_io.mjs";

const axios = official("axios");
const { createSigner, decodeXPaymentResponse, withPaymentInterceptor } = official("x402-axios");

await pay(async (request) => {
  const signer = await createSigner(request.network ?? "base-sepolia", request.privateKey);
  const config = request.rpcUrl ? { svmConfig: { rpcUrl: request.rpcUrl } } : undefined;
  const paying = withPaymentInterceptor(axios.create(), signer, undefined, config);
  const { url, method = "GET", headers = {}, body: data } = request;
  const answer = await answered(paying.request({ url, method, headers, data }));
  const receipt = answer.headers["x-payment-response"];
  return { response: asResponse(answer), receipt: receipt ? decodeXPaymentResponse(receipt) : null };
});
