// @ts-self-types="./iris.d.ts"
/**
 * Iris for pages and for Node.js (from 22 on; 20 with --experimental-websocket): address clusters by name through a door.
 *
 *     import { Door } from "http://127.0.0.1:8080/iris.js";
 *     const door = new Door("http://127.0.0.1:8080", token);
 *     console.log(await door.request("greeters", "world"));
 *
 * A payload is what JSON can hold, or a Uint8Array for bytes.  What a member sends that is neither comes as Packed.
 * Options are those of the HTTP door; `signal`, an AbortSignal, gives a call up.  Every failure is an IrisError, except
 * that of a call that was given up, which is what the signal says.
 */

/**
 * Why a call failed: `status` as of HTTP, `code` a short stable word, `message` a text for people.
 * The code "lost" says that the connection to the door broke: whether the call was done is not known.
 */
export class IrisError extends Error {
  constructor({ status, code, detail, retry_after = null }) {
    super(detail);
    this.name = "IrisError";
    this.status = status;
    this.code = code;
    this.retryAfter = retry_after;
  }
}

/** A payload that holds bytes among other values: `bytes` is its MessagePack. */
export class Packed {
  constructor(bytes) {
    this.bytes = bytes;
  }
}

/** The way to the clusters. */
export class Door {
  /**
   * @param {string} url - where the door is: http://HOST:PORT or https://HOST
   * @param {string} token - what this client shows there
   */
  constructor(url, token) {
    this.url = new URL(url).href.replace(/\/+$/, "");
    this.token = token;
  }

  /** Ask one member of a cluster; resolves to its reply.  With `idempotencyKey: "order-7"` it is done once. */
  async request(cluster, payload = new Uint8Array(), options = {}) {
    const answer = await this.#post("request", cluster, payload, options);
    const type = answer.headers.get("content-type");
    if (type === "application/json") return answer.json();
    const bytes = new Uint8Array(await answer.arrayBuffer());
    return type === "application/msgpack" ? new Packed(bytes) : bytes;
  }

  /** Tell all members of a cluster. */
  async broadcast(cluster, payload = new Uint8Array(), options = {}) {
    await this.#post("broadcast", cluster, payload, options);
  }

  /** Send an event to all subscribers of a topic; with `confirm: true` it resolves when bridges have it on disk. */
  async publish(topic, payload = new Uint8Array(), options = {}) {
    await this.#post("publish", topic, payload, options);
  }

  /**
   * Ask all members of a cluster: `for await (const { member, payload } of door.survey(...))`.
   * The last item has `expected`, `missing`, `errors` and `ended_by` in place of a payload.
   */
  async *survey(cluster, payload = new Uint8Array(), options = {}) {
    const answer = await this.#post("survey", cluster, payload, options);
    for await (const line of lines(answer.body)) {
      const told = JSON.parse(line);
      if (told.error) throw new IrisError(told.error);
      yield told.member ? { member: told.member, payload: opened(told) } : told;
    }
  }

