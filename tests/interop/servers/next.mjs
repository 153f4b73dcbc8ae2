// npm @x402/next 2.25.0; see paid_server.mjs. Its two route handlers get next's own requests, and Hono's listener stands
// for `next start`, which would have to build a project first.
import { data, goods, official, ready, resourceServer, upfront } from "./paid_server.mjs";

const { serve } = official("@hono/node-server");
const { NextRequest, NextResponse } = official("next/server");
const { withX402, x402ResourceServer } = official("@x402/next");

const server = resourceServer(x402ResourceServer);
const handler = async () => NextResponse.json(goods);
const handlers = { "/data": withX402(handler, data, server), "/upfront": withX402(handler, upfront, server) };
const fetch = ({ url, method, headers }) => handlers[new URL(url).pathname](new NextRequest(url, { method, headers }));
serve({ fetch, port: 0, hostname: "127.0.0.1" }, (listening) => ready(listening.port));
