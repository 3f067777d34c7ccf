// A document of Iris in a page: what the page writes all members have, and the page sees what they write.
//
//   const document = new Document(new Door(url, token), "board");
//   await document.write("title", "hello");
//   for await (const { key, value } of document.watch("title")) console.log(key, value);

/** The document of a cluster whose members allow the door. */
export class Document {
  constructor(door, cluster) {
    this.door = door;
    this.cluster = cluster;
  }

  /** What is there: a value of { key }, a number of { counter }, an array of { set }, without one of them all values. */
  read(subject = {}) {
    return this.#ask("read", subject);
  }

  write(key, value, map = "") {
    return this.#ask("write", { map, key, value });
  }

  /** Add to { counter, number } or { set, element }. */
  add(subject) {
    return this.#ask("add", subject);
  }

  /** Remove { key } or { set, element }. */
  remove(subject) {
    return this.#ask("remove", subject);
  }

  /** What matches a pattern, and then each change of it: { key, kind, value, removed }. */
  async *watch(pattern = ">") {
    const tunnel = await this.door.openTunnel(this.cluster, { operation: "watch" });
    try {
      await tunnel.send(pattern);
      yield* tunnel;
    } finally {
      tunnel.abort();
    }
  }

  #ask(operation, subject) {
    return this.door.request(this.cluster, subject, { operation });
  }
}