  /**
   * Follow topics: `for await (const event of door.subscribe("orders.>"))`, with topic, payload and missed.
   *
   * When the connection is lost it connects again.  Events of that time are lost: the next item is
   * `{ gap: true, missed: null }`.  One with a number tells of events that were lost while it was connected, and that
   * no event told of.  `onOpen` is called whenever the door follows: what is published then is not missed.
   * The door sends something every 15 s; one that is silent for `silence` milliseconds is taken to be lost.
   */
  async *subscribe(topics, { group = null, signal = null, onOpen = null, silence = 40_000 } = {}) {
    const query = new URLSearchParams([].concat(topics).map((topic) => ["topic", topic]));
    if (group !== null) query.set("group", group);
    let last = null;
    for (let pause = 100; ; pause = Math.min(2 * pause, 5000)) {
      const watch = new AbortController();
      const either = signal ? AbortSignal.any([signal, watch.signal]) : watch.signal;
      const within = (waiting) => {
        const timer = setTimeout(() => watch.abort(), silence);
        return waiting.finally(() => clearTimeout(timer));
      };
      try {
        const headers = last === null ? {} : { "last-event-id": last };
        const answer = await within(this.#fetch(`/subscribe?${query}`, { headers, signal: either }));
        last = last ?? "-";
        pause = 100;
        if (onOpen) onOpen();
        for await (const { kind, id, data } of serverSentEvents(answer.body, within)) {
          last = id ?? last;
          if (kind === "gap") yield { gap: true, missed: data.missed };
          else if (kind === "message") yield { ...data, payload: opened(data) };
          else if (data.status !== 401) throw new IrisError(data);
        }
      } catch (error) {
        const hopeless = error instanceof IrisError && error.status < 500 && error.status !== 429;
        if (signal?.aborted) throw signal.reason;
        if (hopeless) throw error;
      }
      await new Promise((resolve) => setTimeout(resolve, pause * (0.5 + Math.random() / 2)));
    }
  }

  /** Open an ordered, throttled channel to one member of a cluster; resolves to a Tunnel. */
  openTunnel(cluster, { credit = 16, ...options } = {}) {
    const socket = this.#socket("tunnel", cluster, options, "iris.tunnel.1");
    const said = (map) => socket.send(JSON.stringify(map));
    const tunnel = new Tunnel({
      payload: (payload) => (payload instanceof Uint8Array ? socket.send(payload) : said({ payload })),
      credit: (number) => socket.readyState === WebSocket.OPEN && said({ credit: number }),
      eof: () => said({ eof: true }),
      close: () => socket.close(),
    }, credit);
    return new Promise((resolve, reject) => {
      socket.onopen = () => said({ credit });
      socket.onmessage = ({ data }) => {
        const told = typeof data === "string" ? JSON.parse(data) : { payload: new Uint8Array(data) };
        if ("payload" in told) tunnel.take(opened(told));
        else if (told.eof) tunnel.finished();
        else tunnel.lend(told.credit);
        resolve(tunnel);
      };
      whenClosed(socket, (error) => {
        tunnel.end(error);
        reject(error ?? CLOSED);
      });
    });
  }

  /**
   * Serve a cluster (beta): `await door.serve("orders", { request: { price: async (payload, request) => 3.5 } })`.
   *
   * `request` gets the payload and `{ operation, sender, node, headers, timeout, signal }`; what it returns is the
   * reply, and an IrisError that it throws reaches the caller with its code.  `signal` aborts when nobody waits.
   * `broadcast` gets the payload and `{ sender, node, headers }`.  `tunnel` gets a Tunnel, which closes when it returns.
   * Each of `request` and `tunnel` is a function for all operations, or one for each by its name, "" for none.
   *
   * When the connection is lost it connects again.  Once the option `signal` aborts it drains: it finishes what is in
   * progress, and resolves.  An error says that this client may not serve the cluster.
   * `capacity` requests come at a time.  With `keep` (seconds) a bridge remembers what requests with an idempotency key
   * (`key` of a request) came to.  `onReady` is called whenever requests come from now on.
   */
  async serve(cluster, handlers, { capacity = 16, keep = null, signal = null, onReady = null } = {}) {
    await this.#again(signal, (ready) => {
      const socket = this.#socket("serve", cluster, keep === null ? { capacity } : { capacity, keep }, "iris.serve.1");
      return new Program(socket, handlers, () => {
        ready();
        onReady?.();
      });
    });
  }

  /**
   * Put a job into a queue; it resolves when the job is on the bridge's disk.
   * Options: key, delay, expires, priority (-9 to 9), timeout, headers.
   */
  async put(queue, payload = new Uint8Array(), options = {}) {
    await this.#post("put", queue, payload, options);
  }

  /** How many jobs of a queue are waiting, delayed, in_hand, done, dead and so on. */
  async queueStatus(queue) {
    return (await this.#fetch(`/queue/${encodeURIComponent(queue)}`, { headers: {} })).json();
  }

  /**
   * Do the jobs of a queue: `await door.work("jobs", async (payload, job) => ...)`.
   *
   * The function gets the payload and `{ key, attempt, headers, sender, timestamp, signal, extend }`.  When it returns
   * the job is done; when it throws, the job is tried again, and is a dead letter at once if the error's `permanent` is
   * true.  `signal` aborts when the connection is lost, or the lease is known to be over: another program may have the
   * job then.  `extend()` lets the lease begin anew.
   *
   * When the connection is lost it connects again.  Once the option `signal` aborts, jobs in progress are finished, and
   * it resolves.  An error says that this client may not take jobs there.
   * Options: limit (jobs at a time, 16), lease, attempts, backoff, dead, and `onReady`, called whenever it is connected.
   */
  async work(queue, handler, { signal = null, onReady = null, ...options } = {}) {
    await this.#again(signal, (ready) => {
      const socket = this.#socket("take", queue, options, "iris.take.1");
      return new Worker(socket, handler, () => {
        ready();
        onReady?.();
      });
    });
  }

  /**
   * Read topics in a bridge's log: `for await (const batch of door.readLog("orders.>", { group: "billing" }))`, with
   * `events` (topic, payload, key, headers, sender, timestamp, offset), shard, lag, missed, gaps and expired.
   *
   * A batch is committed when the loop comes back for the next one: the group goes on behind it.  One in which the loop
   * is left comes again.  With a group it connects again when the connection is lost.
   * Options: group, start ("earliest", "latest", an offset, or a date of ISO 8601 with its zone), `until: "now"` to end
   * after what the log holds, limit (batches ahead, 4), and `signal`, which ends the loop.
   */
  async *readLog(topics, { signal = null, ...options } = {}) {
    const query = new URLSearchParams([].concat(topics).map((topic) => ["topic", topic]));
    for (const [name, value] of queryOf(options)) query.set(name, value);
    for (let pause = 100; !signal?.aborted; pause = Math.min(2 * pause, 5000)) {
      const socket = this.#open(`read?${query}`, "iris.read.1");
      const reading = new Reading(socket);
      const stop = () => socket.close();
      signal?.addEventListener("abort", stop);
      try {
        for await (const batch of reading) {
          pause = 100;
          const { id, ...told } = batch;
          yield told;
          reading.commit(id);
        }
      } finally {
        signal?.removeEventListener("abort", stop);
        socket.close();
      }
      if (signal?.aborted || reading.finished) return;
      await this.#retry(reading.error ?? ("group" in options ? null : CLOSED), pause, signal, "group" in options);
    }
  }

  /**
   * Call a function while this program has a lease of a cluster; resolves to what it returns.
   *
   * It gets `{ token, signal }`: the token is greater than those of all earlier holders, and `signal` aborts when the
   * lease is lost, by this machine's clock at the latest; the error is "lease_lost" then.
   * Options: ttl (10 s), timeout (5 s to wait for it), and `signal`, which gives it up.
   */
  holdLease(cluster, name, work, { signal = null, ttl = 10, ...options } = {}) {
    const socket = this.#socket("lease", `${cluster}/${name}`, { ttl, ...options }, "iris.lease.1");
    const stop = new AbortController();
    const said = (type) => socket.readyState === WebSocket.OPEN && socket.send(JSON.stringify({ type }));
    let working = null;
    let token, asked, expiry;
    const giveUp = () => (working ? stop.abort(signal.reason) : socket.close());
    const lose = (detail) => {
      stop.abort(new IrisError({ status: 409, code: "lease_lost", detail }));
      socket.close();
    };
    const renew = () => {
      asked = performance.now();
      said("renew");
    };
    signal?.addEventListener("abort", giveUp);
    if (signal?.aborted) socket.close();
    return new Promise((resolve, reject) => {
      socket.onmessage = ({ data }) => {
        const message = JSON.parse(data);
        if (message.type === "granted") {
          token = message.token;
          renew();
        } else if (message.type === "drain") stop.abort(new IrisError({ status: 401, code: "ended", detail: "the door closes" }));
        else if (message.type === "renewed") {
          clearTimeout(expiry);
          expiry = setTimeout(lose, asked + 1000 * message.left - performance.now(), "it was not renewed in time");
          setTimeout(renew, (1000 * ttl) / 3);
          working ??= Promise.resolve({ token, signal: stop.signal }).then(work).finally(() => {
            clearTimeout(expiry);
            said("release");
          });
          working.catch(() => null); // it is told when the connection has ended
        }
      };
      whenClosed(socket, (error) => {
        signal?.removeEventListener("abort", giveUp);
        clearTimeout(expiry);
        if (!working) reject(signal?.aborted ? signal.reason : error ?? CLOSED);
        else if (error) lose(error.message);
        const lost = stop.signal.reason?.code === "lease_lost" && stop.signal.reason;
        working?.then((value) => (lost ? reject(lost) : resolve(value)), (failure) => reject(lost || failure));
      });
    });
  }

  /** Have something open at the door, and again when the connection is lost, until a signal aborts. */
  async #again(signal, open) {
    for (let pause = 100; !signal?.aborted; pause = Math.min(2 * pause, 5000)) {
      const program = open(() => (pause = 100));
      const drain = () => program.drain();
      signal?.addEventListener("abort", drain);
      const error = await program.ended;
      signal?.removeEventListener("abort", drain);
      if (!signal?.aborted) await this.#retry(error, pause, signal, true);
    }
  }

  /** Wait for a while before another try; throw the error if that has no hope. */
  async #retry(error, pause, signal, again) {
    if (again && (error?.code === "ended" || error?.code === "lost")) error = await this.#refusal();
    if (error && (!again || (error.status < 500 && error.status !== 429))) throw error;
    await new Promise((resolve) => {
      setTimeout(resolve, pause * (0.5 + Math.random() / 2));
      signal?.addEventListener("abort", resolve);
    });
  }

  /** Why the door does not know this token, which no WebSocket tells; null if it does. */
  async #refusal() {
    const error = await this.#fetch("/subscribe", { headers: {} }).catch((refused) => refused);
    return error.status === 401 ? error : null;
  }

  #socket(verb, cluster, options, protocol) {
    return this.#open(`${verb}/${encodeURIComponent(cluster)}?${queryOf(options)}`, protocol);
  }

  #open(path, protocol) {
    const url = `${this.url.replace(/^http/, "ws")}/${path}`;
    const socket = new WebSocket(url, [protocol, `iris.token.${this.token}`]);
    socket.binaryType = "arraybuffer";
    return socket;
  }

  async #post(verb, name, payload, { signal = null, headers = {}, idempotencyKey = null, ...options }) {
    const raw = payload instanceof Uint8Array;
    const all = { "content-type": raw ? "application/octet-stream" : "application/json" };
    if (idempotencyKey !== null) all["idempotency-key"] = `"${idempotencyKey.replace(/["\\]/g, "\\$&")}"`;
    for (const [key, value] of Object.entries(headers)) all[`iris-header-${key}`] = value;
    const body = raw ? payload : JSON.stringify(payload);
    const path = `/${verb}/${encodeURIComponent(name)}?${queryOf(options)}`;
    return this.#fetch(path, { method: "POST", headers: all, body, signal });
  }

  async #fetch(path, { headers, ...how }) {
    const all = { ...headers, authorization: `Bearer ${this.token}` };
    const answer = await fetch(this.url + path, { ...how, headers: all }).catch((error) => {
      throw how.signal?.aborted ? how.signal.reason : lost(error);
    });
    if (answer.ok) return answer;
    const told = await answer.json().catch(() => ({ code: "refused", detail: answer.statusText }));
    throw new IrisError({ ...told, status: answer.status });
  }
}

