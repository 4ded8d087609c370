// Server-sent events out of bytes. Offsets count bytes as they were sent, signs of life included.

const decoder = new TextDecoder();
const NEW_LINE = 10;

export class EventBytes {
  #rest = new Uint8Array(0);

  /** `offset`: where in the stream the first byte lies. */
  constructor(offset = 0) {
    /** The byte behind the last whole event. */
    this.offset = offset;
  }

  /** The events that became whole, as {event, data}; comments are none. */
  feed(chunk) {
    const bytes = this.#rest.length ? joined(this.#rest, chunk) : chunk;
    const events = [];
    let start = 0;
    let at = bytes.indexOf(NEW_LINE, Math.max(0, this.#rest.length - 1));
    while (at >= 0 && at + 1 < bytes.length) {
      if (bytes[at + 1] === NEW_LINE) {
        const event = parsed(decoder.decode(bytes.subarray(start, at)));
        if (event) events.push(event);
        start = at + 2;
        at = bytes.indexOf(NEW_LINE, start);
      } else {
        at = bytes.indexOf(NEW_LINE, at + 1);
      }
    }
    this.offset += start;
    this.#rest = bytes.slice(start);
    return events;
  }
}

function joined(a, b) {
  const both = new Uint8Array(a.length + b.length);
  both.set(a);
  both.set(b, a.length);
  return both;
}

function parsed(text) {
  let event = "message";
  const data = [];
  for (const line of text.split("\n")) {
    if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
    else if (line.startsWith("event:")) event = line.slice(6).trim();
  }
  return data.length ? { event, data: data.join("\n") } : null;
}
