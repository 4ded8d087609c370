// A conversation is a tree of messages: each knows its parent, and what was edited or answered again lies beside.

/** The messages from the first to `leaf`. Ends also where a file that was imported goes in a circle. */
export function path(messages, leaf) {
  const found = new Set();
  for (let one = messages.get(leaf); one && !found.has(one); one = messages.get(one.parent)) found.add(one);
  return [...found].reverse();
}

/** Versions of a message, oldest first. */
export function siblings(messages, message) {
  return sorted([...messages.values()].filter((one) => one.parent === message.parent && one.role === message.role));
}

/** The newest end below a message. */
export function deepest(messages, id) {
  const seen = new Set();
  for (;;) {
    seen.add(id);
    const children = sorted([...messages.values()].filter((one) => one.parent === id && !seen.has(one.id)));
    if (!children.length) return id;
    id = children.at(-1).id;
  }
}

function sorted(messages) {
  return messages.sort((a, b) => a.created - b.created || (a.id < b.id ? -1 : 1));
}

export function titleOf(text) {
  const line = text.trim().split("\n", 1)[0].replace(/\s+/g, " ");
  return line.length > 60 ? line.slice(0, 59) + "…" : line || "New conversation";
}