/** An ordered, throttled, two-way channel to one member. */
export class Tunnel {
  #outlet;
  #lend;
  #used = 0;
  #credit = 0;
  #waiting = [];
  #arrived = [];
  #wake = null;
  #error = null;
  #ended = false;

  /** Made by `Door.openTunnel` and `Door.serve`. */
  constructor(outlet, credit) {
    this.#outlet = outlet;
    this.#lend = credit;
  }

  /** Send a payload; resolves when the door has room for it. */
  async send(payload) {
    while (!this.#credit && !this.#ended) await new Promise((resolve) => this.#waiting.push(resolve));
    if (this.#ended) throw this.#error ?? CLOSED;
    this.#credit -= 1;
    this.#outlet.payload(payload);
  }

  /** Say that nothing more is sent; what comes can still be read. */
  finish() {
    if (!this.#ended) this.#outlet.eof();
  }

  /** Give it up: the other end gets an error. */
  abort() {
    this.#outlet.close();
  }

  /** What the other end sends, until it has finished; an error if the tunnel broke before. */
  async *[Symbol.asyncIterator]() {
    for (;;) {
      while (!this.#arrived.length) {
        if (this.#error) throw this.#error;
        if (this.#ended) return;
        await new Promise((resolve) => (this.#wake = resolve));
      }
      const item = this.#arrived.shift();
      if (item.eof) return;
      this.#used += 1;
      if (this.#used * 2 >= this.#lend) {
        if (!this.#ended) this.#outlet.credit(this.#used);
        this.#used = 0;
      }
      yield item.payload;
    }
  }

  /** A payload has come; for this module, as the three below are. */
  take(payload) {
    this.#arrived.push({ payload });
    this.#wake?.();
  }

  /** The other end sends no more. */
  finished() {
    this.#arrived.push({ eof: true });
    this.#wake?.();
  }

  /** The door lends so many messages more. */
  lend(credit) {
    this.#credit += credit;
    for (const wake of this.#waiting.splice(0)) wake();
  }

  /** It is over, by an error or in order. */
  end(error = null) {
    if (this.#ended) return;
    this.#error = error;
    this.#ended = true;
    for (const wake of this.#waiting.splice(0)) wake();
    this.#wake?.();
  }
}

/** What serves a cluster by one connection; `ended` resolves to the error by which it ended, or null. */
class Program {
  #socket;
  #handlers;
  #onReady;
  #most = Infinity;
  #requests = new Map();
  #tunnels = new Map();

  constructor(socket, handlers, onReady) {
    this.#socket = socket;
    this.#handlers = handlers;
    this.#onReady = onReady;
    this.ended = new Promise((resolve) => {
      socket.onmessage = ({ data }) => this.#take(data);
      whenClosed(socket, (error) => {
        for (const stop of this.#requests.values()) stop.abort(error ?? CLOSED);
        for (const tunnel of this.#tunnels.values()) tunnel.end(error ?? CLOSED);
        resolve(error);
      });
    });
  }

  drain() {
    if (this.#socket.readyState === WebSocket.OPEN) this.#send({ type: "drain" });
    else this.#socket.close();
  }

  #take(data) {
    const message = readMessage(data);
    const { type, id } = message;
    if (type === "ready") {
      this.#most = message.max_message;
      this.#onReady();
    } else if (type === "request") this.#serve(message);
    else if (type === "cancel") this.#requests.get(id)?.abort(CLOSED);
    else if (type === "broadcast") this.#hear(message);
    else if (type === "tunnel") this.#talk(message);
    else if (type === "data") this.#tunnels.get(id)?.take(opened(message));
    else if (type === "credit") this.#tunnels.get(id)?.lend(message.credit);
    else if (type === "eof") this.#tunnels.get(id)?.finished();
    else if (type === "close") {
      this.#tunnels.get(id)?.end(new IrisError({ status: 502, ...message }));
      this.#tunnels.delete(id);
    }
  }

  async #serve({ id, operation = "", ...message }) {
    const stop = new AbortController();
    this.#requests.set(id, stop);
    try {
      const handler = handlerOf(this.#handlers.request, operation);
      const request = { operation, ...aboutOf(message), key: message.key ?? null, timeout: message.timeout, signal: stop.signal };
      const reply = await handler(opened(message), request);
      if (!stop.signal.aborted) this.#send({ type: "reply", id }, reply);
    } catch (error) {
      if (!stop.signal.aborted) this.#send({ type: "error", id, ...failure(error) });
    }
    this.#requests.delete(id);
  }

  async #hear({ id, ...message }) {
    try {
      await this.#handlers.broadcast?.(opened(message), aboutOf(message));
    } catch (error) {
      console.error(error);
    }
    this.#send({ type: "done", id });
  }

  async #talk({ id, credit, operation = "", ...message }) {
    const lent = 16;
    const close = (error) => {
      if (this.#tunnels.delete(id)) this.#send({ type: "close", id, ...(error && failure(error)) });
    };
    const tunnel = new Tunnel({
      payload: (payload) => this.#send({ type: "data", id }, payload),
      credit: (number) => this.#send({ type: "credit", id, credit: number }),
      eof: () => this.#send({ type: "eof", id }),
      close: () => close(new IrisError({ status: 502, code: "aborted", detail: "the program has given it up" })),
    }, lent);
    this.#tunnels.set(id, tunnel);
    try {
      const handler = handlerOf(this.#handlers.tunnel, operation);
      this.#send({ type: "credit", id, credit: lent });
      tunnel.lend(credit);
      await handler(tunnel, { operation, ...aboutOf(message) });
      close();
    } catch (error) {
      close(error);
    }
    tunnel.end(CLOSED);
  }

  #send(head, payload) {
    if (this.#socket.readyState !== WebSocket.OPEN) return;
    const raw = payload instanceof Uint8Array;
    const holds = head.type === "reply" || head.type === "data";
    const text = JSON.stringify(holds && !raw ? { ...head, payload: payload ?? null } : head);
    const about = raw ? `${text}\n` : text;
    const bytes = new TextEncoder().encode(about);
    const size = bytes.length + (raw ? payload.length : 0);
    if (size > this.#most) {
      const detail = `the door takes messages of ${this.#most} bytes, and this one has ${size}`;
      const error = new IrisError({ status: 413, code: "too_large", detail });
      if (head.type === "reply") this.#send({ type: "error", id: head.id, ...failure(error) });
      else throw error;
      return;
    }
    this.#socket.send(raw ? joined(bytes, payload) : about);
  }
}

/** What does jobs by one connection; `ended` as that of a Program. */
class Worker {
  #socket;
  #handler;
  #jobs = new Map();

  constructor(socket, handler, onReady) {
    this.#socket = socket;
    this.#handler = handler;
    this.ended = new Promise((resolve) => {
      socket.onmessage = ({ data }) => {
        const message = readMessage(data);
        if (message.type === "ready") onReady();
        else if (message.type === "job") this.#do(message);
        else if (message.type === "error") this.#jobs.get(message.id)?.abort(new IrisError({ status: 409, ...message }));
      };
      whenClosed(socket, (error) => {
        for (const stop of this.#jobs.values()) stop.abort(error ?? CLOSED);
        resolve(error);
      });
    });
  }

  drain() {
    if (this.#socket.readyState === WebSocket.OPEN) this.#send({ type: "drain" });
    else this.#socket.close();
  }

  async #do({ id, key = null, attempt, headers, sender, timestamp, ...message }) {
    const stop = new AbortController();
    this.#jobs.set(id, stop);
    const extend = () => this.#send({ type: "extend", id });
    try {
      await this.#handler(opened(message), { key, attempt, headers, sender, timestamp, signal: stop.signal, extend });
      this.#send({ type: "commit", id });
    } catch (error) {
      const detail = String(error?.message ?? error).slice(0, 1024);
      this.#send({ type: "fail", id, detail, permanent: error?.permanent === true });
    }
    this.#jobs.delete(id);
  }

  #send(head) {
    if (this.#socket.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(head));
  }
}

/** Batches of the log by one connection: an async iterator, until the connection ends by `error`, or `finished` is true. */
class Reading {
  finished = false;
  error = null;
  #socket;
  #events = [];
  #batches = [];
  #wake = null;
  #ended = false;

  constructor(socket) {
    this.#socket = socket;
    socket.onmessage = ({ data }) => this.#take(readMessage(data));
    whenClosed(socket, (error) => {
      this.error = error;
      this.finished &&= error === null;
      this.#ended = true;
      this.#wake?.();
    });
  }

  commit(id) {
    if (this.#socket.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify({ type: "commit", id }));
  }

  async *[Symbol.asyncIterator]() {
    for (;;) {
      while (!this.#batches.length) {
        if (this.#ended) return;
        await new Promise((resolve) => (this.#wake = resolve));
      }
      yield this.#batches.shift();
    }
  }

  #take({ type, ...message }) {
    if (type === "event") {
      const { topic, key = null, headers, sender, timestamp, offset } = message;
      this.#events.push({ topic, payload: opened(message), key, headers, sender, timestamp, offset });
    } else if (type === "batch") {
      const events = this.#events.splice(0);
      const { id, shard, lag, missed, gaps, expired } = message;
      this.#batches.push({ id, events, shard, lag, missed, gaps, expired });
      this.#wake?.();
    } else if (type === "end") this.finished = true;
  }
}

function joined(one, other) {
  const both = new Uint8Array(one.length + other.length);
  both.set(one);
  both.set(other, one.length);
  return both;
}

function readMessage(data) {
  if (typeof data === "string") return JSON.parse(data);
  const bytes = new Uint8Array(data);
  const end = bytes.indexOf(10);
  return { ...JSON.parse(new TextDecoder().decode(bytes.subarray(0, end))), payload: bytes.slice(end + 1) };
}

function aboutOf({ sender, node, headers }) {
  return { sender, node, headers };
}

function handlerOf(handlers, operation) {
  if (typeof handlers === "function") return handlers;
  if (handlers && Object.hasOwn(handlers, operation)) return handlers[operation];
  const detail = operation ? `this program does not serve ${operation}` : "this program serves none without an operation";
  throw new IrisError({ status: 404, code: "no_such_operation", detail });
}

function failure(error) {
  const known = error instanceof IrisError && /^[\w.-]{1,64}$/.test(error.code);
  return { code: known ? error.code : "error", detail: known ? error.message : String(error).slice(0, 1024) };
}

/** Call a function with the error by which a WebSocket ends, or null: Node.js 20 says no more than that there is one. */
function whenClosed(socket, end) {
  socket.onerror = () => socket.onclose({ code: 1006, reason: "" });
  socket.onclose = ({ code, reason }) => {
    const [word, ...rest] = reason.split(": ");
    const detail = rest.join(": ") || "the connection was lost";
    const ours = code >= 4000;
    const error = new IrisError({ status: ours ? code - 4000 : 502, code: (ours && word) || "lost", detail });
    end(code === 1000 ? null : error);
  };
}

const CLOSED = new IrisError({ status: 400, code: "closed", detail: "the tunnel is closed" });

function lost(error) {
  return new IrisError({ status: 502, code: "lost", detail: `the connection to the door was lost: ${error.message}` });
}

function queryOf(options) {
  const given = Object.entries(options).filter(([, value]) => value !== undefined);
  return new URLSearchParams(given.map(([name, value]) => [name, String(value)]));
}

function opened({ payload, encoding }) {
  if (!encoding) return payload;
  const bytes = Uint8Array.from(atob(payload), (letter) => letter.charCodeAt(0));
  return encoding === "base64" ? bytes : new Packed(bytes);
}

async function* lines(body, within = (waiting) => waiting) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await within(reader.read()).catch((error) => {
        throw error.name === "AbortError" ? error : lost(error);
      });
      if (done) return;
      const pieces = (rest + value).split("\n");
      rest = pieces.pop();
      yield* pieces;
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

async function* serverSentEvents(body, within) {
  let kind = "message";
  let id = null;
  for await (const line of lines(body, within)) {
    if (line.startsWith("event: ")) kind = line.slice(7);
    else if (line.startsWith("id: ")) id = line.slice(4);
    else if (line.startsWith("data: ")) {
      yield { kind, id, data: JSON.parse(line.slice(6)) };
      kind = "message";
    }
  }
}
