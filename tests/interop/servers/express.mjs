// npm @x402/express 2.27.0; see paid_server.mjs.
import { goods, official, ready, resourceServer, routes } from "./paid_server.mjs";

const express = official("express");
const { paymentMiddleware, x402ResourceServer } = official("@x402/express");

const app = express();
app.use(paymentMiddleware(routes, resourceServer(x402ResourceServer)));
app.get(["/data", "/upfront", "/extended"], (_request, response) => response.json(goods));
const listening = app.listen(0, "127.0.0.1", () => ready(listening.address().port));
