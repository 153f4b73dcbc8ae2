// Clients of the npm v2 line for one chain family, as its documentation makes them: version 2 and 1 (`register...`), or
// version 2 alone where the request says `versions: "2"`. On Solana the node at `rpcUrl` is asked for the blockhash.
import { official } from "./driver_io.mjs";

async function onSolana(client, request) {
  const { ExactSvmScheme } = official("@x402/svm/exact/client");
  const { ExactSvmSchemeV1, NETWORKS } = official("@x402/svm/v1");
  const { createKeyPairSignerFromBytes, getBase58Encoder } = official("@solana/kit");
  const signer = await createKeyPairSignerFromBytes(getBase58Encoder().encode(request.privateKey));
  const settings = { rpcUrl: request.rpcUrl }; // which `registerExactSvmScheme` takes none of
  const former = request.versions === "2" ? [] : NETWORKS;
  for (const network of former) client.registerV1(network, new ExactSvmSchemeV1(signer, settings));
  return client.register("solana:*", new ExactSvmScheme(signer, settings));
}

export async function clientOf(request, x402Client) {
  const client = new x402Client();
  if (request.rpcUrl) return onSolana(client, request);
  const { ExactEvmScheme, registerExactEvmScheme } = official("@x402/evm/exact/client");
  const signer = official("viem/accounts").privateKeyToAccount(request.privateKey);
  if (request.versions === "2") return client.register("eip155:*", new ExactEvmScheme(signer));
  return registerExactEvmScheme(client, { signer });
}
