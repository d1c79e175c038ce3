// Microsoft's JavaScript SDKs, driven line by line over standard input and output.
//
//   in    {"id": 1, "make": "client" | "service", "name": "alice", "args": [...]}     a client or a service client
//         {"id": 2, "of": "alice", "do": "joinGroup", "args": ["g"]}                   call one of its methods
//         {"id": 3, "of": "service", "group": "g", "do": "sendToAll", "args": [...]}   or one of a group of it
//         {"id": 4, "of": "service", "group": "g", "pages": {"maxPageSize": 2}}        list connections page by page
//   out   {"id": 1, "result": ...} or {"id": 1, "error": {...}}
//         {"of": "alice", "event": "group-message", "told": {...}}                     what a client hears
//
// Bytes travel as {"$bytes": "<base64>"}. The driver ends with its standard input.

import readline from "node:readline";
import { WebPubSubServiceClient } from "@azure/web-pubsub";
import { WebPubSubClient } from "@azure/web-pubsub-client";

const EVENTS = ["connected", "disconnected", "stopped", "group-message", "server-message", "rejoin-group-failed"];
const made = new Map();

const say = (line) => process.stdout.write(JSON.stringify(line, pack) + "\n");

function pack(_, value) {
  if (value instanceof ArrayBuffer) return { $bytes: Buffer.from(value).toString("base64") };
  return value;
}

function unpack(_, value) {
  if (value === null || typeof value !== "object" || !("$bytes" in value)) return value;
  const bytes = Buffer.from(value.$bytes, "base64");
  return bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
}

function makeClient(name, [url, options]) {
  const client = new WebPubSubClient(url, options);
  for (const event of EVENTS) client.on(event, (told) => say({ of: name, event, told }));
  return client;
}

function make(kind, name, args) {
  made.set(name, kind === "client" ? makeClient(name, args) : new WebPubSubServiceClient(...args));
}

async function listPages(group, options) {
  const pages = [];
  const iterator = await group.listConnections(options);
  for await (const page of iterator.byPage()) pages.push([...page]);
  return pages;
}

async function perform(order) {
  if (order.make) return make(order.make, order.name, order.args);
  const found = made.get(order.of);
  const target = order.group === undefined ? found : found.group(order.group);
  if (order.pages) return listPages(target, order.pages);
  return await target[order.do](...order.args);
}

async function obey(order) {
  try {
    say({ id: order.id, result: (await perform(order)) ?? null });
  } catch (error) {
    const { name, message, statusCode, code, ackId, errorDetail } = error;
    say({ id: order.id, error: { name, message, statusCode, code, ackId, errorDetail } });
  }
}

const lines = readline.createInterface({ input: process.stdin });
lines.on("line", (line) => obey(JSON.parse(line, unpack)));
lines.on("close", () => process.exit(0));
