// Talks to the server: requests whose refusals become sentences, and jobs that are followed.

const AWAY = "The server cannot be reached. Is it still running?";
const POLL_MILLISECONDS = 400;

export class Refusal extends Error {
  constructor(sentence, status) {
    super(sentence);
    this.status = status;
  }
}

export async function ask(path, { method = "GET", body, signal, keepalive } = {}) {
  const headers = {};
  let content = body;
  if (body !== undefined && !(body instanceof Blob)) {
    headers["Content-Type"] = "application/json";
    content = JSON.stringify(body);
  }
  let answer;
  try {
    answer = await fetch(path, { method, headers, body: content, signal, keepalive });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(AWAY, 0);
  }
  if (answer.status === 204) return null;
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refusal(told.error ?? `The server answered ${answer.status}.`, answer.status);
  return told;
}

/** Follows a job to its end by events, or by asking again and again where they do not get through. */
export function follow(id, changed) {
  return new Promise((resolve, reject) => {
    const source = new EventSource(`/api/jobs/${id}/events`);
    const finish = (job) => {
      source.close();
      resolve(job);
    };
    const note = (job) => {
      changed(job);
      if (!["waiting", "running"].includes(job.state)) finish(job);
    };
    source.addEventListener("job", (event) => note(JSON.parse(event.data)));
    source.addEventListener("error", () => {
      source.close();
      poll(id, changed).then(resolve, reject);
    });
  });
}

async function poll(id, changed) {
  for (;;) {
    const job = await ask(`/api/jobs/${id}`);
    changed(job);
    if (!["waiting", "running"].includes(job.state)) return job;
    await new Promise((wait) => setTimeout(wait, POLL_MILLISECONDS));
  }
}

/** Lets go of something on the server; whether that worked does not matter here. */
export function drop(path, keepalive = false) {
  return ask(path, { method: "DELETE", keepalive }).catch(() => null);
}
