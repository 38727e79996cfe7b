#!/usr/bin/env node
// Each POST becomes an event; the client gets the answer of the sink. ADAPTER_RECEIVER={"port": 8088}
import { randomUUID } from "node:crypto";
import { createServer } from "node:http";

let port;
try {
  port = JSON.parse(process.env.ADAPTER_RECEIVER).port;
  if (!Number.isInteger(port)) throw new Error("port: is not a number");
} catch (error) {
  console.error(`ADAPTER_RECEIVER: ${error.message}`);
  process.exit(1);
}
process.on("SIGTERM", () => process.exit(0));
createServer(async (request, response) => {
  const chunks = [];
  let bytes = 0;
  try {
    for await (const chunk of request) {
      chunks.push(chunk);
      bytes += chunk.length;
      if (bytes > 1 << 20) return response.writeHead(413, { connection: "close" }).end();
    }
  } catch {
    return; // The client ended the connection.
  }
  const headers = { "ce-specversion": "1.0", "ce-type": "webhook", "ce-source": "/webhook", "ce-id": randomUUID(), "content-type": request.headers["content-type"] ?? "text/plain" };
  const answer = await fetch(process.env.K_SINK, { method: "POST", headers, body: Buffer.concat(chunks) }).catch(() => ({ status: 503 }));
  response.writeHead(answer.status).end();
}).listen(port, "127.0.0.1");
createServer((_, response) => response.end('{"ready":true,"reason":"","live":false,"qos":1}')).listen(process.env.PORT, "127.0.0.1");
