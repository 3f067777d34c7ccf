/**
 * Iris for pages and for Node.js: the types of iris.js, which the door hands out beside it.
 *
 *     import { Door } from "./iris.js"; // curl -O http://127.0.0.1:8080/iris.js -O http://127.0.0.1:8080/iris.d.ts
 *     const door = new Door("http://127.0.0.1:8080", token);
 *     console.log(await door.request<string>("greeters", "world"));
 *
 * Times are in seconds, if nothing else is said.  Every failure is an IrisError, except that of a call that was given
 * up by its `signal`, which is what the signal says.
 */

/** What JSON can hold. */
export type Json = string | number | boolean | null | Json[] | { [name: string]: Json };

/** What is sent: what JSON can hold, or a Uint8Array for bytes. */
export type Payload = string | number | boolean | object | null;

/** What comes: what JSON can hold, a Uint8Array for bytes, or Packed for what is neither. */
export type Received = Json | Uint8Array | Packed;

/** Texts by their names, which members get in small letters. */
export type Headers = Record<string, string>;

/** A problem as the door tells it. */
export interface Problem {
  status: number;
  code: string;
  detail: string;
  /** Seconds, if they are known. */
  retry_after?: number | null;
}

/**
 * Why a call failed: `status` as of HTTP, `code` a short stable word, `message` a text for people.
 * The code "lost" says that the connection to the door broke: whether the call was done is not known.
 */
export class IrisError extends Error {
  constructor(problem: Problem);
  status: number;
  code: string;
  /** Seconds after which another try may help, if they are known. */
  retryAfter: number | null;
}

/** A payload that holds bytes among other values: `bytes` is its MessagePack. */
export class Packed {
  constructor(bytes: Uint8Array);
  bytes: Uint8Array;
}

/** Options of every call that is a POST. */
export interface CallOptions {
  /** Gives the call up. */
  signal?: AbortSignal | null;
  /** Headers for the members. */
  headers?: Headers;
}

export type Priority = "low" | "normal" | "high";

export interface RequestOptions extends CallOptions {
  operation?: string;
  /** 5 if it is not said; it and `wait` are 50 together at most, as for all calls. */
  timeout?: number;
  /** How long to wait for a member. */
  wait?: number;
  /** Requests with one key go to one member. */
  key?: string;
  /** The request may be done twice: it is repeated if its member is lost. */
  idempotent?: boolean;
  /** Seconds after which another member is asked, too. */
  hedge?: number;
  priority?: Priority;
  prefer_site?: string;
  /** With `idempotencyKey: "order-7"` it is done once. */
  idempotencyKey?: string | null;
}

export interface BroadcastOptions extends CallOptions {
  /** How long to wait for a member. */
  wait?: number;
}

export interface PublishOptions extends CallOptions {
  /** Resolve when bridges have it on disk. */
  confirm?: boolean;
  timeout?: number;
  key?: string;
  /** Keep the value at the door's node for later subscribers; an empty payload clears it. */
  retain?: boolean;
}

export interface SurveyOptions extends CallOptions {
  operation?: string;
  /** 1 if it is not said. */
  timeout?: number;
  /** How long to wait for a member. */
  wait?: number;
  /** End after so many answers. */
  count?: number;
  /** End when no answer has come for so long. */
  quiet?: number;
  priority?: Priority;
}

/** The answer of one member to a survey. */
export interface SurveyAnswer<Reply = Received> {
  member: string;
  payload: Reply;
  ended_by?: undefined;
  expected?: undefined;
  missing?: undefined;
  errors?: undefined;
}

/** The last item of a survey. */
export interface SurveyEnd {
  ended_by: "all" | "count" | "quiet" | "deadline";
  /** Answers if all had answered. */
  expected: number;
  /** Members that have not answered. */
  missing: string[];
  /** Why members have failed. */
  errors: Record<string, Problem>;
  member?: undefined;
  payload?: undefined;
}

