// Asks a facilitator with npm x402 1.2.0's useFacilitator. Request and answer as in facilitate_py_v2.py.
import { facilitate, official } from "./driver_io.mjs";

const { useFacilitator } = official("x402/verify");
const { createPaymentHeader } = official("x402/client");
const { createSigner, PaymentPayloadSchema, PaymentRequirementsSchema } = official("x402/types");

await facilitate((url) => {
  const facilitator = useFacilitator({ url });
  return async ({ operation, payload, requirements, privateKey, rpcUrl }) => {
    if (operation === "supported") return facilitator.supported();
    const required = PaymentRequirementsSchema.parse(requirements);
    if (operation === "sign") {
      const signer = await createSigner(required.network, privateKey);
      const header = await createPaymentHeader(signer, 1, required, rpcUrl ? { svmConfig: { rpcUrl } } : undefined);
      return JSON.parse(Buffer.from(header, "base64").toString());
    }
    return facilitator[operation](PaymentPayloadSchema.parse(payload), required);
  };
});
