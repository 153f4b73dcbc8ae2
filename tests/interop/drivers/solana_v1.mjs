// npm x402 1.2.0 on Solana. {operation: "sign" | "facilitate", privateKey, requirements, rpcUrl, payload}: its client's
// payment payload, or what its own facilitator, whose fee payer has that key, says to verify and then to settle.
import { official, readRequest, writeAnswer } from "./driver_io.mjs";

const { createPaymentHeader } = official("x402/client");
const { settle, verify } = official("x402/facilitator");
const { createSigner, PaymentPayloadSchema, PaymentRequirementsSchema } = official("x402/types");

const { operation, privateKey, requirements, rpcUrl, payload } = await readRequest();
const config = { svmConfig: { rpcUrl } };
const signer = await createSigner(requirements.network, privateKey);
const required = PaymentRequirementsSchema.parse(requirements);
if (operation === "sign") {
  const header = await createPaymentHeader(signer, 1, required, config);
  writeAnswer(JSON.parse(Buffer.from(header, "base64").toString()));
} else {
  const paid = PaymentPayloadSchema.parse(payload);
  const verified = await verify(signer, paid, required, config);
  writeAnswer({ verified, settled: await settle(signer, paid, required, config) });
}
process.exitCode = 0;
setTimeout(() => process.exit(), 50); // its WebSocket to the node would keep the process