export interface SubscribeOptions {
  /** Each event goes to one of the connections of this client in the group. */
  group?: string | null;
  /** Ends the loop, by what it says. */
  signal?: AbortSignal | null;
  /** Called whenever the door follows: what is published then is not missed. */
  onOpen?: (() => void) | null;
  /** A door that is silent for so many milliseconds (40,000) is taken to be lost. */
  silence?: number;
}

/** An event of a topic. */
export interface TopicEvent<Value = Received> {
  topic: string;
  payload: Value;
  /** Events of this stream that were lost before it. */
  missed: number;
  /** It is the last value of the topic, from before this subscription. */
  retained?: true;
  headers?: Headers;
  gap?: undefined;
}

/** Events were lost, and no event tells of them. */
export interface Gap {
  gap: true;
  /** How many, or null if the connection was lost. */
  missed: number | null;
  topic?: undefined;
  payload?: undefined;
  retained?: undefined;
  headers?: undefined;
}

export interface TunnelOptions {
  /** Payloads that the other end may send ahead (16). */
  credit?: number;
  operation?: string;
  timeout?: number;
  /** How long to wait for a member. */
  wait?: number;
  /** Tunnels with one key go to one member. */
  key?: string;
  prefer_site?: string;
}

/** Who sends something to a program that serves. */
export interface Origin {
  /** The cluster that asks, as its certificate proves it. */
  sender: string;
  /** The id of the node that asks. */
  node: string;
  headers: Headers;
}

/** What is known of a tunnel that was opened to this program. */
export interface OpenedTunnel extends Origin {
  /** "" for none. */
  operation: string;
}

/** What is known of a request. */
export interface Request extends Origin {
  /** "" for none. */
  operation: string;
  /** The idempotency key, if it has one. */
  key: string | null;
  /** Seconds that are left. */
  timeout: number;
  /** Aborts when nobody waits. */
  signal: AbortSignal;
}

/** Returns the reply (null if it returns nothing); an IrisError that it throws reaches the caller with its code. */
export type RequestHandler = (payload: any, request: Request) => unknown;
export type BroadcastHandler = (payload: any, origin: Origin) => unknown;
/** Gets a Tunnel, which closes when it returns. */
export type TunnelHandler = (tunnel: Tunnel<any>, opened: OpenedTunnel) => unknown;

/** Each of `request` and `tunnel` is a function for all operations, or one for each by its name, "" for none. */
export interface Handlers {
  request?: RequestHandler | { [operation: string]: RequestHandler };
  broadcast?: BroadcastHandler;
  tunnel?: TunnelHandler | { [operation: string]: TunnelHandler };
}

export interface ServeOptions {
  /** Requests that come at a time (16). */
  capacity?: number;
  /** Seconds for which a bridge remembers what requests with an idempotency key came to. */
  keep?: number | null;
  /** Drains: what is in progress is finished. */
  signal?: AbortSignal | null;
  /** Called whenever requests come from now on. */
  onReady?: (() => void) | null;
}

export interface PutOptions extends CallOptions {
  /** Jobs with one key are done one after the other. */
  key?: string;
  /** Seconds until it may be done. */
  delay?: number;
  /** Seconds after which nobody gets it any more. */
  expires?: number;
  /** -9 to 9. */
  priority?: number;
  timeout?: number;
}

/** The counts of a queue; more may come. */
export interface QueueStatus {
  queue: string;
  /** Events of the log that were not read yet. */
  unread: number;
  /** Jobs that may be assigned, or wait for another one of their key. */
  waiting: number;
  /** Delayed jobs, including those that wait for a retry. */
  delayed: number;
  /** Jobs at workers. */
  in_hand: number;
  workers: number;
  done: number;
  /** Dead letters that were written. */
  dead: number;
  /** Jobs that nobody got because they had expired. */
  expired: number;
  /** Attempts that were followed by another one. */
  retried: number;
  /** Failed attempts whose lease ran out or whose worker was lost. */
  lapsed: number;
}

/** What is known of a job. */
export interface Job {
  key: string | null;
  /** Counted from 1. */
  attempt: number;
  headers: Headers;
  sender: string;
  /** When it was put, in seconds since 1970. */
  timestamp: number;
  /** Aborts when the connection is lost, or the lease is known to be over: another program may have the job then. */
  signal: AbortSignal;
  /** Let the lease begin anew. */
  extend(): void;
}

