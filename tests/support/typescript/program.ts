// Every export of iris.js, as a program in TypeScript uses it: it is compiled and not run.
import { Door, IrisError, Packed, Tunnel } from "./iris.js";
import type {
  BroadcastOptions, CallOptions, Gap, Handlers, Headers, Job, Json, Lease, LeaseOptions, LogBatch, LogEvent, OpenedTunnel, Origin,
  Payload, Priority, Problem, PublishOptions, PutOptions, QueueStatus, ReadLogOptions, Received, Request, RequestHandler,
  RequestOptions, ServeOptions, SubscribeOptions, SurveyAnswer, SurveyEnd, SurveyOptions, TopicEvent, TunnelHandler,
  TunnelOptions, BroadcastHandler, WorkOptions,
} from "./iris.js";

interface Order {
  tea: string;
  cups: number;
}

const door = new Door(new URL("http://127.0.0.1:8080"), "token");
const { signal } = new AbortController();
const order: Order = { tea: "oolong", cups: 2 };
const headers: Headers = { trace: "7" };
const call: CallOptions = { signal, headers };
const priority: Priority = "high";
const payload: Payload = order;

export async function ask(): Promise<string> {
  const options: RequestOptions = {
    ...call, operation: "price", timeout: 5, wait: 1, key: "a", idempotent: true, hedge: 0.1, priority, prefer_site: "here",
    idempotencyKey: "order-7",
  };
  const received: Received = await door.request("orders", payload, options);
  if (received instanceof Packed) return String(received.bytes.length);
  if (received instanceof Uint8Array) return String(received[0]);
  const json: Json = received;
  const price: number = await door.request<number>("orders", order);
  await door.request("orders");
  await door.broadcast("orders", new Uint8Array([1]), { wait: 1, signal: null } satisfies BroadcastOptions);
  await door.publish("orders.tea", order, { confirm: true, timeout: 1, key: "a", retain: true } satisfies PublishOptions);
  return `${json} ${price.toFixed(2)}`;
}

export async function survey(): Promise<number> {
  const options: SurveyOptions = { operation: "price", timeout: 1, wait: 1, count: 3, quiet: 0.1, priority: "low" };
  const answers: SurveyAnswer<number>[] = [];
  let end: SurveyEnd | undefined;
  for await (const answer of door.survey<number>("orders", null, options)) {
    if (answer.ended_by === undefined) answers.push(answer);
    else end = answer;
  }
  for await (const { member, payload } of door.survey<number>("orders")) if (member) console.log(member, payload);
  const problems: Problem[] = Object.values(end?.errors ?? {});
  return answers.reduce((sum, one) => sum + one.payload, problems.length + (end?.missing.length ?? 0) + (end?.expected ?? 0));
}

export async function follow(): Promise<void> {
  const options: SubscribeOptions = { group: "web", signal, onOpen: () => console.log("open"), silence: 10_000 };
  for await (const event of door.subscribe<Order>(["orders.>", "teas"], options)) {
    if (event.gap) {
      const gap: Gap = event;
      console.log(gap.missed);
    } else {
      const told: TopicEvent<Order> = event;
      console.log(told.topic, told.payload.cups, told.missed + 1, told.retained, told.headers?.["trace"]);
    }
  }
}

export async function talk(): Promise<void> {
  const options: TunnelOptions = { credit: 4, operation: "chat", timeout: 1, wait: 1, key: "a", prefer_site: "here" };
  const tunnel: Tunnel<string> = await door.openTunnel<string>("orders", options);
  await tunnel.send("hello");
  tunnel.finish();
  for await (const word of tunnel) console.log(word.length);
  tunnel.abort();
}

export async function serve(): Promise<void> {
  const price: RequestHandler = async (asked: Order, request: Request) => {
    if (request.key === null) throw new IrisError({ status: 400, code: "no_key", detail: request.operation });
    return asked.cups * request.timeout + Number(request.signal.aborted);
  };
  const hear: BroadcastHandler = (told: string, { sender, node, headers }: Origin) => console.log(told, sender, node, headers);
  const chat: TunnelHandler = async (tunnel: Tunnel<string>, opened: OpenedTunnel) => {
    for await (const word of tunnel) await tunnel.send(word + opened.operation);
  };
  const handlers: Handlers = { request: { price, "": () => null }, broadcast: hear, tunnel: { chat } };
  const options: ServeOptions = { capacity: 4, keep: 60, signal, onReady: () => console.log("ready") };
  await door.serve("orders", handlers, options);
  await door.serve("orders", { request: (asked, { operation }) => [asked, operation], tunnel: (tunnel) => tunnel.abort() });
}

export async function jobs(): Promise<number> {
  await door.put("jobs", order, { key: "a", delay: 1, expires: 60, priority: -9, timeout: 5, headers } satisfies PutOptions);
  const options: WorkOptions = {
    limit: 4, lease: 30, attempts: 3, backoff: 1, dead: "dead", wait: 5, signal, onReady: () => console.log("ready"),
  };
  await door.work("jobs", async (asked: Order, job: Job) => {
    job.extend();
    console.log(asked.tea, job.key, job.attempt, job.headers, job.sender, job.timestamp, job.signal.aborted);
  }, options);
  await door.work("jobs", (asked, { attempt }) => console.log(asked instanceof Packed, attempt));
  const status: QueueStatus = await door.queueStatus("jobs");
  return status.waiting + status.dead;
}

export async function read(): Promise<void> {
  const options: ReadLogOptions = { group: "billing", start: "2026-01-01T00:00:00Z", until: "now", replay: true, limit: 2, wait: 5, signal };
  for await (const batch of door.readLog<Order>("orders.>", options)) {
    const told: LogBatch<Order> = batch;
    const events: LogEvent<Order>[] = told.events;
    for (const { payload, key, offset } of events) console.log(payload.tea, key, offset + 1);
    console.log(told.shard, told.lag + told.missed + told.gaps + told.expired);
  }
  for await (const { events } of door.readLog(["a", "b"], { start: 7 })) console.log(events.length);
}

export async function lead(): Promise<string> {
  const options: LeaseOptions = { ttl: 10, timeout: 5, wait: 5, signal };
  return door.holdLease("orders", "leader", async ({ token, signal }: Lease) => `${token + 1} ${signal.aborted}`, options);
}

export function describe(error: unknown): string {
  if (!(error instanceof IrisError)) throw error;
  return `${error.status + 1} ${error.code} ${error.message} ${error.retryAfter ?? 0} ${door.url} ${door.token}`;
}

export function refused(): void {
  // @ts-expect-error: an option that there is not
  void door.request("orders", order, { retries: 3 });
  // @ts-expect-error: no signal ends a tunnel
  void door.openTunnel("orders", { signal });
  // @ts-expect-error: what comes may be anything
  void door.request("orders").then((reply) => reply.cups);
  // @ts-expect-error: JSON holds none
  void door.publish("orders", 1n);
  // @ts-expect-error: Door makes them
  new Tunnel();
  // @ts-expect-error: a priority of a job is a number
  void door.put("jobs", order, { priority: "high" });
}
