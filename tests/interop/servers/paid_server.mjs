// What the three npm servers have in common: what is asked of them, what they sell, where they listen.
//
// Run by Node.js in the npm-servers environment, with the JSON object SERVER in the environment: {facilitatorUrl, payTo,
// network (CAIP-2), price ("$0.01", or what an asset that is in no table of the package needs)}.
// GET /data is settled once it was served (the package's default), GET /upfront before; the 402 of GET /extended, which
// only Express has, offers an extension. Each listens on a free port of
// the loopback address and prints {"url": ...} as one line when it is ready.
import { createRequire } from "node:module";
import { join } from "node:path";

export const official = createRequire(join(process.cwd(), "package.json"));
export const goods = { said: "served" };
const { facilitatorUrl, payTo, network, price } = JSON.parse(process.env.SERVER);

export function resourceServer(x402ResourceServer) {
  const { HTTPFacilitatorClient } = official("@x402/core/server");
  const { ExactEvmScheme } = official("@x402/evm/exact/server");
  const { ExactSvmScheme } = official("@x402/svm/exact/server");
  const server = new x402ResourceServer(new HTTPFacilitatorClient({ url: facilitatorUrl }));
  const scheme = network.startsWith("solana:") ? new ExactSvmScheme() : new ExactEvmScheme();
  return server.register(network, scheme);
}

const sold = (extra) => ({
  accepts: { scheme: "exact", price, network, payTo, ...(extra ? { extra } : {}) },
  description: "data",
  mimeType: "application/json",
});

export const data = sold();
export const upfront = sold({ paymentFlow: "upfront" });
export const extended = { ...sold(), extensions: { offered: { info: { of: "data", unit: "C" } } } };
export const routes = { "GET /data": data, "GET /upfront": upfront, "GET /extended": extended };

export const ready = (port) => process.stdout.write(JSON.stringify({ url: `http://127.0.0.1:${port}` }) + "\n");