export interface WorkOptions {
  /** Jobs in progress are finished once it aborts. */
  signal?: AbortSignal | null;
  /** Called whenever it is connected. */
  onReady?: (() => void) | null;
  /** Jobs at a time (16). */
  limit?: number;
  /** Seconds that a job may take. */
  lease?: number;
  /** Tries until it is a dead letter. */
  attempts?: number;
  /** Seconds before the second try; twice as many before each later one. */
  backoff?: number;
  /** The topic of dead letters. */
  dead?: string;
  /** How long to wait for a bridge. */
  wait?: number;
}

export interface ReadLogOptions {
  /** Ends the loop. */
  signal?: AbortSignal | null;
  /** The group that goes on behind the last batch that was committed. */
  group?: string;
  /** "earliest", "latest", an offset, or a date of ISO 8601 with its zone. */
  start?: "earliest" | "latest" | number | (string & {});
  /** End after what the log holds. */
  until?: "now";
  /** Begin at `start` although the group is known. */
  replay?: boolean;
  /** Batches ahead (4). */
  limit?: number;
  /** How long to wait for a bridge. */
  wait?: number;
}

/** An event of the log. */
export interface LogEvent<Value = Received> {
  topic: string;
  payload: Value;
  key: string | null;
  headers: Headers;
  sender: string;
  /** When it was published, in seconds since 1970. */
  timestamp: number;
  /** Its position in the shard, counted from 0. */
  offset: number;
}

/** Events of one shard of the log. */
export interface LogBatch<Value = Received> {
  events: LogEvent<Value>[];
  /** The id of the shard. */
  shard: string;
  /** Events of the shard that come behind it, on whatever topic. */
  lag: number;
  /** Events that were trimmed before they could be read. */
  missed: number;
  /** Events before its end, and behind the batch before, that the bridge never got. */
  gaps: number;
  /** Events before it that had expired. */
  expired: number;
}

export interface LeaseOptions {
  /** Gives the waiting or the work up. */
  signal?: AbortSignal | null;
  /** Seconds for which the lease is granted (10). */
  ttl?: number;
  /** Seconds to wait for the lease (5). */
  timeout?: number;
  /** How long to wait for a bridge. */
  wait?: number;
}

/** A lease that this program has. */
export interface Lease {
  /** Greater than those of all earlier holders. */
  token: number;
  /** Aborts when the lease is lost, by this machine's clock at the latest. */
  signal: AbortSignal;
}

/** The way to the clusters.  A type argument says what a program expects to come; nothing checks it. */
export class Door {
  /**
   * @param url - where the door is: http://HOST:PORT or https://HOST
   * @param token - what this client shows there
   */
  constructor(url: string | URL, token: string);
  url: string;
  token: string;

  /** Ask one member of a cluster; resolves to its reply.  With `idempotencyKey: "order-7"` it is done once. */
  request<Reply = Received>(cluster: string, payload?: Payload, options?: RequestOptions): Promise<Reply>;

  /** Tell all members of a cluster. */
  broadcast(cluster: string, payload?: Payload, options?: BroadcastOptions): Promise<void>;

  /** Send an event to all subscribers of a topic; with `confirm: true` it resolves when bridges have it on disk. */
  publish(topic: string, payload?: Payload, options?: PublishOptions): Promise<void>;

  /**
   * Ask all members of a cluster: `for await (const { member, payload } of door.survey(...))`.
   * The last item has `expected`, `missing`, `errors` and `ended_by` in place of a payload.
   */
  survey<Reply = Received>(
    cluster: string, payload?: Payload, options?: SurveyOptions,
  ): AsyncGenerator<SurveyAnswer<Reply> | SurveyEnd, void, undefined>;

