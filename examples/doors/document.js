// A document of Iris in a page, by Yjs: what the page edits all members have, and the other way round.
//
//   import * as Y from "yjs";
//   const doc = await openDocument(new Door(url, token), "board", Y);
//   doc.getMap("values").set("title", "hello");

const PIECE = 65535;

/** Open the document of a cluster whose members allow the door; resolves to a Y.Doc that has what they have. */
export async function openDocument(door, cluster, Y, doc = new Y.Doc()) {
  const tunnel = await door.openTunnel(cluster, { operation: "join" });
  let sending = Promise.resolve();
  const send = (update) => {
    for (let at = 0; at < update.length; at += PIECE) {
      const last = at + PIECE >= update.length;
      sending = sending.then(() => tunnel.send(new Uint8Array([last ? 1 : 0, ...update.subarray(at, at + PIECE)])));
    }
  };
  await tunnel.send(Y.encodeStateVector(doc));
  const messages = tunnel[Symbol.asyncIterator]();
  const theirs = (await messages.next()).value;
  send(Y.encodeStateAsUpdate(doc, theirs));
  doc.on("update", (update, origin) => origin === tunnel || send(update));

  let pieces = [];
  const take = ({ value, done }) => {
    if (done) return doc.emit("closed", []);
    pieces.push(value.subarray(1));
    if (value[0] === 1) {
      Y.applyUpdate(doc, joined(pieces), tunnel);
      pieces = [];
    }
    messages.next().then(take, (error) => doc.emit("closed", [error]));
  };
  messages.next().then(take, (error) => doc.emit("closed", [error]));
  return doc;
}

function joined(pieces) {
  const whole = new Uint8Array(pieces.reduce((size, piece) => size + piece.length, 0));
  let at = 0;
  for (const piece of pieces) {
    whole.set(piece, at);
    at += piece.length;
  }
  return whole;
}
