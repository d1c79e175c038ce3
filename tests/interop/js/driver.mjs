// Microsoft's JavaScript SDKs, driven line by line over standard input and output.
//
//   in    {"id": 1, "make": "client" | "service" | "wire" | "handler", "name": "alice", "args": [...]}    see below
//         {"id": 2, "of": "alice", "do": "joinGroup", "args": ["g"]}                   call one of its methods
//         {"id": 3, "of": "service", "group": "g", "do": "sendToAll", "args": [...]}   or one of a group of it
//         {"id": 4, "of": "service", "group": "g", "pages": {"maxPageSize": 2}}        list connections page by page
//         {"id": 5, "of": "alice", "do": "openGroupStream", "args": ["g"], "as": "w"}  and call what came of it "w"
//   out   {"id": 1, "result": ...} or {"id": 1, "error": {...}}
//         {"of": "alice", "event": "group-message", "told": {...}}                     what a client hears
//
// A "wire" is a bare WebSocket that writes and reads with the client's own protocol, for what the client has no method
// for. The option idField of a client names the field of an event's body that goes as semel-id. A "handler" is an event
// handler made with the middleware for Express, and tells what it hears. Bytes travel as {"$bytes": "<base64>"};
// {"$signal": "s"} is the signal of a new AbortController, "s". The driver ends with its standard input.

import { createServer } from "node:http";
import readline from "node:readline";
import { WebPubSubServiceClient } from "@azure/web-pubsub";
import { WebPubSubClient, WebPubSubJsonReliableProtocol } from "@azure/web-pubsub-client";
import { WebPubSubEventHandler } from "@azure/web-pubsub-express";

const EVENTS = ["connected", "disconnected", "stopped", "group-message", "server-message", "rejoin-group-failed"];
const made = new Map();

const say = (line) => process.stdout.write(JSON.stringify(line, pack) + "\n");

function pack(_, value) {
  if (value instanceof ArrayBuffer) return { $bytes: Buffer.from(value).toString("base64") };
  return value;
}

function unpack(_, value) {
  if (value === null || typeof value !== "object") return value;
  if ("$signal" in value) return newSignal(value.$signal);
  if (!("$bytes" in value)) return value;
  const bytes = Buffer.from(value.$bytes, "base64");
  return bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
}

function newSignal(name) {
  const controller = new AbortController();
  made.set(name, controller);
  return controller.signal;
}

// as docs/how-to/one-id-over-all-hops.md has it
function protocolWithIds(field) {
  const protocol = WebPubSubJsonReliableProtocol();
  const write = protocol.writeMessage.bind(protocol);
  protocol.writeMessage = (message) => {
    const id = message.kind === "sendEvent" ? message.data?.[field] : undefined;
    if (id === undefined) return write(message);
    return JSON.stringify({ ...JSON.parse(write(message)), metadata: { "semel-id": String(id) } });
  };
  return protocol;
}

function makeClient(name, [url, { idField, ...options } = {}]) {
  if (idField !== undefined) options.protocol = protocolWithIds(idField);
  const client = new WebPubSubClient(url, options);
  for (const event of EVENTS) client.on(event, (told) => say({ of: name, event, told }));
  client.onGroupStream((stream) => readStream(name, stream), { handleFromStart: true });
  return client;
}

async function readStream(name, stream) {
  const { groupName, streamId } = stream;
  say({ of: name, event: "stream", told: { groupName, streamId } });
  const tell = (told) => say({ of: name, event: `stream ${streamId}`, told });
  try {
    for await (const part of stream) tell(part);
    tell({ end: true });
  } catch (error) {
    tell({ error: describe(error) });
  }
}

async function makeWire(name, [url]) {
  const protocol = WebPubSubJsonReliableProtocol();
  const socket = new WebSocket(url, protocol.name);
  socket.onmessage = ({ data }) => {
    const told = protocol.parseMessages(data);
    if (told !== null) say({ of: name, event: told.kind, told });
  };
  await new Promise((resolve, reject) => Object.assign(socket, { onopen: resolve, onerror: reject }));
  return { send: (message) => socket.send(protocol.writeMessage(message)), stop: () => socket.close(1000) };
}

async function makeHandler(name, [hub, options, port = 0]) {
  const tell = (event) => (told) => say({ of: name, event, told });
  const handler = new WebPubSubEventHandler(hub, {
    ...options,
    handleConnect(request, response) {
      tell("connect")(request);
      if (request.queries.deny) return response.fail(403, "not you");
      response.setState("came", request.context.userId);
      response.success({ userId: `${request.context.userId}!`, groups: ["chosen"], roles: ["webpubsub.joinLeaveGroup"] });
    },
    handleUserEvent(request, response) {
      tell("user")(request);
      if (request.context.eventName === "fail") return response.fail(400, "private");
      if (request.context.eventName === "quiet") return response.success();
      response.setState("last", request.context.eventName);
      const { data, dataType } = request;
      response.success(dataType === "json" ? JSON.stringify(data) : data, dataType);
    },
    onConnected: tell("connected"),
    onDisconnected: tell("disconnected"),
    onGroupJoined: tell("joined"),
    onGroupLeft: tell("left"),
  });
  const middleware = handler.getMiddleware();
  const server = createServer((request, response) => {
    // what Express adds to a request, as far as the middleware looks at it
    Object.assign(request, { baseUrl: "", path: new URL(request.url, "http://localhost").pathname });
    middleware(request, response, () => response.writeHead(404).end());
  });
  await new Promise((resolve) => server.listen(port, "127.0.0.1", resolve));
  return { port: () => server.address().port, stop: () => server.close() };
}

const MAKERS = {
  handler: makeHandler,
  client: makeClient,
  service: (_, args) => new WebPubSubServiceClient(...args),
  wire: makeWire,
};

async function make(kind, name, args) {
  made.set(name, await MAKERS[kind](name, args));
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
  const result = await target[order.do](...order.args);
  if (order.as === undefined) return result;
  made.set(order.as, result);
  result.onError?.((error) => say({ of: order.as, event: "error", told: describe(error) }));
}

const describe = ({ name, message, statusCode, code, ackId, invocationId, userErrorCode, errorDetail }) => ({
  name, message, statusCode, code, ackId, invocationId, userErrorCode, errorDetail,
});

async function obey(order) {
  try {
    say({ id: order.id, result: (await perform(order)) ?? null });
  } catch (error) {
    say({ id: order.id, error: describe(error) });
  }
}

const lines = readline.createInterface({ input: process.stdin });
lines.on("line", (line) => obey(JSON.parse(line, unpack)));
lines.on("close", () => process.exit(0));
