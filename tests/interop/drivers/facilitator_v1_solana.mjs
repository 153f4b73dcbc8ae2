// What npm x402 1.2.0's own facilitator on Solana says to verify and then to settle. Request: {privateKey (its fee
// payer's), requirements, rpcUrl, payload}. Answer: {verified, settled}.
import { official, readRequest, writeAnswer } from "./driver_io.mjs";

const { settle, verify } = official("x402/facilitator");
const { createSigner, PaymentPayloadSchema, PaymentRequirementsSchema } = official("x402/types");

const { privateKey, requirements, rpcUrl, payload } = await readRequest();
const config = { svmConfig: { rpcUrl } };
const signer = await createSigner(requirements.network, privateKey);
const required = PaymentRequirementsSchema.parse(requirements);
const paid = PaymentPayloadSchema.parse(payload);
const verified = await verify(signer, paid, required, config);
writeAnswer({ verified, settled: await settle(signer, paid, required, config) });
process.exitCode = 0;
setTimeout(() => process.exit(), 50); // its WebSocket to the node would keep the process