  /**
   * Follow topics: `for await (const event of door.subscribe("orders.>"))`, with topic, payload and missed.
   *
   * When the connection is lost it connects again.  Events of that time are lost: the next item is
   * `{ gap: true, missed: null }`.  One with a number tells of events that were lost while it was connected, and that
   * no event told of.  `onOpen` is called whenever the door follows: what is published then is not missed.
   * The door sends something every 15 s; one that is silent for `silence` milliseconds is taken to be lost.
   */
  subscribe<Value = Received>(
    topics: string | string[], options?: SubscribeOptions,
  ): AsyncGenerator<TopicEvent<Value> | Gap, void, undefined>;

  /** Open an ordered, throttled channel to one member of a cluster; resolves to a Tunnel. */
  openTunnel<Item = Received>(cluster: string, options?: TunnelOptions): Promise<Tunnel<Item>>;

  /**
   * Serve a cluster (beta): `await door.serve("orders", { request: { price: async (payload, request) => 3.5 } })`.
   *
   * When the connection is lost it connects again.  Once the option `signal` aborts it drains: it finishes what is in
   * progress, and resolves.  An error says that this client may not serve the cluster.
   * `capacity` requests come at a time.  With `keep` (seconds) a bridge remembers what requests with an idempotency key
   * (`key` of a request) came to.  `onReady` is called whenever requests come from now on.
   */
  serve(cluster: string, handlers: Handlers, options?: ServeOptions): Promise<void>;

  /** Put a job into a queue; it resolves when the job is on the bridge's disk. */
  put(queue: string, payload?: Payload, options?: PutOptions): Promise<void>;

  /** How many jobs of a queue are waiting, delayed, in_hand, done, dead and so on. */
  queueStatus(queue: string): Promise<QueueStatus>;

  /**
   * Do the jobs of a queue: `await door.work("jobs", async (payload, job) => ...)`.
   *
   * When the function returns the job is done; when it throws, the job is tried again, and is a dead letter at once if
   * the error's `permanent` is true.
   *
   * When the connection is lost it connects again.  Once the option `signal` aborts, jobs in progress are finished, and
   * it resolves.  An error says that this client may not take jobs there.
   */
  work<Value = Received>(
    queue: string, handler: (payload: Value, job: Job) => unknown, options?: WorkOptions,
  ): Promise<void>;

  /**
   * Read topics in a bridge's log: `for await (const batch of door.readLog("orders.>", { group: "billing" }))`, with
   * `events` (topic, payload, key, headers, sender, timestamp, offset), shard, lag, missed, gaps and expired.
   *
   * A batch is committed when the loop comes back for the next one: the group goes on behind it.  One in which the loop
   * is left comes again.  With a group it connects again when the connection is lost.
   */
  readLog<Value = Received>(
    topics: string | string[], options?: ReadLogOptions,
  ): AsyncGenerator<LogBatch<Value>, void, undefined>;

  /**
   * Call a function while this program has a lease of a cluster; resolves to what it returns.
   *
   * It gets `{ token, signal }`: the token is greater than those of all earlier holders, and `signal` aborts when the
   * lease is lost, by this machine's clock at the latest; the error is "lease_lost" then.
   */
  holdLease<Result>(
    cluster: string, name: string, work: (lease: Lease) => Result | PromiseLike<Result>, options?: LeaseOptions,
  ): Promise<Result>;
}

/** An ordered, throttled, two-way channel to one member. */
export class Tunnel<Item = Received> implements AsyncIterable<Item> {
  /** Made by `Door.openTunnel` and `Door.serve`. */
  private constructor();

  /** Send a payload; resolves when the door has room for it. */
  send(payload: Payload): Promise<void>;

  /** Say that nothing more is sent; what comes can still be read. */
  finish(): void;

  /** Give it up: the other end gets an error. */
  abort(): void;

  /** What the other end sends, until it has finished; an error if the tunnel broke before. */
  [Symbol.asyncIterator](): AsyncGenerator<Item, void, undefined>;

  /** A payload has come; for this module, as the three below are. */
  take(payload: Item): void;

  /** The other end sends no more. */
  finished(): void;

  /** The door lends so many messages more. */
  lend(credit: number): void;

  /** It is over, by an error or in order. */
  end(error?: Error | null): void;
}
