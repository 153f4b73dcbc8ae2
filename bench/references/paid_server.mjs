// A paid route behind the official Express middleware (npm @x402/express 2.27.0): what our gateway is measured against.
//
// Run by Node.js with the environment
//   PACKAGES          the directory under which npm installed package-lock.json's packages
//   FACILITATOR_URL   any facilitator, ready before this starts (the middleware asks it once)
//   PAY_TO            who is paid
//   TOKEN_NAME        EIP-712 name of the USDC contract
// GET /data costs 0.01 USDC on base-sepolia in x402 v2. It listens on a free port of the loopback address and prints
// {"url": ...} as one line when it is ready. Nothing is tuned for or against it.
import { createRequire } from "node:module";
import { join } from "node:path";

const { FACILITATOR_URL, PACKAGES, PAY_TO, TOKEN_NAME } = process.env;
const installed = createRequire(join(PACKAGES, "package.json"));
const express = installed("express");
const { paymentMiddleware, x402ResourceServer } = installed("@x402/express");
const { HTTPFacilitatorClient } = installed("@x402/core/server");
const { ExactEvmScheme } = installed("@x402/evm/exact/server");

const network = "eip155:84532";
const price = {
  amount: "10000",
  asset: "0x036CbD53842c5426634e7929541eC2318f3dCF7e",
  extra: { name: TOKEN_NAME, version: "2" },
};
const server = new x402ResourceServer(new HTTPFacilitatorClient({ url: FACILITATOR_URL }));
server.register(network, new ExactEvmScheme());
const routes = {
  "GET /data": {
    accepts: { scheme: "exact", payTo: PAY_TO, price, network },
    description: "data",
    mimeType: "application/json",
  },
};

const app = express();
app.use(paymentMiddleware(routes, server));
app.get("/data", (_request, response) => response.json({ said: "served" }));
const listening = app.listen(0, "127.0.0.1", () => {
  process.stdout.write(JSON.stringify({ url: `http://127.0.0.1:${listening.address().port}` }) + "\n");
});
