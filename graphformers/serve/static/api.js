// Asking the server. Every answer is JSON; an error is thrown with the server's own words.

let token = sessionStorage.getItem("token") || "";

export class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function useToken(given) {
  token = given.trim();
  sessionStorage.setItem("token", token);
}

export async function ask(path, body, signal) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const options = { headers, signal };
  if (body !== undefined) {
    options.method = "POST";
    options.body = JSON.stringify(body);
    headers["Content-Type"] = "application/json";
  }
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(0, "The server cannot be reached.");
  }
  const content = await answer.json().catch(() => ({}));
  signal?.throwIfAborted(); // an answer may come to its end, or break off, after nobody wants it any more
  if (!answer.ok) throw new ServerError(answer.status, content.error?.message || `The server answered ${answer.status}.`);
  return { status: answer.status, content };
}

export const nodePath = (id, what = "") => `/nodes/${encodeURIComponent(id)}${what}`;
