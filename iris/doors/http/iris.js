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

  /** Ask one member of a cluster; resolves to its reply. */
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
   * The last item has `missing`, `errors` and `ended_by` in place of a payload.
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
    const url = `${this.url.replace(/^http/, "ws")}/tunnel/${encodeURIComponent(cluster)}?${queryOf(options)}`;
    return new Tunnel(new WebSocket(url, ["iris.tunnel.1", `iris.token.${this.token}`]), credit).opened;
  }

  async #post(verb, name, payload, { signal = null, headers = {}, ...options }) {
    const raw = payload instanceof Uint8Array;
    const all = { "content-type": raw ? "application/octet-stream" : "application/json" };
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
  #socket;
  #lend;
  #used = 0;
  #credit = 0;
  #waiting = [];
  #arrived = [];
  #wake = null;
  #error = null;
  #ended = false;

  /** Made by `Door.openTunnel`. */
  constructor(socket, credit) {
    this.#socket = socket;
    this.#lend = credit;
    socket.binaryType = "arraybuffer";
    this.opened = new Promise((resolve, reject) => {
      socket.onopen = () => socket.send(JSON.stringify({ credit }));
      socket.onmessage = ({ data }) => {
        this.#take(data);
        resolve(this);
      };
      socket.onclose = ({ code, reason }) => {
        const [word, ...rest] = reason.split(": ");
        const status = code >= 4000 ? code - 4000 : 502;
        const detail = rest.join(": ") || "the connection was lost";
        if (code !== 1000) this.#error = new IrisError({ status, code: (code >= 4000 && word) || "lost", detail });
        this.#ended = true;
        reject(this.#error ?? CLOSED);
        for (const wake of this.#waiting.splice(0)) wake();
        this.#wake?.();
      };
    });
  }

  /** Send a payload; resolves when the door has room for it. */
  async send(payload) {
    while (!this.#credit && !this.#ended) await new Promise((resolve) => this.#waiting.push(resolve));
    if (this.#ended) throw this.#error ?? CLOSED;
    this.#credit -= 1;
    this.#socket.send(payload instanceof Uint8Array ? payload : JSON.stringify({ payload }));
  }

  /** Say that nothing more is sent; what comes can still be read. */
  finish() {
    if (!this.#ended) this.#socket.send('{"eof":true}');
  }

  /** Give it up: the member gets an error. */
  abort() {
    this.#socket.close();
  }

  /** What the member sends, until it has finished; an error if the tunnel broke before. */
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
      if (this.#used * 2 >= this.#lend && this.#socket.readyState === WebSocket.OPEN) {
        this.#socket.send(JSON.stringify({ credit: this.#used }));
        this.#used = 0;
      }
      yield item.payload;
    }
  }

  #take(data) {
    if (typeof data !== "string") {
      this.#arrived.push({ payload: new Uint8Array(data) });
    } else {
      const said = JSON.parse(data);
      if ("credit" in said) {
        this.#credit += said.credit;
        for (const wake of this.#waiting.splice(0)) wake();
        return;
      }
      this.#arrived.push(said.eof ? said : { payload: opened(said) });
    }
    this.#wake?.();
  }
}

const CLOSED = new IrisError({ status: 400, code: "closed", detail: "the tunnel is closed" });

function lost(error) {
  return new IrisError({ status: 502, code: "lost", detail: `the connection to the door was lost: ${error.message}` });
}

function queryOf(options) {
  return new URLSearchParams(Object.entries(options).map(([name, value]) => [name, String(value)]));
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
