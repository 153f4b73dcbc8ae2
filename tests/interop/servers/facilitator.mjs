// The facilitator of npm @x402/core 2.27.0, which speaks version 2 alone, over HTTP as its documentation serves it.
//
// Run by Node.js in the npm-servers environment, with the JSON object SERVER in the environment: {rpcUrl, privateKey,
// network (CAIP-2)}. It listens on a free port of the loopback address and prints {"url": ...} as one line.
import { createServer } from "node:http";
import { official, ready } from "./paid_server.mjs";

const { x402Facilitator } = official("@x402/core/facilitator");
const { rpcUrl, privateKey, network } = JSON.parse(process.env.SERVER);

async function schemeOnSolana() {
  const { createKeyPairSignerFromBytes, getBase58Encoder } = official("@solana/kit");
  const { toFacilitatorSvmSigner } = official("@x402/svm");
  const { ExactSvmScheme } = official("@x402/svm/exact/facilitator");
  const payer = await createKeyPairSignerFromBytes(getBase58Encoder().encode(privateKey));
  return new ExactSvmScheme(toFacilitatorSvmSigner(payer, { defaultRpcUrl: rpcUrl }));
}

function schemeOnEvm() {
  const { createWalletClient, http, publicActions } = official("viem");
  const { privateKeyToAccount } = official("viem/accounts");
  const { baseSepolia } = official("viem/chains");
  const { toFacilitatorEvmSigner } = official("@x402/evm");
  const { ExactEvmScheme } = official("@x402/evm/exact/facilitator");
  const account = privateKeyToAccount(privateKey);
  const client = createWalletClient({ account, chain: baseSepolia, transport: http(rpcUrl) }).extend(publicActions);
  return new ExactEvmScheme(toFacilitatorEvmSigner({ ...client, address: account.address }));
}

const scheme = network.startsWith("solana:") ? await schemeOnSolana() : schemeOnEvm();
const facilitator = new x402Facilitator().register(network, scheme);

async function answer(request) {
  if (request.url === "/supported") return facilitator.getSupported();
  let text = "";
  for await (const chunk of request) text += chunk;
  const { paymentPayload, paymentRequirements } = JSON.parse(text);
  const call = request.url === "/verify" ? facilitator.verify : facilitator.settle;
  return call.call(facilitator, paymentPayload, paymentRequirements);
}

const plain = (_key, value) => (typeof value === "bigint" ? value.toString() : value);
const server = createServer(async (request, response) => {
  try {
    const body = JSON.stringify(await answer(request), plain);
    response.writeHead(200, { "Content-Type": "application/json" }).end(body);
  } catch (error) {
    response.writeHead(500, { "Content-Type": "application/json" }).end(JSON.stringify({ error: error.message }));
  }
});
server.listen(0, "127.0.0.1", () => ready(server.address().port));
