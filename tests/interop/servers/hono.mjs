// npm @x402/hono 2.27.0; see paid_server.mjs.
import { goods, official, ready, resourceServer, routes } from "./paid_server.mjs";

const { Hono } = official("hono");
const { serve } = official("@hono/node-server");
const { paymentMiddleware, x402ResourceServer } = official("@x402/hono");

const app = new Hono();
app.use(paymentMiddleware(routes, resourceServer(x402ResourceServer)));
app.get("/data", (context) => context.json(goods));
app.get("/upfront", (context) => context.json(goods));
serve({ fetch: app.fetch, port: 0, hostname: "127.0.0.1" }, (listening) => ready(listening.port));
